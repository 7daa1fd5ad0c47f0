"""The life of one connection to a runtime: registering, configured, synchronized, asked. Bytes in, bytes out.

No sockets, no tasks; a lost connection is a lost session, and the next one starts with a fresh Session (fault N7). The
runtime's part of the life cycle is a table: what may come in which state, and which state follows. Whatever else comes
is answered without a hook being asked: hooks see Configure, then Synchronize, then events, and never another order.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from google.protobuf.message import DecodeError
from loguru import logger

from nri_cpu.nri import nri_pb2 as pb
from nri_cpu.nri.errors import IdentityError, SessionError
from nri_cpu.nri.hooks import HookError, Hooks
from nri_cpu.nri.methods import EVENT_METHODS, PLUGIN_SERVICE, RUNTIME_SERVICE, SUBSCRIBED, EventMethod
from nri_cpu.nri.replies import MORE, synchronize_reply
from nri_cpu.nri.runtime import Runtime
from nri_cpu.ttrpc.client import Answer
from nri_cpu.ttrpc.codes import Code
from nri_cpu.ttrpc.frames import MAX_DATA
from nri_cpu.ttrpc.server import Call
from nri_cpu.ttrpc.trunk import Trunk

# Seconds that a runtime has to take us in. It completes one plugin's registration before it accepts the next
# connection, and gives a silent one 5 s by default, so that several may be before us (nri#292; fault N6).
REGISTRATION_TIMEOUT: Final = 30.0

# A runtime has 2 s to send all parts, and 7,800 containers of a common size are 20 MiB: more is a runtime gone wild.
MAX_SYNCHRONIZE: Final = 256 << 20

# The longest answer: what a ttrpc frame holds, less the Response message around it.
MAX_ANSWER: Final = MAX_DATA - 5

# What protobuf raises for bytes that are no such message.
UNREADABLE: Final = (DecodeError, ValueError)

_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_INDEX = re.compile(r"[0-9]{2}")


class State(Enum):
    """How far a session has come."""

    NEW = "not started"
    REGISTERING = "registering"
    REGISTERED = "registered"
    CONFIGURED = "configured"
    SYNCHRONIZING = "synchronizing"
    READY = "synchronized"
    CLOSED = "closed"


class Step(Enum):
    """What the runtime does that moves a session on."""

    ACCEPT = "the answer to RegisterPlugin"
    CONFIGURE = "Configure"
    PART = "a part of Synchronize"
    LAST = "the last part of Synchronize"


# Configure and the answer to RegisterPlugin race each other, and either may be first. No runtime is known to
# synchronize twice; one that does tells the truth once more.
NEXT: Final[dict[tuple[State, Step], State]] = {
    (State.REGISTERING, Step.ACCEPT): State.REGISTERED,
    (State.REGISTERING, Step.CONFIGURE): State.CONFIGURED,
    (State.REGISTERED, Step.CONFIGURE): State.CONFIGURED,
    (State.CONFIGURED, Step.ACCEPT): State.CONFIGURED,
    (State.CONFIGURED, Step.PART): State.SYNCHRONIZING,
    (State.CONFIGURED, Step.LAST): State.READY,
    (State.SYNCHRONIZING, Step.ACCEPT): State.SYNCHRONIZING,
    (State.SYNCHRONIZING, Step.PART): State.SYNCHRONIZING,
    (State.SYNCHRONIZING, Step.LAST): State.READY,
    (State.READY, Step.ACCEPT): State.READY,
    (State.READY, Step.PART): State.READY,
    (State.READY, Step.LAST): State.READY,
}


def check_identity(name: str, index: str) -> None:
    """Raises IdentityError unless a runtime would take a plugin of this name and index.

    Two digits; letters, digits and _.+- (enforced since NRI 0.12).
    """
    if not _INDEX.fullmatch(index):
        raise IdentityError(f"the plugin's index {index!r} must be two digits, 00 to 99")
    if not _NAME.fullmatch(name):
        raise IdentityError(f"the plugin's name {name!r} must have letters, digits and _.+- only, and at least one")


class Session:
    """One connection's life. After start() and receive(), data_to_send() has what to write.

    `launched`: the runtime has started this plugin. `clock` gives seconds that never go back. Raises IdentityError for
    a bad name or index.
    """

    def __init__(
        self,
        hooks: Hooks,
        name: str,
        index: str,
        *,
        launched: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_identity(name, index)
        self.launched = launched
        self.unannounced = False
        """The plugin decides from the answer on that is owed now: written() must follow it."""
        self._hooks = hooks
        self._name, self._index = name, index
        self._clock = clock
        self._trunk = Trunk(server_id=1, client_id=2)
        self.data_to_send: Callable[[], bytes] = self._trunk.data_to_send
        """What the transport is to write."""
        self._state = State.NEW
        self._events: Mapping[str, EventMethod] = {}  # of which hooks are asked: none before they have synchronized
        self._registration = 0  # the stream of RegisterPlugin
        self._configured = False
        self._synchronized = False
        self._parts = _Parts()
        self._log = logger.bind(plugin=f"{index}-{name}")

    @property
    def state(self) -> State:
        return self._state

    @property
    def configured(self) -> bool:
        """Whether a runtime has ever configured this session, which then is its hooks' to know of."""
        return self._configured

    @property
    def synchronized(self) -> bool:
        """Whether this session's plugin has ever been the one to decide."""
        return self._synchronized

    def start(self) -> None:
        """Register. The session serves calls already: Configure may overtake the answer."""
        request = pb.RegisterPluginRequest(plugin_name=self._name, plugin_idx=self._index)
        self._registration = self._trunk.call(
            RUNTIME_SERVICE, "RegisterPlugin", request.SerializeToString(), REGISTRATION_TIMEOUT
        )
        self._state = State.REGISTERING

    def receive(self, data: bytes | memoryview) -> None:
        """Take what the transport has read, asking the hooks.

        `data` may be a buffer that is read into again. Raises SessionError, or ttrpc's ProtocolError, when the
        connection must be closed, once what data_to_send() has is written.
        """
        if self._state is State.CLOSED:
            return
        for event in self._trunk.receive(data):
            if isinstance(event, Answer):
                self._answered(event)
            elif event.service == PLUGIN_SERVICE and (method := self._events.get(event.method)):
                self._event(event, method)
            else:
                self._serve(event)

    def written(self) -> bool:
        """The transport has taken data_to_send(). True when the hooks now know that they are synchronized."""
        if not self.unannounced:
            return False
        self.unannounced = False
        self._tell("synchronized", self._hooks.synchronized)
        return True

    def lost(self, reason: str) -> None:
        """The connection is lost, or given up, and with it all that this session has."""
        if self._state is State.CLOSED:
            return
        self._state = State.CLOSED
        self.unannounced = False
        if self._configured:
            self._tell("disconnected", lambda: self._hooks.disconnected(reason))

    def _answered(self, answer: Answer) -> None:
        if answer.stream != self._registration:
            return
        if answer.error is not None:
            raise SessionError(f"the runtime refuses plugin {self._index}-{self._name}: {answer.error}")
        self._state = NEXT[self._state, Step.ACCEPT]

    def _serve(self, call: Call) -> None:
        method = call.method
        if call.service != PLUGIN_SERVICE:
            self._trunk.refuse(call.stream, Code.UNIMPLEMENTED, f"service {call.service} is not served here")
        elif event := EVENT_METHODS.get(method):
            if event.decides:
                self._out_of_order(call)
            else:  # Synchronize will tell what became of it
                self._trunk.answer(call.stream, b"")
        elif method == "Configure":
            self._configure(call)
        elif method == "Synchronize":
            self._synchronize(call)
        elif method == "Shutdown":
            self._log.info("the runtime says that it shuts down")
            self._trunk.answer(call.stream, b"")
        else:
            self._trunk.refuse(call.stream, Code.UNIMPLEMENTED, f"method {method} is not known here")

    def _event(self, call: Call, method: EventMethod) -> None:
        try:
            request = method.parse(call.payload)
        except UNREADABLE as error:
            self._unreadable(call, error)
            return
        try:
            reply = method.ask(self._hooks, request)
        except Exception as error:  # a plugin outlives its hooks' mistakes
            if method.decides:
                self._refuse_for(call, error)
            else:
                self._failed(call.method, error)
                self._trunk.answer(call.stream, b"")
            return
        self._trunk.answer(call.stream, reply)
        if len(reply) > MAX_ANSWER:
            self._too_long(call, reply)

    def _configure(self, call: Call) -> None:
        following = NEXT.get((self._state, Step.CONFIGURE))
        if following is None:
            self._out_of_order(call)
            return
        request = self._parse(call, pb.ConfigureRequest.FromString)
        if request is None:
            return
        runtime = Runtime.from_configure(request)
        try:
            self._hooks.configure(runtime, request.config)
        except Exception as error:
            self._refuse_for(call, error)
            return
        self._configured = True
        self._state = following
        self._answer(call, pb.ConfigureResponse(events=SUBSCRIBED).SerializeToString())
        self._log.info("configured by {}", runtime)
        if self.launched and not runtime.synchronizes_launched:
            self._log.warning("this runtime tells nothing of containers that run already")
            self._ready()

    def _synchronize(self, call: Call) -> None:
        """Each failure of ours must end the connection: a runtime may keep a plugin that failed, but never ask it."""
        if (self._state, Step.LAST) not in NEXT:
            self._out_of_order(call)
            raise SessionError(f"the runtime synchronizes a plugin that is {self._state.value}")
        request = self._parse(call, pb.SynchronizeRequest.FromString)
        if request is None:
            raise SessionError("a Synchronize request that can't be read")
        if not self._parts.add(request, len(call.payload), call.timeout, self._clock()):
            text = f"Synchronize with more than {MAX_SYNCHRONIZE} bytes"
            self._trunk.refuse(call.stream, Code.RESOURCE_EXHAUSTED, text)
            raise SessionError(text)
        if request.more:
            self._answer(call, MORE)
            self._state = NEXT[self._state, Step.PART]
            return
        parts, self._parts = self._parts, _Parts()
        try:
            reply = synchronize_reply(self._hooks.synchronize(parts.pods, parts.containers))
        except Exception as error:
            self._refuse_for(call, error)
            raise SessionError(f"Synchronize failed: {_text(error)}") from error
        late = parts.late(self._clock())
        if late is not None:
            self._answer(call, reply)
            raise SessionError(f"Synchronize was answered {late:.1f} s after the runtime had given up")
        if not self._answer(call, reply):
            raise SessionError("the answer to Synchronize is too long")
        self._ready()

    def _ready(self) -> None:
        self._state = NEXT[self._state, Step.LAST]
        self._events = EVENT_METHODS
        self._synchronized = self.unannounced = True

    def _parse(self, call: Call, parse: Callable[[bytes], Any]) -> Any:
        """The request, or None when it is none, which has been answered then."""
        try:
            return parse(call.payload)
        except UNREADABLE as error:
            self._unreadable(call, error)
            return None

    def _unreadable(self, call: Call, error: Exception) -> None:
        self._log.warning("{}: a request that can't be read: {}", call.method, error)
        self._trunk.refuse(call.stream, Code.INTERNAL, f"{call.method}: a request that can't be read: {error}")

    def _answer(self, call: Call, reply: bytes) -> bool:
        """End the call; False when the answer is too long, which makes it a status in the layer below."""
        self._trunk.answer(call.stream, reply)
        if len(reply) > MAX_ANSWER:
            self._too_long(call, reply)
            return False
        return True

    def _too_long(self, call: Call, reply: bytes) -> None:
        self._log.error("{}: an answer of {} bytes, the most is {}", call.method, len(reply), MAX_ANSWER)

    def _out_of_order(self, call: Call) -> None:
        text = f"{call.method}: plugin {self._index}-{self._name} is {self._state.value}"
        self._log.warning("{}; refused", text)
        self._trunk.refuse(call.stream, Code.FAILED_PRECONDITION, text)

    def _refuse_for(self, call: Call, error: Exception) -> None:
        self._failed(call.method, error)
        if isinstance(error, HookError):
            text = str(error)
        else:  # its own text may quote a container's environment
            text = f"plugin {self._index}-{self._name}: {call.method} failed ({_text(error)}); see the plugin's log"
        self._trunk.refuse(call.stream, Code.UNKNOWN, text)

    def _failed(self, method: str, error: Exception) -> None:
        if not isinstance(error, HookError):  # which is a decision, and the hook's own to log
            self._log.opt(exception=error).error("{} failed", method)

    def _tell(self, what: str, hook: Callable[[], None]) -> None:
        try:
            hook()
        except Exception as error:
            self._failed(what, error)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, HookError) else type(error).__name__


class _Parts:
    """What has come of one Synchronize. A part may have containers of pods that are in another."""

    def __init__(self) -> None:
        self.pods: list[pb.PodSandbox] = []
        self.containers: list[pb.Container] = []
        self._size = 0
        self._deadline: float | None = None  # of all parts together, by the session's clock

    def add(self, request: pb.SynchronizeRequest, size: int, timeout: float | None, now: float) -> bool:
        """False when it is too much."""
        if not self._size and timeout is not None:
            self._deadline = now + timeout
        self._size += size
        if self._size > MAX_SYNCHRONIZE:
            return False
        self.pods.extend(request.pods)
        self.containers.extend(request.containers)
        return True

    def late(self, now: float) -> float | None:
        """Seconds by which the deadline has passed, None when it has not."""
        return now - self._deadline if self._deadline is not None and now > self._deadline else None

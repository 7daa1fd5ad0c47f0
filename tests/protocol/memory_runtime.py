"""A runtime in memory: the other end of a Session, bytes passed by hand, nothing happening by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from nri_cpu.cpuset import CPUSet
from nri_cpu.nri import nri_pb2 as pb
from nri_cpu.nri.errors import SessionError
from nri_cpu.nri.hooks import Updates
from nri_cpu.nri.methods import PLUGIN_SERVICE
from nri_cpu.nri.runtime import Runtime
from nri_cpu.nri.session import Session, State
from nri_cpu.ttrpc.client import Answer
from nri_cpu.ttrpc.errors import ProtocolError
from nri_cpu.ttrpc.server import Call
from nri_cpu.ttrpc.trunk import Trunk

CONFIGURE = pb.ConfigureRequest(runtime_name="containerd", runtime_version="v2.1.4", request_timeout=2000)


class RecordingHooks:
    """Hooks that write down what they are asked, by ids, and answer or raise what the test has put into `answers`."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [asked for asked in self.asked if asked[0] == name]

    def configure(self, runtime: Runtime, config: str) -> None:
        self._asked(None, "configure", str(runtime), config)

    def synchronize(self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> Updates:
        updates: Updates = self._asked((), "synchronize", [p.id for p in pods], [c.id for c in containers])
        return updates

    def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> tuple[CPUSet | None, Updates]:
        answer: tuple[CPUSet | None, Updates] = self._asked((None, ()), "create_container", pod.id, container.id)
        return answer

    def update_container(self, pod: pb.PodSandbox, container: pb.Container, resources: pb.LinuxResources) -> Updates:
        updates: Updates = self._asked((), "update_container", pod.id, container.id, resources.cpu.cpus)
        return updates

    def stop_container(self, pod: pb.PodSandbox, container: pb.Container) -> Updates:
        updates: Updates = self._asked((), "stop_container", pod.id, container.id)
        return updates

    def notify(self, event: int, pod: pb.PodSandbox, container: pb.Container | None) -> None:
        self._asked(None, "notify", event, pod.id, None if container is None else container.id)

    def synchronized(self) -> None:
        self._asked(None, "synchronized")

    def disconnected(self, reason: str) -> None:
        self._asked(None, "disconnected", reason)

    def _asked(self, default: Any, name: str, *facts: Any) -> Any:
        self.asked.append((name, *facts))
        answer = self.answers.get(name, default)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Peer:
    """The runtime's side of a session. `closed` is why the session wants its connection closed."""

    def __init__(
        self,
        hooks: RecordingHooks | None = None,
        *,
        launched: bool = False,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.hooks = hooks or RecordingHooks()
        self.session = Session(self.hooks, "nri-cpu", "10", launched=launched, clock=clock)
        self.trunk = Trunk(server_id=2, client_id=1)
        self.heard: list[Call] = []  # what the plugin calls
        self.answers: dict[int, Answer] = {}
        self.closed: Exception | None = None

    def start(self) -> Peer:
        self.session.start()
        self._flush()
        return self

    def accept(self) -> Peer:
        """Answer RegisterPlugin."""
        self.trunk.answer(self.heard[0].stream, b"")
        self.exchange()
        return self

    def refuse(self, code: int, text: str) -> Peer:
        self.trunk.refuse(self.heard[0].stream, code, text)
        self.exchange()
        return self

    def configure(self) -> Peer:
        assert self.ask("Configure", CONFIGURE).error is None
        return self

    def synchronize(self, pods: Sequence[str] = (), containers: Sequence[str] = (), more: bool = False) -> Answer:
        return self.ask("Synchronize", synchronize(pods, containers, more))

    def ask(
        self, method: str, request: Message | bytes = b"", service: str = PLUGIN_SERVICE, timeout: float | None = 2.0
    ) -> Answer:
        """The plugin's answer to a call."""
        payload = request if isinstance(request, bytes) else request.SerializeToString()
        stream = self.trunk.call(service, method, payload, timeout)
        self.exchange()
        return self.answers.pop(stream)

    def exchange(self) -> None:
        """Hand the session what the runtime has to send, then the other way round."""
        self.deliver(self.trunk.data_to_send())

    def deliver(self, data: bytes) -> None:
        try:
            self.session.receive(data)
        except (SessionError, ProtocolError) as error:
            self.closed = error
        self._flush()
        if self.closed is not None:
            self.session.lost(str(self.closed))

    def _flush(self) -> None:
        for event in self.trunk.receive(self.session.data_to_send()):
            if isinstance(event, Call):
                self.heard.append(event)
            else:
                self.answers[event.stream] = event
        self.session.written()


def synchronize(pods: Sequence[str], containers: Sequence[str], more: bool = False) -> pb.SynchronizeRequest:
    return pb.SynchronizeRequest(
        pods=[pb.PodSandbox(id=pod) for pod in pods],
        containers=[pb.Container(id=container) for container in containers],
        more=more,
    )


def peer_in(state: State, hooks: RecordingHooks | None = None) -> Peer:
    """A peer whose session has come to `state` the usual way."""
    peer = Peer(hooks)
    if state is State.NEW:
        return peer
    peer.start()
    if state is State.REGISTERING:
        return peer
    peer.accept()
    if state is State.REGISTERED:
        return peer
    peer.configure()
    if state is State.SYNCHRONIZING:
        peer.synchronize(["p0"], ["c0"], more=True)
    elif state is not State.CONFIGURED:
        peer.synchronize()
    if state is State.CLOSED:
        peer.session.lost("closed by the test")
    assert peer.session.state is state
    return peer

"""How the kubelet gets to know us: it finds our socket in its plugins_registry, asks who we are, and says whether it
takes us (dra-protocol 1.3, 1.4). What it said last is kept, for people and probes (fault A32).

GetInfo touches nothing that anything else holds: a kubelet waits 1 s for it, and newer ones ask again and again and
forget a plugin that does not answer (fault K6).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import grpc
from loguru import logger

from dra.claims import printable
from dra.devices import DRIVER
from dra.kubelet import health_service, service
from dra.kubelet import registration_pb2 as pb
from dra.kubelet.calls import method
from dra.slices.pace import Clock

# Threads of the socket's server. Several: a client that opens a call and never sends its request holds one.
WORKERS = 8
# When people are told that the kubelet has not called yet, in seconds (fault A32).
_OVERDUE = 30.0

_SERVICE = "pluginregistration.Registration"
# What is served on the endpoint. The kubelet takes the first DRA service that it knows, so the order counts.
_VERSIONS = (*service.SERVICES, *health_service.SERVICES)


class RegistrationState(Enum):
    """Where the registration stands."""

    WAITING = "waiting"  # the kubelet has not said anything yet
    REGISTERED = "registered"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RegistrationStatus:
    """What the kubelet said last. `reason`: why it refused, in its words on one line; empty where it gave none."""

    state: RegistrationState
    reason: str = ""


class Registration:
    """The registration service, and what came of it.

    `endpoint`: the DRA service's socket, an absolute path; `watched`: the directory that the kubelet watches;
    `on_registered` is called each time that the kubelet takes us, so also after a restart of it; not for long work.
    """

    def __init__(
        self, endpoint: Path, watched: Path, on_registered: Callable[[], None], clock: Clock | None = None
    ) -> None:
        info = pb.PluginInfo(type="DRAPlugin", name=DRIVER, endpoint=str(endpoint), supported_versions=_VERSIONS)
        self._info: bytes = info.SerializeToString()
        self._watched = watched
        self._on_registered = on_registered
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self.forget()

    @property
    def status(self) -> RegistrationStatus:
        """What the kubelet said last; any thread may ask."""
        with self._lock:
            return self._status

    def forget(self) -> None:
        """The kubelet is yet to call: so at the start, and so when the socket has gone, by which it forgets us."""
        with self._lock:
            self._asked = False
            self._status = RegistrationStatus(RegistrationState.WAITING)
            self._overdue_from = self._clock.now() + _OVERDUE

    def look(self) -> None:
        """To be called each second: tells once that the kubelet has not called for too long."""
        with self._lock:
            now, waiting = self._clock.now(), self._status.state is RegistrationState.WAITING
            overdue = waiting and now >= self._overdue_from
            if overdue:
                self._overdue_from = math.inf
        if overdue:
            logger.warning("{}", self.overdue_message())

    def overdue_message(self) -> str | None:
        """Why we are not registered, for people, and what to do: words for each of three causes (fault A32); None when
        we are."""
        with self._lock:
            status, asked = self._status, self._asked
        if status.state is RegistrationState.REGISTERED:
            return None
        if status.state is RegistrationState.REFUSED:
            return f"the kubelet refuses {DRIVER}: {status.reason or _NO_REASON}"
        if asked:
            return (
                f"the kubelet has asked who serves {DRIVER}, but not said whether it takes it: its log has the reason"
            )
        return (
            f"the kubelet never called: it has to watch {self._watched}; check that it runs, that its --root-dir is "
            "what --kubelet-root-dir says, and that it sees the same directory as dra-cpu (hostPath mount)"
        )

    def handler(self) -> grpc.GenericRpcHandler:
        """The service as gRPC wants it."""
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                # The request is empty: there is nothing to read in it.
                "GetInfo": grpc.unary_unary_rpc_method_handler(self._get_info),
                "NotifyRegistrationStatus": method(pb.RegistrationStatus, self._notify),
            },
        )

    def _get_info(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._asked = True
        return self._info

    def _notify(self, said: pb.RegistrationStatus, context: grpc.ServicerContext) -> pb.RegistrationStatusResponse:
        if said.plugin_registered:
            if self._changed_to(RegistrationStatus(RegistrationState.REGISTERED)):
                logger.info("the kubelet has registered {}", DRIVER)
            self._tell()
        else:
            status = RegistrationStatus(RegistrationState.REFUSED, printable(said.error))
            if self._changed_to(status):
                logger.error("{}", self.overdue_message())
            # As the Go helper answers; the process goes on, since the kubelet tries again.
            context.abort(grpc.StatusCode.UNKNOWN, f"{DRIVER} is not registered: {status.reason or _NO_REASON}")
        return pb.RegistrationStatusResponse()

    def _changed_to(self, status: RegistrationStatus) -> bool:
        with self._lock:
            changed = status != self._status
            self._status = status
        return changed

    def _tell(self) -> None:
        try:
            self._on_registered()
        except Exception:  # the kubelet's registration holds all the same
            logger.exception("what follows a registration failed")


_NO_REASON = "it gave no reason, its log may have one"

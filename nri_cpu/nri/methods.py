"""Which of the runtime's calls asks which hook, as plain data.

NRI before 0.12 sends most events as StateChange, later ones have a method each; both lead to the same hooks, since a
runtime falls back to the former when a plugin lacks one of the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from nri_cpu.nri import nri_pb2 as pb
from nri_cpu.nri.hooks import Hooks
from nri_cpu.nri.replies import create_reply, stop_reply, update_reply

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"

# Bit n - 1 is event n. Bits above REMOVE_CONTAINER make runtimes before NRI 0.10 drop the plugin, and no bits at all
# would be all events, among them the validation of adjustments, where a failure of ours stops every container.
SUBSCRIBED: Final = sum(
    1 << (event - 1)
    for event in (
        pb.STOP_POD_SANDBOX,
        pb.REMOVE_POD_SANDBOX,
        pb.CREATE_CONTAINER,
        pb.POST_CREATE_CONTAINER,
        pb.UPDATE_CONTAINER,
        pb.STOP_CONTAINER,
        pb.REMOVE_CONTAINER,
    )
)

# Events that our schema knows. A number may be of a later one; it is answered like the others.
_KNOWN_EVENTS: Final = range(pb.RUN_POD_SANDBOX, pb.LAST)


@dataclass(frozen=True, slots=True)
class EventMethod:
    """How a call becomes a question to a hook, and the hook's answer the call's.

    `decides`: an exception of the hook refuses what the runtime is about to do. Otherwise it has been done (Stop,
    Remove, Post...), and an error would gain nothing but, on some runtimes, a pod that can't be stopped.
    """

    parse: Callable[[bytes], Any]
    ask: Callable[[Hooks, Any], bytes]
    decides: bool = False


def _create_container(hooks: Hooks, request: pb.CreateContainerRequest) -> bytes:
    cpus, updates = hooks.create_container(request.pod, request.container)
    return create_reply(cpus, updates)


def _update_container(hooks: Hooks, request: pb.UpdateContainerRequest) -> bytes:
    return update_reply(hooks.update_container(request.pod, request.container, request.linux_resources))


def _stop_container(hooks: Hooks, request: pb.StopContainerRequest) -> bytes:
    return stop_reply(hooks.stop_container(request.pod, request.container))


def _state_change(hooks: Hooks, request: pb.StateChangeEvent) -> bytes:
    if request.event in _KNOWN_EVENTS:
        hooks.notify(request.event, request.pod, request.container if request.HasField("container") else None)
    return b""


class _PodMessage(Protocol):
    @property
    def pod(self) -> pb.PodSandbox: ...


class _ContainerMessage(_PodMessage, Protocol):
    @property
    def container(self) -> pb.Container: ...


def _pod_event(event: int, parse: Callable[[bytes], _PodMessage]) -> EventMethod:
    def ask(hooks: Hooks, request: _PodMessage) -> bytes:
        hooks.notify(event, request.pod, None)
        return b""

    return EventMethod(parse, ask)


def _container_event(event: int, parse: Callable[[bytes], _ContainerMessage]) -> EventMethod:
    def ask(hooks: Hooks, request: _ContainerMessage) -> bytes:
        hooks.notify(event, request.pod, request.container)
        return b""

    return EventMethod(parse, ask)


# ValidateContainerAdjustment is left out: who has it is asked before every creation, and must not fail.
EVENT_METHODS: Final[Mapping[str, EventMethod]] = {
    "CreateContainer": EventMethod(pb.CreateContainerRequest.FromString, _create_container, decides=True),
    "UpdateContainer": EventMethod(pb.UpdateContainerRequest.FromString, _update_container, decides=True),
    "StopContainer": EventMethod(pb.StopContainerRequest.FromString, _stop_container),
    "StateChange": EventMethod(pb.StateChangeEvent.FromString, _state_change),
    "RunPodSandbox": _pod_event(pb.RUN_POD_SANDBOX, pb.RunPodSandboxRequest.FromString),
    "UpdatePodSandbox": _pod_event(pb.UPDATE_POD_SANDBOX, pb.UpdatePodSandboxRequest.FromString),
    "PostUpdatePodSandbox": _pod_event(pb.POST_UPDATE_POD_SANDBOX, pb.PostUpdatePodSandboxRequest.FromString),
    "StopPodSandbox": _pod_event(pb.STOP_POD_SANDBOX, pb.StopPodSandboxRequest.FromString),
    "RemovePodSandbox": _pod_event(pb.REMOVE_POD_SANDBOX, pb.RemovePodSandboxRequest.FromString),
    "PostCreateContainer": _container_event(pb.POST_CREATE_CONTAINER, pb.PostCreateContainerRequest.FromString),
    "StartContainer": _container_event(pb.START_CONTAINER, pb.StartContainerRequest.FromString),
    "PostStartContainer": _container_event(pb.POST_START_CONTAINER, pb.PostStartContainerRequest.FromString),
    "PostUpdateContainer": _container_event(pb.POST_UPDATE_CONTAINER, pb.PostUpdateContainerRequest.FromString),
    "RemoveContainer": _container_event(pb.REMOVE_CONTAINER, pb.RemoveContainerRequest.FromString),
}

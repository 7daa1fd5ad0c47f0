"""What a plugin is, for this package: the hooks that it is asked through.

All are called on the event loop, one at a time, and must not block: while a hook runs the runtime holds its lock, and
every other container of the node waits. An answer later than the runtime's request timeout (2 s) costs the connection
(faults N3, N4). No hook may call the runtime.

Messages are lent: a hook copies what it keeps, since any part of a message keeps the whole of it in memory. Anything in
them may be absent or empty, the pod above all; for containers that are going away it may have nothing but an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nri_cpu.cpuset import CPUSet
from nri_cpu.nri.nri_pb2 import Container, LinuxResources, PodSandbox
from nri_cpu.nri.runtime import Runtime

# What other containers shall get: a cpuset, never empty, and the ids of the containers that get it; each id at most
# once in all. The order is the order on the wire.
Updates = Sequence[tuple[CPUSet, Sequence[str]]]

_NAME_LABEL = "io.kubernetes.container.name"


class HookError(Exception):
    """A hook refuses, and the runtime fails what it asked about: the text reaches the pod's events as it is."""


class Hooks(Protocol):
    """A plugin. HookError is a refusal with a text of the hook's own; any other exception is a fault of the plugin,
    logged with its traceback and answered with a text that names plugin and hook. The connection survives either,
    except in `synchronize`."""

    def configure(self, runtime: Runtime, config: str) -> None:
        """A runtime has taken us in. `config` is the text of our file in its configuration directory when it started
        us itself, else empty. Raising makes the runtime close the connection."""

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> Updates:
        """All that runs, whatever was known before; containers may come without their pods. Raising closes the
        connection, and it is tried again on a new one (a runtime may keep, but not call, a plugin that failed)."""

    def create_container(self, pod: PodSandbox, container: Container) -> tuple[CPUSet | None, Updates]:
        """The cpuset for a container that is about to be created, None to leave it as it is, and updates for others:
        one for this container makes the runtime fail the creation. Raising fails it too."""

    def update_container(self, pod: PodSandbox, container: Container, resources: LinuxResources) -> Updates:
        """Someone asks for other resources of a container. An update for the container itself, which replaces what
        was asked, must be the last one (fault F9). Raising fails the update."""

    def stop_container(self, pod: PodSandbox, container: Container) -> Updates:
        """A container has ended. What is raised is logged, and answered as if there were no updates."""

    def notify(self, event: int, pod: PodSandbox, container: Container | None) -> None:
        """Any other event, by its number in nri_pb2.Event. What is raised is logged only.

        CREATE_CONTAINER, UPDATE_CONTAINER and STOP_CONTAINER come here if a runtime sends them as state changes, whose
        answer has no room for a decision; none is known to.
        """

    def synchronized(self) -> None:
        """The answer to Synchronize has been written: from now on this plugin decides.

        A runtime before NRI 0.7 never synchronizes a plugin that it has started itself. Then this follows `configure`
        without a `synchronize`: containers may run, of which events tell one by one.
        """

    def disconnected(self, reason: str) -> None:
        """The connection is lost; once for each that was configured. Containers may be created without us until
        the next `synchronize`."""


def container_name(container: Container) -> str:
    """The container's name in its pod. CRI-O leaves the field empty for containers that the kubelet didn't make; the
    label that CRI clients set is the same name. Empty if neither is there."""
    return container.name or container.labels.get(_NAME_LABEL, "")

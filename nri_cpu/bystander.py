"""A plugin that does nothing: what a plugin that the runtime has started is while another nri-cpu is connected.

It can't stand by as others do, since a runtime waits seconds for each plugin that it starts, and some don't start
without it. Two nri-cpu that both decide would conflict, and the runtime would fail every container.
"""

from __future__ import annotations

from collections.abc import Sequence

from nri_cpu.cpuset import CPUSet
from nri_cpu.nri.hooks import Updates
from nri_cpu.nri.nri_pb2 import Container, LinuxResources, PodSandbox
from nri_cpu.nri.runtime import Runtime


class Bystander:
    """Hooks of NRI (nri_cpu.nri.hooks.Hooks) that leave everything as it is."""

    def configure(self, runtime: Runtime, config: str) -> None:
        pass

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> Updates:
        return ()

    def create_container(self, pod: PodSandbox, container: Container) -> tuple[CPUSet | None, Updates]:
        return None, ()

    def update_container(self, pod: PodSandbox, container: Container, resources: LinuxResources) -> Updates:
        return ()

    def stop_container(self, pod: PodSandbox, container: Container) -> Updates:
        return ()

    def notify(self, event: int, pod: PodSandbox, container: Container | None) -> None:
        pass

    def synchronized(self) -> None:
        pass

    def disconnected(self, reason: str) -> None:
        pass

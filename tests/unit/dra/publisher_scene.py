"""A publisher and a server in memory in one virtual time, for tests of what happens over hours."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from loguru import logger

from dra.devices import Device, DeviceMode, GroupBy, devices_of
from dra.slices.api import ApiError
from dra.slices.objects import Manifest
from dra.slices.publisher import Publisher
from tests.unit.dra.slice_server import SliceServer
from tests.unit.dra.virtual_time import VirtualTime
from tests.unit.topology.machines import box, machine

NODE = "node-a"
HOUR = 3600.0


@functools.cache
def cpus(number: int, pcie: bool = False) -> tuple[Device, ...]:
    topology = machine(cores=number)
    return devices_of(topology, topology.online, DeviceMode.INDIVIDUAL, pcie_roots=pcie)


def grouped() -> tuple[Device, ...]:
    topology = box()
    return devices_of(topology, topology.online, DeviceMode.GROUPED, GroupBy.NUMANODE)


class Scene:
    """A publisher and a server in one time; `run` lets it pass and ends with the publisher's end."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.server = SliceServer(self.time)
        self.publisher = Publisher(self.server, NODE, self.time)
        self.log: list[str] = []
        self.seen: dict[float, tuple[bool, str | None]] = {}

    def run(self, until: float, look: tuple[float, ...] = ()) -> None:
        """`look`: moments at which `published` and `problem` are seen."""
        for moment in look:
            self.time.at(moment, lambda moment=moment: self.seen.update({moment: self.state}))  # type: ignore[misc]
        self.time.at(until, self.publisher.stop)
        self.publisher.run()

    @property
    def state(self) -> tuple[bool, str | None]:
        return self.publisher.published, self.publisher.problem

    def fail(self, error: ApiError, *verbs: str) -> None:
        """Each request of these verbs, of all where none is named."""

        def fault(verb: str, manifest: Manifest | None) -> None:
            if not verbs or verb in verbs:
                raise error

        self.server.fault = fault

    def heal(self) -> None:
        self.server.fault = lambda verb, manifest: None

    @property
    def pools(self) -> list[tuple[int, int, int]]:
        """Generation, count and devices of each slice."""
        return [
            (spec["pool"]["generation"], spec["pool"]["resourceSliceCount"], len(spec["devices"]))
            for spec in self.server.specs
        ]

    def first(self) -> str:
        return min(self.server.objects)


@contextlib.contextmanager
def made() -> Iterator[Scene]:
    """A scene whose log is kept."""
    scene = Scene()
    sink = logger.add(lambda message: scene.log.append(message.record["message"]), level="INFO")
    try:
        yield scene
    finally:
        logger.remove(sink)

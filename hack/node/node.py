"""A node in a box: a running box together with the QEMU process that it owns."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from hack.node.access import Box
from hack.node.channel import Channel
from hack.node.errors import QemuError
from hack.node.machine import Machine
from hack.node.qemu import Process


class Node(Box):
    """Made by launch.start, closed as a context manager; everything that Box says can be done with it."""

    def __init__(self, machine: Machine, process: Process, channel: Channel) -> None:
        super().__init__(process.directory, channel)
        self.machine = machine
        self._process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the box; its directory goes with it. May be called twice."""
        self._process.close()

    def check_alive(self) -> None:
        if self._process.ended():
            raise QemuError(
                f"the box is gone: {self._process.said() or 'QEMU ended'}; console: {self.console()[-1000:]}"
            )

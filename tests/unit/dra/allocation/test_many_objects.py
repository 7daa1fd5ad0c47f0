"""Machines whose CPUs are each a socket, a NUMA node and an L3 group of their own: work grows as their number does."""

import sys
from types import FrameType
from typing import Any

import pytest

from dra.allocation import AllocationOptions, NumaNodes, Strategy, allocate
from dra.allocation.machine import machine_of
from nri_cpu.topology import Cpu, Topology

ALL = AllocationOptions(Strategy.DISTRIBUTED, NumaNodes.ALL)


def instructions(cpus: int, options: AllocationOptions) -> int:
    """Of the interpreter, for the first request on a machine of so many CPUs: the same each time."""
    topology = Topology.of(Cpu(n, n, 0, -1, n, n, n) for n in range(cpus))
    machine_of.cache_clear()  # all else that is kept is kept by the machine
    number = 0

    def counted(frame: FrameType, event: str, _: object) -> Any:
        nonlocal number
        frame.f_trace_opcodes = True
        number += event == "opcode"
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        allocate(topology, topology.online, 8, options)
    finally:
        sys.settrace(before)
    return number


@pytest.mark.parametrize(
    "options", [AllocationOptions(), AllocationOptions(Strategy.SPREAD), ALL], ids=lambda options: options.strategy
)
def test_twice_as_many_objects_take_twice_the_work(options: AllocationOptions) -> None:
    assert instructions(400, options) < 2.4 * instructions(200, options)

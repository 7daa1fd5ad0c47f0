"""How good a packed choice is: what levels 1 to 5 of the specification count, by name and as one number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dra.allocation import cores
from dra.allocation.areas import cost_of
from dra.allocation.machine import Machine, numa_nodes_touched, touching


@dataclass(frozen=True, slots=True, order=True)
class Quality:
    """Smaller is better, from left to right: `cost` is levels 1 to 3 (dra.allocation.areas), then levels 4 and 5."""

    cost: int
    mixed: int
    broken: int


def quality_of(machine: Machine, free: int, cpus: int, align_l3: bool) -> Quality:
    """The quality of `cpus` out of `free`."""
    return Quality(cost_of(machine, cpus, align_l3), mixed(machine, cpus), broken(machine, free, cpus))


def mixed(machine: Machine, cpus: int) -> int:
    """Whether these CPUs are of more than one core type, as 0 or 1."""
    return int(len(machine.types) > 1 and all(cpus & ~each for each in machine.types))


def broken(machine: Machine, free: int, cpus: int) -> int:
    """How many cores were whole in `free` and are neither taken as a whole nor left alone."""
    parts = cores.touched(machine.shapes, cpus) & ~cores.whole(machine.shapes, cpus)
    return (parts & cores.whole(machine.shapes, free)).bit_count()


def packed_quality(machine: Machine, free: int, cpus: int, align_l3: bool) -> Mapping[str, int]:
    """The quality of `cpus` out of `free` by name, in the order in which it counts: smaller is better.

    NUMA nodes are the kernel's, also where nodes cross sockets, and level 2 counts their parts.
    """
    found = {
        "sockets": touching(machine.sockets, cpus),
        "numaNodes": numa_nodes_touched(machine, cpus),
    }
    if align_l3:
        found["l3Groups"] = touching(machine.l3_groups, cpus)
    found["coreTypesMixed"] = mixed(machine, cpus)
    found["coresBroken"] = broken(machine, free, cpus)
    return found

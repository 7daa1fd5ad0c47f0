"""How good a choice of CPUs is, counted anew and without haste; it shares no code with the allocator.

A quality is a mapping from what is counted to a number that is better when it is smaller, in the order in which it
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from dra.allocation import AllocationOptions, Strategy
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Topology


class Level(StrEnum):
    """What is counted."""

    UNEVEN = "uneven shares"
    SOCKETS = "sockets"
    NODES = "NUMA nodes"
    L3 = "L3 groups"
    CORES_SHORT = "cores short of one a CPU"
    TYPES = "core types mixed"
    BROKEN = "cores broken"
    IMBALANCE = "imbalance of what is left"


def quality(topology: Topology, free: CPUSet, cpus: CPUSet, options: AllocationOptions) -> Mapping[Level, int]:
    """That of `cpus`, which were taken from `free`."""
    sockets = _touched(topology.sockets.values(), cpus)
    nodes = _touched(topology.nodes.values(), cpus)
    l3_groups = {Level.L3: _touched(topology.l3_groups, cpus)} if options.align_l3 else {}
    packed = {Level.SOCKETS: sockets, Level.NODES: nodes, **l3_groups, **_of_cores(topology, free, cpus)}
    match options.strategy:
        case Strategy.SPREAD:
            short = len(cpus) - _touched(topology.cores, cpus)
            return {
                Level.SOCKETS: sockets,
                Level.NODES: nodes,
                Level.CORES_SHORT: short,
                **_of_cores(topology, free, cpus),
            }
        case Strategy.DISTRIBUTED if nodes > 1 and _even(topology, cpus, options):
            # The smallest standard deviation is the smallest sum of squares: the mean is the same for all choices.
            left = sum(len((node & free) - cpus) ** 2 for node in topology.nodes.values())
            return {Level.UNEVEN: 0, Level.NODES: nodes, Level.SOCKETS: sockets, Level.IMBALANCE: left}
        case Strategy.DISTRIBUTED if nodes == 1:
            return {Level.UNEVEN: 0, Level.NODES: nodes, **packed}
        case Strategy.DISTRIBUTED:
            return {Level.UNEVEN: 1, **packed}
        case _:
            return packed


def shares(topology: Topology, cpus: CPUSet) -> Mapping[int, CPUSet]:
    """What each NUMA node gives, of those that give anything."""
    return {number: node & cpus for number, node in topology.nodes.items() if not node.isdisjoint(cpus)}


def halves(topology: Topology, cpus: CPUSet) -> bool:
    """Whether any core is taken in part."""
    return any(not core.isdisjoint(cpus) and not core <= cpus for core in topology.cores)


def _touched(objects: Iterable[CPUSet], cpus: CPUSet) -> int:
    return sum(not each.isdisjoint(cpus) for each in objects)


def _of_cores(topology: Topology, free: CPUSet, cpus: CPUSet) -> dict[Level, int]:
    types = {topology.cpus[cpu].core_type for cpu in cpus}
    broken = sum(core <= free and not core.isdisjoint(cpus) and not core <= cpus for core in topology.cores)
    return {Level.TYPES: int(len(types) > 1), Level.BROKEN: broken}


def _even(topology: Topology, cpus: CPUSet, options: AllocationOptions) -> bool:
    """Whether each node gives at least the even share; what is left over may come from any of them."""
    given = shares(topology, cpus).values()
    unit = len(topology.cores[0]) if options.full_physical_cores else 1
    return min(map(len, given)) >= len(cpus) // unit // len(given) * unit

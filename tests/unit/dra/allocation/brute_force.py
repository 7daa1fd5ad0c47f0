"""The best there is, found by looking at every set of CPUs: what packed allocation must reach, by code of its own.

Sets of plain numbers and the words of the specification, nothing of the allocator; for a dozen free CPUs at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Topology

Vector = tuple[int, ...]


class Counted:
    """Counts levels 1 to 5 for choices out of `free`: sockets, NUMA nodes, L3 groups, types mixed, cores broken."""

    def __init__(self, topology: Topology, free: CPUSet, align_l3: bool) -> None:
        self._free = set(free)
        self._kinds = [
            {cpu.id: cpu.socket for cpu in topology.cpus.values()},
            {cpu.id: cpu.numa_node for cpu in topology.cpus.values()},
        ]
        if align_l3:
            self._kinds.append({cpu: number for number, group in enumerate(topology.l3_groups) for cpu in group})
        self._types = {cpu.id: cpu.core_type for cpu in topology.cpus.values()}
        self._cores = [set(core) for core in topology.cores]
        self._core_of = {cpu: number for number, core in enumerate(topology.cores) for cpu in core}

    def vector(self, cpus: Iterable[int]) -> Vector:
        chosen = set(cpus)
        counts = [len({kind[cpu] for cpu in chosen}) for kind in self._kinds]
        mixed = len({self._types[cpu] for cpu in chosen}) > 1
        touched = (self._cores[number] for number in {self._core_of[cpu] for cpu in chosen})
        broken = sum(core <= self._free and not core <= chosen for core in touched)
        return (*counts, int(mixed), broken)


def best_vector(
    topology: Topology, free: CPUSet, count: int, align_l3: bool, full_physical_cores: bool = False
) -> Vector | None:
    """The smallest vector that any `count` CPUs of `free` have; None if none of whole free cores alone has so many."""
    counted = Counted(topology, free, align_l3)
    choices: Iterable[Iterable[int]] = combinations(free, count)
    if full_physical_cores:
        whole = [set(core) for core in topology.cores if core <= free]
        unions = (set().union(*some) for number in range(len(whole) + 1) for some in combinations(whole, number))
        choices = (union for union in unions if len(union) == count)
    return min(map(counted.vector, choices), default=None)

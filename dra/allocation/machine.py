"""The machine as allocation sees it: sets of online CPUs as bit masks, prepared once for each topology.

CPU n is bit n of an int. Each object (core, L3 group, NUMA node, socket) is the mask of its online CPUs, so its width
is its own, never an average over the machine (fault R12), and a core is what the topology says, never a bare core id
(fault R11).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology.model import CoreType, Topology


@dataclass(frozen=True, slots=True)
class Machine:
    """All masks. Sockets and nodes are in order of their number, groups and cores in order of their lowest CPU.

    `types`: the CPUs of each core type that occurs, in the order in which equals are taken. `node_numbers`: the
    number of each of `nodes`.
    """

    cpus: int
    sockets: tuple[int, ...]
    nodes: tuple[int, ...]
    node_numbers: tuple[int, ...]
    l3_groups: tuple[int, ...]
    cores: tuple[int, ...]
    types: tuple[int, ...]


@lru_cache(maxsize=16)
def machine_of(topology: Topology) -> Machine:
    """The masks of a topology; the same object again for an equal one."""
    types = (
        CPUSet(cpu.id for cpu in topology.cpus.values() if cpu.core_type is core_type).mask for core_type in CoreType
    )
    return Machine(
        cpus=topology.online.mask,
        sockets=_masks(topology.sockets.values()),
        nodes=_masks(topology.nodes.values()),
        node_numbers=tuple(topology.nodes),
        l3_groups=_masks(topology.l3_groups),
        cores=_masks(topology.cores),
        types=tuple(mask for mask in types if mask),
    )


def _masks(sets: Iterable[CPUSet]) -> tuple[int, ...]:
    return tuple(each.mask for each in sets)

"""Topology: what the machine looks like, as a pure value. Sets of CPUs only; who has them is no part of it.

A core is identified by (socket, die, cluster, core id), never by the core id alone: kernels repeat core ids on every
socket, on ARM in every cluster (fault R11). Sizes belong to the single object: cores of a hybrid or partly
offline machine have different widths (fault R12), so there is no "threads per core" here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from nri_cpu.cpuset import EMPTY, CPUSet


class CoreType(StrEnum):
    """Kind of core, in the words of the attribute dra.cpu/coreType; equals are taken in this order."""

    STANDARD = "standard"
    P_CORE = "p-core"
    E_CORE = "e-core"


@dataclass(frozen=True, slots=True)
class Cpu:
    """One online CPU (hardware thread). `die` and `cluster` are -1 where there is none, `l3` is None without an L3."""

    id: int
    socket: int
    die: int
    cluster: int
    core: int
    numa_node: int
    l3: int | None
    core_type: CoreType = CoreType.STANDARD


@dataclass(frozen=True, slots=True)
class Topology:
    """The machine. Built by `Topology.of`; all sets are of online CPUs, all tuples are in order of their lowest CPU.

    `offline_nodes`: NUMA node of CPUs that are present and not on line, for those of which the kernel tells.
    """

    cpus: Mapping[int, Cpu]
    online: CPUSet
    present: CPUSet
    sockets: Mapping[int, CPUSet]
    nodes: Mapping[int, CPUSet]
    l3_groups: tuple[CPUSet, ...]
    cores: tuple[CPUSet, ...]
    offline_nodes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, cpus: Iterable[Cpu], present: CPUSet = EMPTY, offline_nodes: Mapping[int, int] | None = None
    ) -> Topology:
        """The topology of these online CPUs; `present` may leave them out."""
        by_id = {cpu.id: cpu for cpu in sorted(cpus, key=lambda cpu: cpu.id)}
        online = CPUSet(by_id)

        def grouped(key: Callable[[Cpu], object]) -> dict[object, CPUSet]:
            groups: dict[object, list[int]] = {}
            for cpu in by_id.values():
                groups.setdefault(key(cpu), []).append(cpu.id)
            return {name: CPUSet(ids) for name, ids in groups.items()}

        def numbered(key: Callable[[Cpu], int]) -> Mapping[int, CPUSet]:
            numbers = sorted({key(cpu) for cpu in by_id.values()})
            groups = grouped(key)
            return MappingProxyType({number: groups[number] for number in numbers})

        return cls(
            cpus=MappingProxyType(by_id),
            online=online,
            present=present | online,
            sockets=numbered(lambda cpu: cpu.socket),
            nodes=numbered(lambda cpu: cpu.numa_node),
            # CPUs of one NUMA node that have no L3 together count as one group.
            l3_groups=tuple(grouped(lambda cpu: (cpu.socket, cpu.numa_node, cpu.l3)).values()),
            cores=tuple(grouped(lambda cpu: (cpu.socket, cpu.die, cpu.cluster, cpu.core)).values()),
            offline_nodes=MappingProxyType(dict(offline_nodes or {})),
        )

    def __hash__(self) -> int:
        """Cheap: topologies that differ and have the same online CPUs are rare."""
        return hash(self.online)

    @property
    def smt_enabled(self) -> bool:
        """Whether any core has more than one online thread."""
        return any(len(core) > 1 for core in self.cores)

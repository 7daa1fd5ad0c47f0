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
from typing import TypeVar

from nri_cpu.cpuset import EMPTY, CPUSet

_Key = TypeVar("_Key")
_Name = TypeVar("_Name", int, str)
_Value = TypeVar("_Value")


class CoreType(StrEnum):
    """Kind of core, in the words of the attribute dra.cpu/coreType; equals are taken in this order."""

    STANDARD = "standard"
    P_CORE = "p-core"
    E_CORE = "e-core"


@dataclass(frozen=True, slots=True)
class Cpu:
    """One online CPU (hardware thread). `die` and `cluster` are -1 where there is none.

    `l3` is the number of its L3 cache, which no other cache of the machine has, and None without an L3.
    """

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
    """The machine. Built by `Topology.of`. Sets are of online CPUs where nothing else is said; tuples are in order of
    their lowest CPU, mappings in order of their keys.

    `l3_groups`: the CPUs of each L3 cache, which may be those of several NUMA nodes (sub-NUMA clustering, fake nodes);
    CPUs of one NUMA node that have no L3 are one group. `nodes`: NUMA nodes that have online CPUs; `memory_nodes`:
    those that have memory and no online CPU; `memoryless_nodes`: those of `nodes` that have no memory, as far as the
    kernel tells. `present`: CPUs that are plugged in; `possible`: those that ever can be.
    `isolated`: those that the kernel's scheduler leaves alone (isolcpus). `offline_nodes`: NUMA node of CPUs that are
    present and not on line, for those of which the kernel tells. `pcie_roots`: CPUs local to each PCIe root bus, by its
    name (pci0000:00), on line or not. These are what firmware says of devices; where CPUs are, only `cpus` says
    (fault C6).
    """

    cpus: Mapping[int, Cpu]
    online: CPUSet
    present: CPUSet
    sockets: Mapping[int, CPUSet]
    nodes: Mapping[int, CPUSet]
    l3_groups: tuple[CPUSet, ...]
    cores: tuple[CPUSet, ...]
    offline_nodes: Mapping[int, int] = field(default_factory=dict)
    possible: CPUSet = EMPTY
    isolated: CPUSet = EMPTY
    dies: tuple[CPUSet, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    memoryless_nodes: tuple[int, ...] = ()
    pcie_roots: Mapping[str, CPUSet] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        cpus: Iterable[Cpu],
        present: CPUSet = EMPTY,
        offline_nodes: Mapping[int, int] | None = None,
        *,
        possible: CPUSet = EMPTY,
        isolated: CPUSet = EMPTY,
        memory_nodes: Iterable[int] = (),
        memoryless_nodes: Iterable[int] = (),
        pcie_roots: Mapping[str, CPUSet] | None = None,
    ) -> Topology:
        """The topology of these online CPUs; `present` may leave them out, `possible` those that are present. Of
        `memory_nodes` those with online CPUs are passed over, of `memoryless_nodes` those without."""
        by_id = {cpu.id: cpu for cpu in sorted(cpus, key=lambda cpu: cpu.id)}
        online = CPUSet(by_id)

        def grouped(key: Callable[[Cpu], object]) -> tuple[CPUSet, ...]:
            return tuple(_grouped(by_id.values(), key).values())

        def numbered(key: Callable[[Cpu], int]) -> Mapping[int, CPUSet]:
            return _ordered(_grouped(by_id.values(), key))

        nodes = numbered(lambda cpu: cpu.numa_node)
        return cls(
            cpus=MappingProxyType(by_id),
            online=online,
            present=present | online,
            sockets=numbered(lambda cpu: cpu.socket),
            nodes=nodes,
            l3_groups=grouped(lambda cpu: ("node", cpu.numa_node) if cpu.l3 is None else cpu.l3),
            cores=grouped(lambda cpu: (cpu.socket, cpu.die, cpu.cluster, cpu.core)),
            offline_nodes=_ordered(offline_nodes or {}),
            possible=possible | present | online,
            isolated=isolated,
            dies=grouped(lambda cpu: (cpu.socket, cpu.die)),
            memory_nodes=tuple(sorted(set(memory_nodes) - set(nodes))),
            memoryless_nodes=tuple(sorted(set(memoryless_nodes) & set(nodes))),
            pcie_roots=_ordered(pcie_roots or {}),
        )

    def __hash__(self) -> int:
        """Cheap: topologies that differ and have the same online CPUs are rare."""
        return hash(self.online)

    @property
    def smt_enabled(self) -> bool:
        """Whether any core has more than one online thread."""
        return any(len(core) > 1 for core in self.cores)

    @property
    def l3_caches(self) -> frozenset[int]:
        """The numbers of the L3 caches; an L3 group without a cache is none of them."""
        return frozenset(cpu.l3 for cpu in self.cpus.values() if cpu.l3 is not None)


def _grouped(cpus: Iterable[Cpu], key: Callable[[Cpu], _Key]) -> dict[_Key, CPUSet]:
    groups: dict[_Key, list[int]] = {}
    for cpu in cpus:
        groups.setdefault(key(cpu), []).append(cpu.id)
    return {name: CPUSet(ids) for name, ids in groups.items()}


def _ordered(mapping: Mapping[_Name, _Value]) -> Mapping[_Name, _Value]:
    return MappingProxyType({name: mapping[name] for name in sorted(mapping)})

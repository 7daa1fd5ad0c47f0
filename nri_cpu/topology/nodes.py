"""NUMA nodes: the node of each CPU, and the nodes that have memory only.

A node's list is what counts; the link in a CPU's own directory tells of those that no list has, as of offline ones. A
CPU in several lists (numa=fake makes such nodes) belongs to the lowest of them. No node at all is node 0 (fault R14).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology.files import CPUS, NODES, Sysfs
from nri_cpu.topology.oddities import Oddities

_TOTAL = re.compile(r"MemTotal:\s+([0-9]{1,18}) kB")


@dataclass(frozen=True, slots=True)
class Nodes:
    """`of`: the node of each online CPU, 0 where the kernel tells none. `offline`: that of CPUs that are present and
    not on line, for those of which it tells. `memory`: nodes that have memory and no online CPU."""

    of: Mapping[int, int]
    offline: Mapping[int, int]
    memory: tuple[int, ...]


def read_nodes(sysfs: Sysfs, online: CPUSet, present: CPUSet, oddities: Oddities) -> Nodes:
    listed: dict[int, int] = {}
    numbers = sysfs.numbered(NODES, "node")
    for node in numbers:
        for cpu in _cpus(sysfs, node, oddities) & present:
            if listed.setdefault(cpu, node) != node:
                oddities.note("several NUMA nodes, the lowest counts, for CPUs {}", cpu)
    found = {**listed, **_linked(sysfs, present - CPUSet(listed))}
    for cpu in online - CPUSet(found):
        found[cpu] = 0
        oddities.note("no NUMA node, taken as 0 for CPUs {}", cpu)
    of = {cpu: found[cpu] for cpu in online}
    return Nodes(
        of=of,
        offline={cpu: node for cpu, node in found.items() if cpu not in of},
        memory=_with_memory(sysfs, sorted(set(numbers) - set(of.values()))),
    )


def _cpus(sysfs: Sysfs, node: int, oddities: Oddities) -> CPUSet:
    path = f"{NODES}/node{node}"
    cpus = sysfs.cpu_list(f"{path}/cpulist")
    if cpus is None:
        cpus = sysfs.cpu_mask(f"{path}/cpumap")
    if cpus is None:
        oddities.note("no list of CPUs in {}", f"node{node}")
    return cpus or EMPTY


def _linked(sysfs: Sysfs, cpus: CPUSet) -> Mapping[int, int]:
    found = {}
    for cpu in cpus:
        if nodes := sysfs.numbered(f"{CPUS}/cpu{cpu}", "node"):
            found[cpu] = nodes[0]
    return found


def _with_memory(sysfs: Sysfs, nodes: Iterable[int]) -> tuple[int, ...]:
    """Those of these nodes that have memory. Each node's own file is asked: it is there on kernels that have no list of
    nodes with memory, or one that counts them differently."""
    found = []
    for node in nodes:
        total = _TOTAL.search(sysfs.text(f"{NODES}/node{node}/meminfo") or "")
        if total and int(total[1]):
            found.append(node)
    return tuple(found)

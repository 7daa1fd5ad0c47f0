"""NUMA nodes: the node of each CPU, the nodes that have memory only, and those that have CPUs only.

A node's list is what counts; the link in a CPU's own directory tells of those that no list has, as of offline ones. A
CPU in several lists (numa=fake makes such nodes) belongs to the lowest of them. No node at all is node 0 (fault R14).

Whether a node has memory is for its own meminfo to say: it is there on kernels that have no list of the nodes with
memory, or one that counts them differently. Without it the lists count, which speak of nodes that are on line for
the kernel only: an overlay may have added others, of whose memory nothing is known then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology.files import CPUS, NODES, Sysfs
from nri_cpu.topology.oddities import Oddities

_TOTAL = re.compile(r"MemTotal:\s+([0-9]{1,18}) kB")


@dataclass(frozen=True, slots=True)
class Nodes:
    """`of`: the node of each online CPU, 0 where the kernel tells none. `offline`: that of CPUs that are present and
    not on line, for those of which it tells. `memory`: nodes that have memory and no online CPU. `memoryless`: nodes
    that have online CPUs and no memory. A node of whose memory the kernel tells nothing is in neither."""

    of: Mapping[int, int]
    offline: Mapping[int, int]
    memory: tuple[int, ...]
    memoryless: tuple[int, ...]


def read_nodes(sysfs: Sysfs, online: CPUSet, present: CPUSet, oddities: Oddities) -> Nodes:
    """The nodes of a machine with these CPUs; every online CPU has one. `online` is among `present`. Nothing is raised:
    what is missing or contradicts itself goes to `oddities` (fault R14)."""
    numbers = sysfs.numbered(NODES, "node")
    listed = _listed(sysfs, numbers, present, oddities)
    found = {**listed, **_linked(sysfs, present - CPUSet(listed))}
    for cpu in online - CPUSet(found):
        found[cpu] = 0
        oddities.note("no NUMA node, taken as 0 for CPUs {}", cpu)
    of = {cpu: found[cpu] for cpu in online}
    with_cpus = set(of.values())
    memory = _memory(sysfs, numbers, oddities)
    return Nodes(
        of=of,
        offline={cpu: node for cpu, node in found.items() if cpu not in of},
        memory=tuple(node for node, some in memory.items() if some and node not in with_cpus),
        memoryless=tuple(node for node, some in memory.items() if not some and node in with_cpus),
    )


def _listed(sysfs: Sysfs, nodes: Iterable[int], present: CPUSet, oddities: Oddities) -> Mapping[int, int]:
    """The node of each CPU that is in a node's list."""
    found: dict[int, int] = {}
    known = repeated = EMPTY
    for node in nodes:
        cpus = _cpus(sysfs, node, oddities) & present
        repeated |= cpus & known
        found.update(dict.fromkeys(cpus - known, node))
        known |= cpus
    oddities.note_all("several NUMA nodes, the lowest counts, for CPUs {}", repeated)
    return found


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


def _memory(sysfs: Sysfs, nodes: Collection[int], oddities: Oddities) -> Mapping[int, bool]:
    """Whether each node has memory; those of which nothing tells are left out."""
    listed = _nodes_with_memory(sysfs)
    spoken_of = sysfs.cpu_list(f"{NODES}/online") or CPUSet(nodes)
    found = {}
    for node in nodes:
        text = sysfs.text(f"{NODES}/node{node}/meminfo")
        total = _TOTAL.search(text or "")
        if total:
            found[node] = int(total[1]) > 0
        elif listed and node in listed | spoken_of:
            found[node] = node in listed
        if text and not total:
            oddities.note("no size of memory in meminfo of {}", f"node{node}")
    return found


def _nodes_with_memory(sysfs: Sysfs) -> CPUSet:
    """What the kernel lists, in the format of CPUs; empty when it lists nothing, for some node has memory.

    Older kernels have the second list only.
    """
    return sysfs.cpu_list(f"{NODES}/has_memory") or sysfs.cpu_list(f"{NODES}/has_normal_memory") or EMPTY

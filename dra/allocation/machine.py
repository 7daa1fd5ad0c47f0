"""The machine as allocation sees it: sets of online CPUs as bit masks, prepared once for each topology.

CPU n is bit n of an int. Each object (core, L3 group, NUMA node, socket) is the mask of its online CPUs, so its width
is its own, never an average over the machine (fault R12), and a core is what the topology says, never a bare core id
(fault R11).

Any kind of object may contain any other: a socket several NUMA nodes, a NUMA node several sockets, an L3 group several
NUMA nodes. Where two truly cross, so that neither contains the other, which only broken firmware shows, the inner kind
is cut at the border of the outer one (in this order: socket, NUMA node, L3 group, core) and its parts count as objects
of their own; threads in two L3 groups, or of two types, are never one core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dra.allocation.cores import CoreShape, shapes_of
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology.model import CoreType, Topology


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """All masks. Sockets and nodes are in order of their number, groups and cores in order of their lowest CPU.

    `types`: the CPUs of each core type that occurs, in the order in which equals are taken. `node_numbers`: the
    number of each of `nodes`. `shapes`: the cores by how their siblings lie. `widths`: for each number of online
    threads that a core has, ascending, the leads of the cores that have it. Two machines are equal only if they are
    one: `machine_of` gives the same for equal topologies, and what is derived from it can be kept by it cheaply.
    """

    cpus: int
    sockets: tuple[int, ...]
    nodes: tuple[int, ...]
    node_numbers: tuple[int, ...]
    l3_groups: tuple[int, ...]
    cores: tuple[int, ...]
    types: tuple[int, ...]
    shapes: tuple[CoreShape, ...]
    widths: tuple[tuple[int, int], ...]


@lru_cache(maxsize=16)
def machine_of(topology: Topology) -> Machine:
    """The masks of a topology; the same object again for an equal one."""
    by_type = (
        CPUSet(cpu.id for cpu in topology.cpus.values() if cpu.core_type is core_type).mask for core_type in CoreType
    )
    types = tuple(mask for mask in by_type if mask)
    sockets = _masks(topology.sockets.values())
    nodes = _cut(_masks(topology.nodes.values()), sockets)
    number_of = {cpu.id: cpu.numa_node for cpu in topology.cpus.values()}
    l3_groups = _cut(_cut(_masks(topology.l3_groups), sockets), nodes)
    cores = _cores(topology.cores, (sockets, nodes, l3_groups, types))
    return Machine(
        cpus=topology.online.mask,
        sockets=sockets,
        nodes=nodes,
        node_numbers=tuple(number_of[lowest_bit(node).bit_length() - 1] for node in nodes),
        l3_groups=tuple(sorted(l3_groups, key=lowest_bit)),
        cores=cores,
        types=types,
        shapes=shapes_of(cores),
        widths=_widths(cores),
    )


def lowest_bit(mask: int) -> int:
    """The lowest CPU of a mask, as a mask."""
    return mask & -mask


def touching(objects: Iterable[int], cpus: int) -> int:
    """How many of these objects the CPUs touch."""
    return len([each for each in objects if each & cpus])


@lru_cache(maxsize=16)
def numa_nodes(machine: Machine) -> tuple[tuple[int, int], ...]:
    """The number and the CPUs of each NUMA node as the kernel counts them: parts of one that was cut are one again."""
    found: dict[int, int] = {}
    for number, part in zip(machine.node_numbers, machine.nodes, strict=True):
        found[number] = found.get(number, 0) | part
    return tuple(found.items())


def numa_nodes_touched(machine: Machine, cpus: int) -> int:
    """How many of the kernel's NUMA nodes the CPUs touch."""
    return touching((node for _, node in numa_nodes(machine)), cpus)


@lru_cache(maxsize=16)
def first_sockets(machine: Machine) -> tuple[int, ...]:
    """For each of `numa_nodes` the index of the socket that its lowest CPU is in: its only one, mostly."""
    socket_of = owners(machine.sockets)
    return tuple(socket_of[lowest_bit(node).bit_length() - 1] for _, node in numa_nodes(machine))


@lru_cache(maxsize=16)
def holds_several_sockets(machine: Machine) -> bool:
    """Whether any of the kernel's NUMA nodes lies in several."""
    pairs = zip(numa_nodes(machine), first_sockets(machine), strict=True)
    return any(node & ~machine.sockets[socket] for (_, node), socket in pairs)


def meeting(objects: Iterable[int], others: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """For each object those of the others that share CPUs with it, in their order; these have all CPUs, each once."""
    owner = owners(others)
    for each in objects:
        yield tuple(others[index] for index in sorted({owner[cpu] for cpu in CPUSet.from_mask(each)}))


def owners(objects: Iterable[int]) -> dict[int, int]:
    """For each CPU the index of the one of these objects that has it."""
    return {cpu: index for index, each in enumerate(objects) for cpu in CPUSet.from_mask(each)}


def _masks(sets: Iterable[CPUSet]) -> tuple[int, ...]:
    return tuple(each.mask for each in sets)


def _cut(parts: Sequence[int], borders: Sequence[int]) -> tuple[int, ...]:
    """The parts, those cut that cross a border; one that contains all it meets, or lies in one, crosses none."""
    found: list[int] = []
    for part, met in zip(parts, meeting(parts, borders), strict=True):
        crosses = len(met) > 1 and any(border & ~part for border in met)
        found += [part & border for border in met] if crosses else [part]
    return tuple(found)


def _cores(cores: Iterable[CPUSet], kinds: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The cores, cut at the borders of all these kinds of objects."""
    owners_of = [owners(objects) for objects in kinds]
    found: list[int] = []
    for core in cores:
        parts: dict[tuple[int, ...], int] = {}
        for cpu in core:
            place = tuple([owner[cpu] for owner in owners_of])
            parts[place] = parts.get(place, 0) | 1 << cpu
        found += parts.values()
    return tuple(sorted(found, key=lowest_bit))


def _widths(cores: Iterable[int]) -> tuple[tuple[int, int], ...]:
    leads: dict[int, int] = {}
    for core in cores:
        leads[core.bit_count()] = leads.get(core.bit_count(), 0) | lowest_bit(core)
    return tuple(sorted(leads.items()))

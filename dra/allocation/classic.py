"""The CPUs that the kubelet's static CPU manager takes, so that who comes from there gets the CPUs they know.

These are the steps of its packed allocation (takeByTopologyNUMAPacked in pkg/kubelet/cm/cpumanager/cpu_assignment.go,
as of Kubernetes 1.37): whole objects of the outer kind, whole ones of the inner kind, L3 groups if aligned, whole
cores, single threads. Everywhere the objects with the fewest CPUs left come first, then the lowest id, and nested. The
outer kind is the NUMA node where there are at least as many sockets as nodes, else the socket.

Like there, a whole core, socket or L3 group is told by the machine's averages in some places (CPUs over cores, rounded
down), which is wrong where sizes differ: then the answer may be poor, or none (faults R12, U1, U2). This file only says
what the answer is; dra.allocation.packed takes it where nothing is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import itemgetter

from dra.allocation import cores
from dra.allocation.machine import Machine, meeting

# What a step takes, out of the CPUs that are left, for a rest. It may be more than is left: then there is no answer.
_Step = Callable[[int, int], int]


@dataclass(frozen=True, slots=True)
class _Kubelet:
    """The machine in the kubelet's eyes: its objects in order of id, and its averages.

    `inner_of`: for each outer object the inner ones that share CPUs with it; `l3_of`: for each node the L3 groups.
    """

    machine: Machine
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    inner_of: dict[int, tuple[int, ...]]
    l3_of: dict[int, tuple[int, ...]]
    nodes_outside: bool
    threads: int
    cpus_per_socket: int
    cpus_per_l3: int


@lru_cache(maxsize=16)
def _kubelet(machine: Machine) -> _Kubelet:
    nodes_outside = len(machine.sockets) >= len(machine.nodes)
    outer, inner = (machine.nodes, machine.sockets) if nodes_outside else (machine.sockets, machine.nodes)
    total = machine.cpus.bit_count()
    return _Kubelet(
        machine=machine,
        outer=outer,
        inner=inner,
        inner_of=dict(zip(outer, meeting(outer, inner), strict=True)),
        l3_of=dict(zip(machine.nodes, meeting(machine.nodes, machine.l3_groups), strict=True)),
        nodes_outside=nodes_outside,
        threads=total // len(machine.cores),
        cpus_per_socket=total // len(machine.sockets),
        cpus_per_l3=total // len(machine.l3_groups),
    )


def classic(machine: Machine, free: int, count: int, align_l3: bool) -> int | None:
    """The kubelet's choice of `count` CPUs out of `free`, or None where its steps end in anything else."""
    kubelet = _kubelet(machine)
    steps: list[_Step] = [
        partial(_whole_objects, kubelet, outer=True),
        partial(_whole_objects, kubelet, outer=False),
        partial(_whole_cores, kubelet),
        partial(_threads, kubelet),
    ]
    if align_l3:
        steps.insert(2, partial(_l3_groups, kubelet))
    chosen, left = 0, free
    for step in steps:
        chosen |= step(left, count - chosen.bit_count())
        left = free & ~chosen
        if chosen.bit_count() >= count:
            break
    return chosen if chosen.bit_count() == count and not chosen & ~free else None


def _ordered(objects: Iterable[int], left: int) -> list[int]:
    """Those that have CPUs left, fewest first; equals stay as they were."""
    found = [(number, each) for each in objects if (number := (each & left).bit_count())]
    found.sort(key=itemgetter(0))
    return [each for _, each in found]


def _inner_objects(kubelet: _Kubelet, left: int) -> list[int]:
    """Inner objects in the order of the outer ones that they lie in."""
    outer = _ordered(kubelet.outer, left)
    return [inner for each in outer for inner in _ordered_in(kubelet.inner_of[each], each, left)]


def _ordered_in(objects: tuple[int, ...], outer: int, left: int) -> list[int]:
    return [each for each in _ordered(objects, left) if each & outer & left] if len(objects) > 1 else list(objects)


def _nodes(kubelet: _Kubelet, left: int) -> list[int]:
    return _ordered(kubelet.outer, left) if kubelet.nodes_outside else _inner_objects(kubelet, left)


def _whole_objects(kubelet: _Kubelet, left: int, rest: int, *, outer: bool) -> int:
    """Whole sockets or NUMA nodes, as long as the rest needs all of one."""
    objects = kubelet.outer if outer else kubelet.inner
    sockets = outer != kubelet.nodes_outside
    if not any(each.bit_count() <= rest for each in objects):
        return 0
    chosen = 0
    for each in _ordered(objects, left) if outer else _inner_objects(kubelet, left):
        size = each.bit_count()
        wanted = kubelet.cpus_per_socket if sockets else size
        if size <= rest and (each & left).bit_count() == wanted:
            chosen |= each
            rest -= size
    return chosen


def _l3_groups(kubelet: _Kubelet, left: int, rest: int) -> int:
    """Whole L3 groups, as long as the rest needs all of one; then the first whose first cores are exactly the rest."""
    groups = [group for node in _nodes(kubelet, left) for group in _ordered_in(kubelet.l3_of[node], node, left)]
    chosen = 0
    if rest >= kubelet.cpus_per_l3:
        for group in groups:
            size = group.bit_count()
            if size <= rest and not group & ~left:
                chosen |= group
                left &= ~group
                rest -= size
    if rest:
        available = cores.touched(kubelet.machine.shapes, left)
        for group in groups:
            if (group & left).bit_count() >= rest and (part := _part_of_l3(kubelet, available & group, left, rest)):
                return chosen | part
    return chosen


def _part_of_l3(kubelet: _Kubelet, available: int, left: int, rest: int) -> int:
    """What is left of the first cores, as many as the rest needs; an odd rest on SMT may leave the last thread.

    0 if that is not exactly the rest.
    """
    wanted = -(-rest // kubelet.threads)
    part = cores.cpus_of(kubelet.machine.shapes, cores.lowest(available, wanted)) & left
    if rest % 2 and kubelet.threads > 1 and part.bit_count() > rest:
        part ^= 1 << part.bit_length() - 1
    return part if part.bit_count() == rest else 0


def _whole_cores(kubelet: _Kubelet, left: int, rest: int) -> int:
    """Whole cores, as long as the rest needs all of one."""
    shapes, chosen = kubelet.machine.shapes, 0
    free = cores.by_threads(shapes, left)[kubelet.threads]
    for region in _inner_objects(kubelet, left):
        here = free & region
        while here and rest:
            # All of one width at a time: the lowest one's, up to the first core of another width.
            width, same = next(each for each in kubelet.machine.widths if each[1] & here & -here)
            other = here & ~same
            run = here & (other & -other) - 1 if other else here
            taken = cores.lowest(run, rest // width)
            chosen |= cores.cpus_of(shapes, taken)
            rest -= width * taken.bit_count()
            here ^= run
    return chosen


def _threads(kubelet: _Kubelet, left: int, rest: int) -> int:
    """Single threads: cores with the fewest left first, their lowest threads first."""
    shapes, chosen = kubelet.machine.shapes, 0
    by_threads = cores.by_threads(shapes, left)
    for region in _inner_objects(kubelet, left):
        for number in range(1, len(by_threads)):
            here = by_threads[number] & region
            taken = cores.lowest(here, rest // number)
            chosen |= cores.cpus_of(shapes, taken) & left
            rest -= number * taken.bit_count()
            if rest and here != taken:
                next_core = (here ^ taken) & -(here ^ taken)
                return chosen | cores.lowest(cores.cpus_of(shapes, next_core) & left, rest)
            if not rest:
                return chosen
    return chosen

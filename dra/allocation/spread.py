"""Spread allocation (the kubelet's distribute-cpus-across-cores): one thread of as many cores as there can be.

What counts, in this order: fewest sockets, fewest NUMA nodes, most different cores, no mix of core types, fewest
cores broken, the lowest list of CPU numbers. An L3 counts for nothing.

A region is the free CPUs of the fewest sockets and nodes that hold the request; there may be several such. Whatever
is taken from a region touches all its sockets and nodes, or fewer would have done, so the rest is decided inside.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from dra.allocation.cores import CoreShape, cpus_of, lowest, touched, whole
from dra.allocation.machine import Machine, holds_several_sockets, lowest_bit, touching
from dra.allocation.quality import broken, mixed
from dra.allocation.sets import MOST_SETS, fewest, sets_of
from nri_cpu.cpuset import CPUSet


def spread(machine: Machine, free: int, count: int) -> int:
    """Exactly `count` CPUs (1 or more) out of `free` (at least as many, all of the machine), as a mask.

    Looks at no more than MOST_SETS regions, those of the fullest sockets and nodes first; regions that are shifted
    copies of each other count once, the lowest is the best of them.
    """
    if count == free.bit_count():
        return free
    request = _Request(machine, free, count)
    candidates = [request.candidate(region) for region in islice(_regions(machine, free, count), MOST_SETS)]
    best = min(candidate.score for candidate in candidates)
    chosen = 0
    for candidate in candidates:
        if candidate.score == best:
            cpus = request.take(candidate.pool)
            # The list that has the lowest of the CPUs in which the two differ is the lower one.
            if not chosen or lowest_bit(cpus ^ chosen) & cpus:
                chosen = cpus
    return chosen


def spread_quality(machine: Machine, free: int, cpus: int) -> Mapping[str, object]:
    """The quality of `cpus` out of `free` by name, in the order in which it counts: many cores, little else."""
    return {
        "sockets": touching(machine.sockets, cpus),
        "numaNodes": touching(machine.nodes, cpus),
        "cores": touched(machine.shapes, cpus).bit_count(),
        "coreTypesMixed": mixed(machine, cpus),
        "coresBroken": broken(machine, free, cpus),
    }


@lru_cache(maxsize=16)
def _kinds(machine: Machine) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The kind of each socket and of each node: two of one kind have the same cores, only shifted.

    Where a node holds several sockets each is a kind of its own: to swap two may change how many nodes it takes.
    """
    if holds_several_sockets(machine):
        return tuple(range(len(machine.sockets))), tuple(range(len(machine.nodes)))

    def numbered(objects: tuple[int, ...]) -> tuple[int, ...]:
        looks = []
        for each in objects:
            low = lowest_bit(each)
            parts = (*(shape.leads for shape in machine.shapes), *machine.types)
            inner = tuple((each & node) // low for node in machine.nodes if each & node)
            looks.append((*((each & part) // low for part in parts), inner))
        return tuple(looks.index(look) for look in looks)

    return numbered(machine.sockets), numbered(machine.nodes)


def _regions(machine: Machine, free: int, count: int) -> Iterator[int]:
    """The free CPUs of each set of sockets and nodes that could be the one: the fewest that hold `count`."""
    socket_kinds, node_kinds = _kinds(machine)
    sockets = _parts(machine.sockets, socket_kinds, free)
    number = fewest([size for _, size, _ in sockets], count)
    pools = [
        sum(sockets[index][0] for index in chosen)
        for chosen in islice(
            sets_of([size for _, size, _ in sockets], [kind for _, _, kind in sockets], number, count), MOST_SETS
        )
    ]
    inside = [_parts(machine.nodes, node_kinds, pool) for pool in pools]
    number = min(fewest([size for _, size, _ in nodes], count) for nodes in inside)
    for nodes in inside:
        for chosen in sets_of([size for _, size, _ in nodes], [kind for _, _, kind in nodes], number, count):
            yield sum(nodes[index][0] for index in chosen)


def _parts(objects: tuple[int, ...], kinds: tuple[int, ...], pool: int) -> list[tuple[int, int, Hashable]]:
    """Of each object with CPUs in `pool`: these CPUs, how many, and a kind that says all but where.

    Lowest first, so that of one kind the lowest is taken first.
    """
    parts = []
    for each, kind in zip(objects, kinds, strict=True):
        if cpus := each & pool:
            parts.append((lowest_bit(each), cpus, kind))
    parts.sort()
    return [(cpus, cpus.bit_count(), (kind, cpus // low)) for low, cpus, kind in parts]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """`score`: levels 3 to 5, smaller is better. `pool`: the CPUs of the region from which they are taken."""

    score: tuple[int, int, int]
    pool: int


class _Request:
    """One call: which CPUs are a core's first free thread, and which of these break a whole core."""

    def __init__(self, machine: Machine, free: int, count: int) -> None:
        self._machine = machine
        self._shapes = machine.shapes
        # Those with siblings, narrow ones first.
        self._widths = [(width, leads) for width, leads in machine.widths if width > 1]
        self._count = count
        self._firsts = _first_threads(machine.shapes, free)
        wide = sum(leads for _, leads in self._widths)
        # CPUs of cores of several threads that are all free: one taken alone breaks the core.
        self._whole = cpus_of(machine.shapes, whole(machine.shapes, free) & wide)

    def candidate(self, region: int) -> _Candidate:
        """The best that can be had in the region, up to level 5, and from which of its CPUs."""
        if (self._firsts & region).bit_count() < self._count:
            return self._on_every_core(region)
        pools = [kind & region for kind in self._machine.types]
        single = [pool for pool in pools if (self._firsts & pool).bit_count() >= self._count]
        if not single:
            return self._on_some_cores(region, 1)
        candidates = [self._on_some_cores(pool, 0) for pool in single]
        if len(candidates) == 1:
            return candidates[0]
        # Of equals the lowest list: these have no CPU in common, so that the lowest CPU decides.
        return min(candidates, key=lambda each: (each.score, lowest_bit(self.take(each.pool))))

    def _on_some_cores(self, pool: int, of_types: int) -> _Candidate:
        """One thread of each of `count` cores; the pool has so many."""
        unbroken = (self._firsts & pool & ~self._whole).bit_count()
        return _Candidate((-self._count, of_types, max(0, self._count - unbroken)), pool)

    def _on_every_core(self, region: int) -> _Candidate:
        """All cores with free CPUs, and of as many as possible of them all."""
        firsts = self._firsts & region
        breaking = (firsts & self._whole).bit_count() - self._completed(region, firsts)
        return _Candidate((-firsts.bit_count(), mixed(self._machine, region), breaking), region)

    def _completed(self, region: int, firsts: int) -> int:
        """How many whole cores of several threads can be taken wholly: narrow ones cost least."""
        cores, rest, completed = whole(self._shapes, region), self._count - firsts.bit_count(), 0
        for width, leads in self._widths:
            number = min((cores & leads).bit_count(), rest // (width - 1))
            completed += number
            rest -= number * (width - 1)
        return completed

    def take(self, pool: int) -> int:
        """The lowest list of CPUs that has the score of the candidate of this pool."""
        firsts = self._firsts & pool
        more = self._count - firsts.bit_count()
        if more <= 0:
            unbroken = firsts & ~self._whole
            few = self._count - unbroken.bit_count()
            return unbroken | lowest(firsts & self._whole, few) if few > 0 else lowest(unbroken, self._count)
        others = pool & ~firsts
        if self._widths[-1][0] == 2:
            return firsts | lowest(others, more)  # each one completes a core
        return firsts | self._lowest_completing(pool, others, self._completed(pool, firsts), more)

    def _lowest_completing(self, pool: int, others: int, completed: int, more: int) -> int:
        """The lowest list of `more` CPUs of `others` that takes the rest of `completed` cores of those whole in `pool`.

        CPU by CPU from the lowest: it is taken if the rest can still be had after it. `missing` is how many CPUs each
        core that can still be completed lacks, `cores` how many cores lack 0, 1, 2 ...
        """
        owner: dict[int, int] = {}
        missing: dict[int, int] = {}
        cores = [0] * self._widths[-1][0]
        complete = whole(self._shapes, pool)
        for shape in (each for each in self._shapes if len(each.distances) > 1):
            for lead in CPUSet.from_mask(shape.leads & complete):
                missing[lead] = len(shape.distances) - 1
                cores[missing[lead]] += 1
                owner.update((lead + distance, lead) for distance in shape.distances)
        chosen = 0
        for cpu in CPUSet.from_mask(others):
            if not more:
                break
            lead = owner.get(cpu, -1)
            lacks = missing.get(lead, 0)
            if lacks:
                cores[lacks] -= 1
                cores[lacks - 1] += 1
            if _cost(cores, completed) < more:
                chosen |= 1 << cpu
                more -= 1
                if lacks:
                    missing[lead] = lacks - 1
            elif lacks:
                # Left out, so this core is not completed.
                cores[lacks - 1] -= 1
                missing[lead] = 0
        return chosen


def _cost(cores: list[int], completed: int) -> int:
    """How many CPUs it takes to complete so many cores, those that lack least first."""
    cost = 0
    for lacks, number in enumerate(cores):
        taken = min(number, completed)
        cost += taken * lacks
        completed -= taken
    return cost


def _first_threads(shapes: tuple[CoreShape, ...], cpus: int) -> int:
    """The lowest CPU in `cpus` of each core that has any there."""
    firsts = 0
    for shape in shapes:
        untouched = shape.leads
        for distance in shape.distances:
            found = (cpus >> distance) & untouched
            firsts |= found << distance
            untouched &= ~found
    return firsts

"""Spread allocation (the kubelet's distribute-cpus-across-cores): one thread of as many cores as there can be.

What counts, in this order: fewest sockets, fewest NUMA nodes, most different cores, no mix of core types, fewest
cores broken, the lowest list of CPU numbers. An L3 counts for nothing.

A region is the free CPUs of the fewest sockets and nodes that hold the request; there may be several such. Whatever
is taken from a region touches all its sockets and nodes, or fewer would have done, so the rest is decided inside.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice

from dra.allocation.areas import BITS
from dra.allocation.cores import CoreShape, cpus_of, lowest, touched, whole
from dra.allocation.machine import Machine, holds_several_sockets, lowest_bit, meeting, numa_nodes_touched, touching
from dra.allocation.quality import broken, mixed
from dra.allocation.sets import Looks, fewest, sets_of
from nri_cpu.cpuset import CPUSet

# Levels 3 to 5 of a choice, smaller is better: minus the cores, types mixed, cores broken.
_Score = tuple[int, int, int]

# To take a set of sockets apart into nodes takes longer than to look at them.
_PARTING = 6

_LOW = (1 << BITS) - 1

# Of a socket or node its free CPUs, how many, and a kind that says all but where.
_Part = tuple[int, int, Hashable]


def spread(machine: Machine, free: int, count: int) -> int:
    """Exactly `count` CPUs (1 or more) out of `free` (at least as many, all of the machine), as a mask.

    Exact on machines as they are built. Where sockets or nodes are many and none is like the other it looks at
    MOST_SETS regions at most and takes the best of these: about 0.1 s, those of the fullest sockets and nodes first.
    Regions that are shifted copies of each other count once, the lowest is the best of them.
    """
    if count == free.bit_count():
        return free
    request = _Request(machine, free, count)
    regions = _regions(machine, free, count)
    first = list(islice(regions, 2))
    if len(first) == len(machine.types) == 1:
        return request.take(sum(first[0]))
    scores: dict[int, _Score] = {}
    least: _Score | None = None
    best: list[list[int]] = []
    looks = Looks()
    for region in chain(first, regions):
        amount = sum([request.amount(part) for part in region])
        if amount not in scores:
            scores[amount] = request.score(amount)
        score = scores[amount]
        if least is None or score < least:
            least, best = score, []
        if score == least:
            best.append(region)
        if not looks.take(len(region)):
            break
    assert least is not None  # there is a region that holds the request
    return request.lowest_of([pool for region in best for pool in request.pools(sum(region), least)], looks)


def spread_quality(machine: Machine, free: int, cpus: int) -> Mapping[str, object]:
    """The quality of `cpus` out of `free` by name, in the order in which it counts: many cores, little else."""
    return {
        "sockets": touching(machine.sockets, cpus),
        "numaNodes": numa_nodes_touched(machine, cpus),
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
        looks: dict[Hashable, int] = {}
        kinds = []
        inside = zip(objects, meeting(objects, machine.cores), meeting(objects, machine.nodes), strict=True)
        for each, cores, nodes in inside:
            low = lowest_bit(each).bit_length() - 1
            parts = (cores, tuple(each & cpus for cpus in machine.types), tuple(each & node for node in nodes))
            look = tuple(tuple(part >> low for part in kind) for kind in parts)
            kinds.append(looks.setdefault(look, len(looks)))
        return tuple(kinds)

    return numbered(machine.sockets), numbered(machine.nodes)


def _regions(machine: Machine, free: int, count: int) -> Iterator[list[int]]:
    """The free CPUs of each set of sockets and nodes that could be the one, the fewest that hold `count`, by node."""
    socket_kinds, node_kinds = _kinds(machine)
    sockets = _parts(machine.sockets, socket_kinds, free)
    if machine.sockets == machine.nodes:
        yield from _fewest_of(sockets, fewest([size for _, size, _ in sockets], count), count)
        return
    looks = Looks()
    inside = []
    for pool in _fewest_of(sockets, fewest([size for _, size, _ in sockets], count), count):
        inside.append(_parts(machine.nodes, node_kinds, sum(pool)))
        if not looks.take(_PARTING * len(machine.nodes)):
            break
    number = min(fewest([size for _, size, _ in nodes], count) for nodes in inside)
    for nodes in inside:
        yield from _fewest_of(nodes, number, count)


def _fewest_of(parts: list[_Part], number: int, count: int) -> Iterator[list[int]]:
    """The CPUs of each set of `number` parts that holds `count`."""
    for chosen in sets_of([size for _, size, _ in parts], [kind for _, _, kind in parts], number, count):
        yield [parts[index][0] for index in chosen]


def _parts(objects: tuple[int, ...], kinds: tuple[int, ...], pool: int) -> list[_Part]:
    """Of each object with CPUs in `pool`: these CPUs, how many, and a kind that says all but where.

    Lowest first, so that of one kind the lowest is taken first.
    """
    parts = []
    for each, kind in zip(objects, kinds, strict=True):
        if cpus := each & pool:
            parts.append((lowest_bit(each), cpus, kind))
    parts.sort()
    return [(cpus, cpus.bit_count(), (kind, cpus // low)) for low, cpus, kind in parts]


class _Request:
    """One call: which CPUs are a core's first free thread, and which of these break a whole core."""

    def __init__(self, machine: Machine, free: int, count: int) -> None:
        self._types = machine.types
        self._shapes = machine.shapes
        # Those with siblings, narrow ones first.
        self._widths = [(width, leads) for width, leads in machine.widths if width > 1]
        self._is_narrow = not self._widths or self._widths[-1][0] == 2
        self._count = count
        self._firsts = _first_threads(machine.shapes, free)
        complete = whole(machine.shapes, free) & sum(leads for _, leads in self._widths)
        # CPUs of cores of several threads that are all free: one taken alone breaks the core.
        self._whole = cpus_of(machine.shapes, complete)
        self._amounts: dict[int, int] = {}
        # What is counted of a region: first threads, those that break nothing, whole cores of each width, and where
        # there are several types the first threads of each, and those that break nothing.
        self._counted = [self._firsts, self._firsts & ~self._whole, *(complete & leads for _, leads in self._widths)]
        if len(machine.types) > 1:
            for each in machine.types:
                self._counted += [self._firsts & each, self._firsts & each & ~self._whole]
        self._shifts = range(0, BITS * len(self._counted), BITS)

    def amount(self, part: int) -> int:
        """What there is in a node or socket, as one number: those of a region add up."""
        amount = self._amounts.get(part, -1)
        if amount < 0:
            amount = 0
            for cpus, shift in zip(self._counted, self._shifts, strict=True):
                amount |= (cpus & part).bit_count() << shift
            self._amounts[part] = amount
        return amount

    def score(self, amount: int) -> _Score:
        """The best that can be had in a region that has this amount."""
        firsts, unbroken = amount & _LOW, amount >> BITS & _LOW
        if firsts >= self._count and len(self._types) == 1:
            return -self._count, 0, self._broken(unbroken)
        others = [amount >> shift & _LOW for shift in self._shifts[2:]]
        cores, of_types = others[: len(self._widths)], others[len(self._widths) :]
        if firsts < self._count:
            # All cores with free CPUs, and of as many as possible of them all.
            several = sum(1 for number in of_types[::2] if number) > 1
            return -firsts, int(several), sum(cores) - self._completed(cores, self._count - firsts)
        types = zip(of_types[::2], of_types[1::2], strict=True)
        broken = [self._broken(number) for of_type, number in types if of_type >= self._count]
        return (-self._count, 0, min(broken)) if broken else (-self._count, 1, self._broken(unbroken))

    def _broken(self, unbroken: int) -> int:
        return max(0, self._count - unbroken)

    def _completed(self, cores: Iterable[int], rest: int) -> int:
        """How many whole cores can be taken wholly with `rest` CPUs more than one of each: narrow ones cost least."""
        completed = 0
        for (width, _), there in zip(self._widths, cores, strict=True):
            number = min(there, rest // (width - 1))
            completed += number
            rest -= number * (width - 1)
        return completed

    def pools(self, region: int, score: _Score) -> Iterator[int]:
        """The CPUs of the region that can have its score: those of each type that can have it alone, or all."""
        if len(self._types) == 1 or score[1] or -score[0] < self._count:
            yield region
            return
        for each in self._types:
            firsts = self._firsts & region & each
            if firsts.bit_count() >= self._count and self._broken((firsts & ~self._whole).bit_count()) == score[2]:
                yield region & each

    def lowest_of(self, pools: list[int], looks: Looks) -> int:
        """The lowest list of CPUs that has the score of these pools, out of any of them; of some if looks run out."""
        bounds = [self._bound(pool) for pool in pools]
        least = bounds[0]
        for bound in bounds:
            differ = bound ^ least
            if differ & -differ & bound:  # _is_lower, which there may be thousands of
                least = bound
        chosen = self._taken(pools[bounds.index(least)], least)
        if chosen == least:
            return chosen
        for bound, pool in zip(bounds, pools, strict=True):
            if _is_lower(bound, chosen) and looks.take(pool.bit_count()):
                taken = self._taken(pool, bound)
                chosen = taken if _is_lower(taken, chosen) else chosen
        return chosen

    def take(self, pool: int) -> int:
        """The lowest list of CPUs out of the pool that has its score."""
        return self._taken(pool, self._bound(pool))

    def _bound(self, pool: int) -> int:
        """A list of CPUs that is not higher than the one to take, which where cores have two threads at most it is."""
        firsts = self._firsts & pool
        more = self._count - firsts.bit_count()
        if more > 0:
            return firsts | lowest(pool & ~firsts, more)
        unbroken = firsts & ~self._whole
        few = self._count - unbroken.bit_count()
        return unbroken | lowest(firsts & self._whole, few) if few > 0 else lowest(unbroken, self._count)

    def _taken(self, pool: int, bound: int) -> int:
        """What to take out of the pool, whose bound this is."""
        if self._is_narrow:
            return bound  # each one after the firsts completes a core
        firsts = self._firsts & pool
        more = self._count - firsts.bit_count()
        if more <= 0:
            return bound
        others = pool & ~firsts
        complete = whole(self._shapes, pool)
        completed = self._completed([(complete & leads).bit_count() for _, leads in self._widths], more)
        return firsts | self._lowest_completing(pool, others, completed, more)

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


def _is_lower(cpus: int, others: int) -> bool:
    """Whether the list of these CPUs is lower: it has the lowest of those in which the two differ."""
    return bool(lowest_bit(cpus ^ others) & cpus)


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

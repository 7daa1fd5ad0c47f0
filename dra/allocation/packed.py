"""Packed allocation: few sockets, NUMA nodes and L3 groups, one core type, no core broken without need.

A choice is the best there is in levels 1 to 5 of the specification. Among the best ones it is the CPUs that the
kubelet takes, if they are one of them; else the same steps inside the areas that come first in Order (fewest free CPUs
first, then the lowest id, nested), and where these break a core without need, steps that don't. CPUs of a core type
that comes first among equals go before what the kubelet takes, which knows no types.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from dra.allocation import cores
from dra.allocation.areas import areas_of, least_cost
from dra.allocation.classic import classic
from dra.allocation.fewest import Fewest, Threads, WholePieces
from dra.allocation.fill import fill
from dra.allocation.full_cores import on_whole_cores
from dra.allocation.machine import Machine
from dra.allocation.options import AllocationOptions
from dra.allocation.quality import Quality, broken, quality_of
from dra.allocation.sums import can_give, pieces_of


def packed(machine: Machine, free: int, count: int, options: AllocationOptions) -> int:
    """Exactly `count` CPUs (1 or more) out of `free` (at least as many, all of the machine).

    Raises SMTAlignmentError with full physical cores when whole free cores can't give that number. Exact whatever it
    costs; 512 CPUs take less than a millisecond, docs/performance.md has figures.
    """
    offered = free
    if options.full_physical_cores:
        free = on_whole_cores(machine, free, count)
    if free.bit_count() == count:
        return free
    request = _Request(machine, free, count, options.align_l3, options.full_physical_cores)
    # The kubelet counts half cores when it orders objects, also where only whole ones may be taken.
    familiar = classic(machine, offered, count, options.align_l3)
    if familiar is not None and familiar & ~free:
        familiar = None
    if familiar is not None and request.is_clearly_best(familiar):
        return familiar
    best = request.best()
    if familiar is not None and not familiar & ~best.pool and request.quality(familiar) == best.quality:
        return familiar
    again = classic(machine, best.inside, count, options.align_l3)
    if again is not None and broken(machine, free, again) == best.quality.broken:
        return again
    return fill(machine, request.whole, best.inside, count, options.align_l3)


@dataclass(frozen=True, slots=True)
class _Best:
    """The best quality, the CPUs of one or all core types that have it, and those of them in the areas to use."""

    quality: Quality
    pool: int
    inside: int


class _Request:
    """What is asked, and how good it can be."""

    def __init__(self, machine: Machine, free: int, count: int, align_l3: bool, full_cores: bool) -> None:
        self._machine = machine
        self._free = free
        self._count = count
        self._align_l3 = align_l3
        self._full_cores = full_cores
        self.whole = cores.whole(machine.shapes, free)
        self._pieces_of = partial(pieces_of, machine, self.whole)

    def quality(self, cpus: int) -> Quality:
        return quality_of(self._machine, self._free, cpus, self._align_l3)

    def is_clearly_best(self, cpus: int) -> bool:
        """Whether a glance shows that nothing is better, and no earlier core type as good."""
        if cpus & ~self._machine.types[0]:
            return False
        cost = least_cost(self._machine, self._free, self._count, self._align_l3)
        return self.quality(cpus) == Quality(cost, 0, int(not self._possible(self._free)))

    def best(self) -> _Best:
        """Each core type alone, if one type costs no more than all together; the first of the best ones."""
        everything = self._best_in(self._free)
        if len(self._machine.types) == 1:
            return everything
        pools = [pool for each in self._machine.types if (pool := each & self._free).bit_count() >= self._count]
        found = [self._best_in(pool) for pool in pools if not self._full_cores or self._possible(pool)]
        pure = [each for each in found if each.quality.cost == everything.quality.cost]
        if pure:
            return min(pure, key=lambda each: each.quality.broken)
        return replace(everything, quality=replace(everything.quality, mixed=1))

    def _possible(self, pool: int) -> bool:
        return can_give(self._pieces_of(pool), self._count)

    def _best_in(self, pool: int) -> _Best:
        """The best out of this pool, as if it were of one type."""
        areas = areas_of(self._machine, self._align_l3)
        by_threads = Fewest(areas, pool, Threads(self._count))
        cost = by_threads.cost
        assert cost is not None, "a pool has as many CPUs as are asked for, or more"
        inside = by_threads.choice(cost)
        if can_give(self._pieces_of(inside), self._count):
            return _Best(Quality(cost, 0, 0), pool, inside)
        if self._possible(pool):
            limit = None if self._full_cores else cost
            by_pieces = Fewest(areas, pool, WholePieces(self._count, self._pieces_of, limit))
            if by_pieces.cost is not None:
                return _Best(Quality(by_pieces.cost, 0, 0), pool, by_pieces.choice(by_pieces.cost))
        return _Best(Quality(cost, 0, 1), pool, inside)

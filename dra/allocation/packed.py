"""Packed allocation: few sockets, NUMA nodes and L3 groups, whole cores, and what is already broken comes first.

What is promised: the result is a subset of `free` with exactly `count` CPUs; a request that fits in
one object of a level (socket, NUMA node, L3 group) stays in one, and among those objects the best result wins by
(nodes, L3 groups, core types mixed, cores broken), then the object with the fewest free CPUs, then the lowest id.
A request that needs several objects takes the fullest ones whole and fits the rest the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dra.allocation.errors import SMTAlignmentError
from dra.allocation.machine import Machine
from dra.allocation.options import AllocationOptions
from nri_cpu.cpuset import EMPTY, CPUSet

# Smaller is better: NUMA nodes touched, L3 groups touched if aligned, core types mixed, cores broken (levels 2-5).
_Score = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Chosen:
    cpus: CPUSet
    score: _Score


def packed(machine: Machine, free: int, count: int, options: AllocationOptions) -> int:
    """Exactly `count` CPUs (1 or more) out of `free` (at least as many, all of the machine).

    Raises SMTAlignmentError with full physical cores when whole free cores can't give that number.
    """
    if options.full_physical_cores:
        free = sum(core for core in machine.cores if not core & ~free)
        if (
            count > free.bit_count()
            or not _whole_cores(Counter(c.bit_count() for c in machine.cores if c & free), count).total()
        ):
            raise SMTAlignmentError(f"{count} CPUs requested: {free.bit_count()} CPUs on whole free cores")
    levels = [tuple(map(_set, machine.sockets)), tuple(map(_set, machine.nodes))]
    if options.align_l3:
        levels.append(tuple(map(_set, machine.l3_groups)))
    return _Packing(machine, levels).choose(_set(free), count, 0).cpus.mask


def _set(mask: int) -> CPUSet:
    return CPUSet.from_mask(mask)


class _Packing:
    """One call's view of the machine: the levels from outer to inner, and cores at the bottom."""

    def __init__(self, machine: Machine, levels: Sequence[Sequence[CPUSet]]) -> None:
        self._cores = tuple(map(_set, machine.cores))
        self._levels = levels
        self._types = tuple(map(_set, machine.types))

    def choose(self, free: CPUSet, count: int, level: int) -> _Chosen:
        """The choice out of `free`, which lies inside one object of the level above."""
        if level == len(self._levels):
            return self._in_cores(free, count)
        # Fewest free CPUs first, then the lowest id.
        parts = sorted((part & free for part in self._levels[level] if part & free), key=_order)
        fullest_first = sorted(parts, key=lambda part: (-len(part), part.first()))
        taken = EMPTY
        while count > len(fullest_first[0]):
            whole = fullest_first.pop(0)
            taken |= whole
            count -= len(whole)
        holding = [part for part in parts if len(part) >= count and part.isdisjoint(taken)]
        best = min((self.choose(part, count, level + 1) for part in holding), key=lambda chosen: chosen.score)
        return self._scored(taken | best.cpus, free) if taken else best

    def _in_cores(self, free: CPUSet, count: int) -> _Chosen:
        """The choice where only cores matter: one type of core if it can be, else all together."""
        pools = [pool & free for pool in self._types if len(pool & free) >= count] or [free]
        return min((self._scored(self._take(pool, count), free) for pool in pools), key=lambda chosen: chosen.score)

    def _take(self, free: CPUSet, count: int) -> CPUSet:
        """As many whole cores as possible, at most one core broken, and none where that can be (faults R12, U6)."""
        cores = [core for core in self._cores if not core.isdisjoint(free)]
        whole = sorted((core for core in cores if core <= free), key=_order)
        partial = sorted((core & free for core in cores if not core <= free), key=_order)
        chosen = EMPTY
        rest = list(partial)
        numbers = _whole_cores(Counter(map(len, whole)), count)
        for core in whole:
            if numbers[len(core)]:
                numbers[len(core)] -= 1
                chosen |= core
            else:
                rest.append(core)
        for core in rest:
            if len(chosen) == count:
                break
            chosen |= CPUSet(list(core)[: count - len(chosen)])
        return chosen

    def _scored(self, cpus: CPUSet, free: CPUSet) -> _Chosen:
        def touched(objects: Iterable[CPUSet]) -> list[CPUSet]:
            return [part for part in objects if not part.isdisjoint(cpus)]

        broken = sum(core <= free and not core <= cpus for core in touched(self._cores))
        mixed = len(touched(self._types)) > 1
        # Sockets need no place here: a choice among sockets is only ever made where one is enough.
        return _Chosen(cpus, (*(len(touched(level)) for level in self._levels[1:]), int(mixed), broken))


def _order(part: CPUSet) -> tuple[int, int]:
    return len(part), part.first()


def _whole_cores(available: Counter[int], count: int) -> Counter[int]:
    """How many whole cores of each width to take for `count` CPUs: as many CPUs on whole cores as possible.

    What remains is then as small as can be: if threads of broken cores can't give it, one more core has to be broken
    anyway. Of equal sums the one with more of the narrower cores.
    """
    widths = tuple(sorted(available))
    for size in range(min(count, sum(width * number for width, number in available.items())), 0, -1):
        numbers = _split(widths, available, size)
        if numbers is not None:
            return Counter(dict(zip(widths, numbers, strict=True)))
    return Counter()


def _split(widths: tuple[int, ...], available: Mapping[int, int], size: int) -> tuple[int, ...] | None:
    """Numbers of cores of each width whose CPUs are exactly `size`, narrower ones first; None when there is no such."""
    if not widths:
        return None if size else ()
    width, *wider = widths
    for number in range(min(available[width], size // width), -1, -1):
        others = _split(tuple(wider), available, size - number * width)
        if others is not None:
            return (number, *others)
    return None

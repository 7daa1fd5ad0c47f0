"""The fewest sockets, then NUMA nodes, then L3 groups that can give a number of CPUs, and which ones: levels 1 to 3.

By dynamic programming over the areas in Order (fewest free CPUs first, then lowest id, nested), from the last to the
first: the states of an area are what it and everything after it can give, and at what cost. Of these only those stay
that give something which no cheaper one does. Reading them from the first area to the last then finds the first
choice in Order: an area is used if what comes after can complete it at the least cost.

What an area can give depends on what is asked: `Threads`, any number of its free CPUs; `WholePieces`, only what breaks
no core. Cost: areas times states; there are about as many states as L3 groups in the answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from dra.allocation import sums
from dra.allocation.areas import BITS, Area

_LOW = (1 << BITS) - 1

State = TypeVar("State")


class Giving(Protocol[State]):
    """What areas can give, as states in order of cost, and `so far` for what has been chosen before them."""

    start: State
    nothing_so_far: int

    def use(self, states: Iterable[State], area: Area, free: int) -> list[State]:
        """The states with what a leaf area can give added."""

    def pay(self, states: Iterable[State], cost: int) -> list[State]:
        """The states at a higher cost."""

    def better(self, states: list[State], room: int) -> list[State]:
        """Those that give something which no cheaper one does; areas not looked at yet can give `room` CPUs."""

    def least(self, states: list[State]) -> int | None:
        """The least cost at which the number that is asked can be given."""

    def completes(self, states: list[State], budget: int, so_far: int) -> bool:
        """Whether a state of at most this cost gives what is missing."""

    def add(self, so_far: int, free: int) -> int:
        """What has been chosen, and this area with it."""


class Threads:
    """Any number of an area's free CPUs.

    A state is cost << 14 | CPUs that are still missing: the number as which it is sorted. So far: a number of CPUs.
    """

    def __init__(self, count: int) -> None:
        self.start = count
        self.nothing_so_far = 0

    def use(self, states: Iterable[int], area: Area, free: int) -> list[int]:
        number, cost = free.bit_count(), area.cost << BITS
        step = cost - number
        return [state + step if state & _LOW > number else (state | _LOW) - _LOW + cost for state in states]

    def pay(self, states: Iterable[int], cost: int) -> list[int]:
        cost <<= BITS
        return [state + cost for state in states]

    def better(self, states: list[int], room: int) -> list[int]:
        states.sort()
        found = []
        least = room + 1
        for state in states:
            missing = state & _LOW
            if missing < least:
                found.append(state)
                if not missing:
                    break
                least = missing
        return found

    def least(self, states: list[int]) -> int | None:
        return states[-1] >> BITS if states and not states[-1] & _LOW else None

    def completes(self, states: list[int], budget: int, so_far: int) -> bool:
        last = bisect_right(states, budget << BITS | _LOW) - 1
        return last >= 0 and states[last] & _LOW <= so_far

    def add(self, so_far: int, free: int) -> int:
        return so_far + free.bit_count()


class WholePieces:
    """Only numbers of CPUs that break no core.

    A state is (cost, the numbers that can be given as bits). So far: the numbers that may be missing as bits.
    """

    def __init__(self, count: int, pieces_of: Callable[[int], sums.Pieces], limit: int | None) -> None:
        """`limit`: states of a higher cost are of no interest."""
        self.start = (0, 1)
        self.nothing_so_far = 1 << count
        self._count = count
        self._pieces_of = pieces_of
        self._limit = limit

    def use(self, states: Iterable[tuple[int, int]], area: Area, free: int) -> list[tuple[int, int]]:
        pieces = self._pieces_of(free)
        return [(cost, sums.sums(pieces, numbers, self._count)) for cost, numbers in self.pay(states, area.cost)]

    def pay(self, states: Iterable[tuple[int, int]], cost: int) -> list[tuple[int, int]]:
        if self._limit is None:
            return [(before + cost, numbers) for before, numbers in states]
        return [(before + cost, numbers) for before, numbers in states if before + cost <= self._limit]

    def better(self, states: list[tuple[int, int]], room: int) -> list[tuple[int, int]]:
        states.sort()
        found = []
        # Numbers that are too small to be completed are of no interest either.
        known = (1 << max(0, self._count - room)) - 1
        for cost, numbers in states:
            new = numbers & ~known
            if new:
                found.append((cost, new))
                known |= new
                if new >> self._count:
                    break
        return found

    def least(self, states: list[tuple[int, int]]) -> int | None:
        return next((cost for cost, numbers in states if numbers >> self._count), None)

    def completes(self, states: list[tuple[int, int]], budget: int, so_far: int) -> bool:
        return any(numbers & so_far for cost, numbers in states if cost <= budget)

    def add(self, so_far: int, free: int) -> int:
        return sums.differences(self._pieces_of(free), so_far)


@dataclass(slots=True)
class _Step(Generic[State]):
    """An area, its free CPUs, the states of it and what comes after it if it is used, and the steps inside."""

    area: Area
    free: int
    used: list[State]
    inside: list[_Step[State]]


class Fewest(Generic[State]):
    """The least cost of `giving` out of the CPUs `free` of these areas, and the first choice in Order that has it.

    `cost` is None where the number that is asked can't be given.
    """

    def __init__(self, areas: tuple[Area, ...], free: int, giving: Giving[State]) -> None:
        self._giving = giving
        self._room = free.bit_count()
        self._steps, states = self._looked_at(areas, free, [giving.start])
        self.cost = giving.least(states)

    def _looked_at(
        self, areas: tuple[Area, ...], free: int, states: list[State]
    ) -> tuple[list[_Step[State]], list[State]]:
        giving, steps = self._giving, []
        for area, inside in reversed(in_order(areas, free)):
            if area.children:
                deeper, used = self._looked_at(area.children, inside, states)
                used = giving.pay(used, area.cost)
            else:
                self._room -= inside.bit_count()
                deeper, used = [], giving.use(states, area, inside)
            steps.append(_Step(area, inside, used, deeper))
            states = giving.better(states + used, self._room)
        steps.reverse()
        return steps, states

    def choice(self, cost: int) -> int:
        """The free CPUs of the first areas in Order that can give the number at this cost."""
        chosen, _, _ = self._chosen(self._steps, cost, self._giving.nothing_so_far)
        return chosen

    def _chosen(self, steps: list[_Step[State]], budget: int, so_far: int) -> tuple[int, int, int]:
        giving, chosen = self._giving, 0
        for step in steps:
            if not giving.completes(step.used, budget, so_far):
                continue
            budget -= step.area.cost
            if step.inside:
                deeper, budget, so_far = self._chosen(step.inside, budget, so_far)
                chosen |= deeper
            else:
                chosen |= step.free
                so_far = giving.add(so_far, step.free)
        return chosen, budget, so_far


def in_order(areas: tuple[Area, ...], free: int) -> list[tuple[Area, int]]:
    """The areas that have free CPUs and these CPUs: fewest first, then the lowest id."""
    found = [(area, inside) for area in areas if (inside := area.cpus & free)]
    found.sort(key=lambda each: each[1].bit_count())
    return found

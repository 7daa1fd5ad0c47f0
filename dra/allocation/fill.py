"""Choosing CPUs inside the areas that a request is to use, where the kubelet's steps break a core that they need not.

The steps are the same in spirit: whole areas, whole cores, loose threads, each in Order. But a piece is only taken if
what is left can still make the rest without breaking a core; where nothing can, one core is broken at the very end.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra.allocation import cores
from dra.allocation.areas import Area, areas_of
from dra.allocation.fewest import in_order
from dra.allocation.machine import Machine
from dra.allocation.sums import can_give, pieces_of


def fill(machine: Machine, whole: int, inside: int, count: int, align_l3: bool) -> int:
    """Exactly `count` CPUs out of `inside`, breaking none of the cores `whole` if that can be, else one."""
    return _Filling(machine, whole, inside, count, align_l3).filled()


class _Filling:
    """One call: what is left, what is still needed, and whether that can be had without breaking a core."""

    def __init__(self, machine: Machine, whole: int, inside: int, count: int, align_l3: bool) -> None:
        self._machine = machine
        self._whole = whole
        self._left = inside
        self._rest = count
        self._areas = areas_of(machine, align_l3)
        self._unbroken = can_give(pieces_of(machine, whole, inside), count)

    def filled(self) -> int:
        inside = self._left
        for areas in _levels(self._areas, inside):
            for area, free in areas:
                if free == area.cpus & self._left and not area.cpus & ~free:
                    self._take(free)
        leaves = [free & self._left for free in _leaves(self._areas, inside)]
        for leaf in leaves:
            self._take_cores(leaf)
        for leaf in leaves:
            self._take_threads(leaf & self._left & ~cores.cpus_of(self._machine.shapes, self._whole))
        for leaf in leaves:
            self._take_threads(leaf & self._left)
        return inside & ~self._left

    def _take(self, cpus: int) -> bool:
        """Take all of these if they are needed and the rest stays possible; says whether."""
        rest = self._rest - cpus.bit_count()
        left = self._left & ~cpus
        if rest < 0 or (self._unbroken and not can_give(pieces_of(self._machine, self._whole, left), rest)):
            return False
        self._left, self._rest = left, rest
        return True

    def _take_cores(self, leaf: int) -> None:
        """As many whole cores as possible, narrow ones first."""
        here = self._whole & cores.whole(self._machine.shapes, leaf)
        for width, leads in self._machine.widths:
            candidates = here & leads
            number = min(candidates.bit_count(), self._rest // width)
            # If so many can be taken, fewer can be as well: the others are pieces of the rest.
            while number and not self._take(cores.cpus_of(self._machine.shapes, cores.lowest(candidates, number))):
                number -= 1

    def _take_threads(self, cpus: int) -> None:
        """Single threads: cores with the fewest first, their lowest threads first."""
        for here in cores.by_threads(self._machine.shapes, cpus)[1:]:
            rest = here
            while rest and self._rest:
                lead = rest & -rest
                taken = cores.lowest(cores.cpus_of(self._machine.shapes, lead) & cpus, self._rest)
                self._left &= ~taken
                self._rest -= taken.bit_count()
                rest ^= lead


def _levels(areas: tuple[Area, ...], free: int) -> Iterator[list[tuple[Area, int]]]:
    """The areas that have free CPUs, outermost first, each level in Order."""
    level = in_order(areas, free)
    while level:
        yield level
        level = [inner for area, inside in level for inner in in_order(area.children, inside)]


def _leaves(areas: tuple[Area, ...], free: int) -> Iterator[int]:
    """The free CPUs of each innermost area, in Order."""
    for area, inside in in_order(areas, free):
        if area.children:
            yield from _leaves(area.children, inside)
        else:
            yield inside

"""Sets of a given number of objects (sockets, NUMA nodes) that hold enough, without counting equal ones twice.

There can be more sets than there is time for, so a search has `Looks`: it is exact where they last, and they do on
machines as they are built. Equal objects count once; 8 of 16 that are all different make 12,870 sets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, combinations
from math import comb

# How many sets of objects a search looks at; fewer where a set has more than so many objects.
MOST_SETS = 13_000
_SET = 8


class Looks:
    """What a search may still look at: one look is an object of a set, about a microsecond; in all some 0.1 s."""

    def __init__(self) -> None:
        self._left = _SET * MOST_SETS

    def take(self, looks: int) -> bool:
        """Whether there are any left; takes those of a set of so many objects, of which a small one costs what 8 do."""
        before = self._left
        self._left -= max(looks, _SET)
        return before > 0


def fewest(sizes: Iterable[int], least: int) -> int:
    """The smallest number of objects that can hold `least` (1 or more) together; all hold at least that."""
    return bisect_left(list(accumulate(sorted(sizes, reverse=True))), least) + 1


def sets_of(sizes: Sequence[int], kinds: Sequence[Hashable], number: int, least: int) -> Iterator[tuple[int, ...]]:
    """Indexes of `number` objects that hold `least` together, sets with the largest objects first.

    Objects of one kind are of one size and interchangeable: of those, earlier ones are taken before later ones, other
    sets are left out. No dead ends, unless there are few sets: the time is that of the sets that come out.
    """
    classes, alone = _classes(sizes, kinds)
    # Where there are few sets at all, objects that have no equal are tried in all combinations: that is faster.
    few = comb(len(sizes), number) <= MOST_SETS
    held = [0, *accumulate(sizes[index] for members in classes for index in members)]
    starts = [0, *accumulate(map(len, classes))]
    if number >= len(held) or held[number] < least:
        return
    stack: list[tuple[int, tuple[int, ...], int, int]] = [(0, (), number, least)]
    while stack:
        at, taken, rest, short = stack.pop()
        if not rest:
            yield taken
            continue
        if few and at >= alone:
            for others in combinations([members[0] for members in classes[at:]], rest):
                if sum([sizes[index] for index in others]) >= short:
                    yield taken + others
            continue
        members, next_ = classes[at], starts[at + 1]
        for more in range(min(rest, len(members)) + 1):
            left, missing = rest - more, short - more * sizes[members[0]]
            # The most that `left` objects of the classes to come can hold: they are in order of size.
            if next_ + left < len(held) and held[next_ + left] - held[next_] >= missing:
                stack.append((at + 1, (*taken, *members[:more]), left, missing))


def _classes(sizes: Sequence[int], kinds: Sequence[Hashable]) -> tuple[list[list[int]], int]:
    """The indexes of each kind, largest objects first, and the place from which on no object equals another."""
    by_kind: dict[Hashable, list[int]] = {}
    for index, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(index)
    classes = sorted(by_kind.values(), key=lambda members: (-sizes[members[0]], len(members) == 1))
    alone = len(classes)
    while alone and len(classes[alone - 1]) == 1:
        alone -= 1
    return classes, alone

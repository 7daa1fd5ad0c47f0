"""Sets of a given number of objects (sockets, NUMA nodes) that hold enough, without counting equal ones twice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate

# How many sets a search looks at. Equal objects count once, so that machines as they are built stay far below:
# it takes 16 sockets or NUMA nodes of which no two are equal to come near (12,870 sets of 8).
MOST_SETS = 20_000


def fewest(sizes: Iterable[int], least: int) -> int:
    """The smallest number of objects that can hold `least` (1 or more) together; all hold at least that."""
    return bisect_left(list(accumulate(sorted(sizes, reverse=True))), least) + 1


def sets_of(sizes: Sequence[int], kinds: Sequence[Hashable], number: int, least: int) -> Iterator[tuple[int, ...]]:
    """Indexes of `number` objects that hold `least` together, sets with the largest objects first.

    Objects of one kind are of one size and interchangeable: of those, earlier ones are taken before later ones, other
    sets are left out. No dead ends: the time is that of the sets that come out.
    """
    by_kind: dict[Hashable, list[int]] = {}
    for index, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(index)
    classes = sorted(by_kind.values(), key=lambda members: -sizes[members[0]])
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
        members, next_ = classes[at], starts[at + 1]
        for more in range(min(rest, len(members)) + 1):
            left, missing = rest - more, short - more * sizes[members[0]]
            # The most that `left` objects of the classes to come can hold: they are in order of size.
            if next_ + left < len(held) and held[next_ + left] - held[next_] >= missing:
                stack.append((at + 1, (*taken, *members[:more]), left, missing))

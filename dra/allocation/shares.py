"""Which NUMA nodes share a request, and who gets the odd units: fewest sockets first, then an even rest.

The rest is even when the standard deviation of the nodes' free CPUs afterwards is lowest. Their sum is the same for
all choices, so that is the lowest sum of squares: whole numbers, no rounding. Of equals the nodes that come first in
Order (fewest free CPUs first, then the lowest id, nested) are taken, and among them the first get more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import chain, pairwise, takewhile

from dra.allocation.cores import whole
from dra.allocation.machine import Machine, first_sockets, lowest_bit, numa_nodes
from dra.allocation.sets import Looks, fewest, sets_of


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node with free CPUs.

    `place`: in Order, from 0. `number`: as the kernel counts. `cpus`: what is free there, `free` CPUs of it. `units`:
    how many single CPUs, or whole cores, it can give; these are `cores` CPUs. `socket`: index of (one of) its sockets.
    """

    place: int
    number: int
    cpus: int
    free: int
    units: int
    cores: int
    socket: int


# To share among the nodes of a set takes longer than to look at them, to pack a share much longer.
_SHARING = 3
_PACKING = 200

# Nodes and the units that each gives.
Shares = tuple[tuple[Node, int], ...]


def nodes_in_order(machine: Machine, free: int, core_width: int | None) -> list[Node]:
    """The nodes that have CPUs in `free`, in Order; a unit is a CPU, or with `core_width` a core of so many threads."""
    found = []
    for (number, node), socket in zip(numa_nodes(machine), first_sockets(machine), strict=True):
        if cpus := node & free:
            units = whole(machine.shapes, cpus).bit_count() if core_width else cpus.bit_count()
            outer = machine.sockets[socket] | node
            order = (*_order(outer, free), *_order(node, free))
            found.append((order, number, cpus, units, socket))
    found.sort()
    return [
        Node(place, number, cpus, cpus.bit_count(), units, units * (core_width or 1), socket)
        for place, (_, number, cpus, units, socket) in enumerate(found)
    ]


def _order(each: int, free: int) -> tuple[int, int]:
    return (each & free).bit_count(), lowest_bit(each)


def even_shares_fit(nodes: Iterable[Node], number: int, units: int) -> bool:
    """Whether `number` of these nodes can give `units` in shares that differ by at most one, none of them empty."""
    share, odd = divmod(units, number)
    if not share:
        return False
    enough = sum(1 for node in nodes if node.units >= share)
    return enough >= number and sum(1 for node in nodes if node.units > share) >= odd


def _place(node: Node) -> int:
    return node.place


class Sharing:
    """The search for the best `number` of nodes to give `units` of `width` CPUs.

    `even`: shares differ by at most one unit. Otherwise each gives at least the even share, rounded down, and the
    others go where the rest becomes most even. There has to be an answer.

    Exact on machines as they are built. Where sockets or nodes are many and none is like the other it looks at so many
    sets of them as 0.1 s allows, MOST_SETS at most, and takes the best of these, which are the ones with most to give.
    """

    def __init__(self, nodes: Iterable[Node], number: int, units: int, width: int, even: bool) -> None:
        self._number = number
        self._width = width
        self._even = even
        self._units = units
        self._share, self._odd = divmod(units, number)
        self._nodes = [node for node in nodes if node.units >= self._share]
        self._looks = Looks()

    def on_fewest_sockets(self) -> Shares:
        """The best where each node lies in one socket."""
        best: Shares | None = None
        size_of_best = 0
        for size, pool in self._pools():
            if (best is not None and size > size_of_best) or not self._looks.take(_SHARING * len(pool)):
                break
            shares = self._best_of(pool)
            if shares is not None and (best is None or self._key(shares) < self._key(best)):
                best, size_of_best = shares, size
        return best or self._of_all()

    def on_fewest_touched_sockets(self, sockets: Sequence[int], pack: Callable[[Node, int], int]) -> int:
        """The best CPUs where nodes hold sockets: how many are touched depends on the CPUs that `pack` chooses."""
        known: dict[tuple[int, int], tuple[int, int]] = {}

        def packed(node: Node, share: int) -> tuple[int, int]:
            """The CPUs, and the sockets that they touch as bits."""
            if (node.place, share) not in known:
                self._looks.take(_PACKING)
                cpus = pack(node, share)
                touched = sum(1 << index for index, socket in enumerate(sockets) if socket & cpus)
                known[node.place, share] = cpus, touched
            return known[node.place, share]

        def key(shares: Shares) -> tuple[object, ...]:
            touched = 0
            for node, share in shares:
                touched |= packed(node, share)[1]
            return touched.bit_count(), *self._key(shares)

        best = min(chain([self._of_all()], takewhile(self._may_look, self._all())), key=key)
        return sum(packed(node, share)[0] for node, share in best)

    def _may_look(self, shares: Shares) -> bool:
        return self._looks.take(_SHARING * len(shares))

    def _of_all(self) -> Shares:
        best = self._best_of(self._nodes)
        assert best is not None  # callers ask only for what can be had
        return best

    def _key(self, shares: Shares) -> tuple[int, list[int], list[int]]:
        """Smaller is better: how the sum of squares changes, the nodes in Order, then how much the first ones get."""
        given = [(node.free, share * self._width) for node, share in shares]
        return (
            sum(cpus * (cpus - 2 * free) for free, cpus in given),
            [node.place for node, _ in shares],
            [-cpus for _, cpus in given],
        )

    def _pools(self) -> Iterator[tuple[int, list[Node]]]:
        """Sets of sockets that have nodes enough, few sockets first: how many they are, and their nodes in Order."""
        by_socket: dict[int, list[Node]] = {}
        for node in self._nodes:
            by_socket.setdefault(node.socket, []).append(node)
        groups = list(by_socket.values())
        # Sockets with equal nodes do as well as each other.
        kinds = [tuple((node.free, node.units) for node in group) for group in groups]
        sizes = [len(group) for group in groups]
        for size in range(fewest(sizes, self._number), len(groups) + 1):
            for chosen in sets_of(sizes, kinds, size, self._number):
                yield size, [node for index in sorted(chosen) for node in groups[index]]

    def _best_of(self, pool: list[Node]) -> Shares | None:
        """The best shares of these nodes (in Order), sockets left aside; None when they can't give enough.

        To give the same is better done by a node with more free CPUs, in the sum of squares: so it is the nodes with
        most, and the odd units are from the fullest of them.
        """
        fullest = sorted(pool, key=lambda node: -node.free)
        if self._even:
            odd = [node for node in fullest if node.units > self._share][: self._odd]
            taken = {node.place for node in odd}
            others = [node for node in fullest if node.place not in taken][: self._number - self._odd]
            if len(odd) + len(others) < self._number:
                return None
            shares = [(node, self._share + 1) for node in odd] + [(node, self._share) for node in others]
            return tuple(sorted(shares, key=lambda each: each[0].place))
        able = [
            self._filled(nodes) for nodes in self._sets(fullest) if sum(node.units for node in nodes) >= self._units
        ]
        return min(able, key=self._key, default=None)

    def _sets(self, fullest: list[Node]) -> Iterator[list[Node]]:
        """The sets of nodes one of which is the best: the one with most free CPUs, if it has most to give as well."""
        if all(a.units >= b.units for a, b in pairwise(fullest)):
            yield fullest[: self._number]
            return
        nodes = sorted(fullest, key=_place)
        kinds = [(node.free, node.units) for node in nodes]
        for chosen in sets_of([node.units for node in nodes], kinds, self._number, self._units):
            yield [nodes[index] for index in sorted(chosen)]
            if not self._looks.take(_SHARING * (self._number + self._odd)):
                return

    def _filled(self, nodes: list[Node]) -> Shares:
        """The even share of each, and the odd units one by one to the node that has most left (fault U4)."""
        shares = {node.place: self._share for node in nodes}
        # Who has most left, which so far is who had most, then in Order; and how many units more each can give.
        rest = [(-node.free, node.place, node.units - self._share) for node in nodes if node.units > self._share]
        heapify(rest)
        for _ in range(self._odd):
            left, place, units = rest[0]
            shares[place] += 1
            if units > 1:
                heapreplace(rest, (left + self._width, place, units - 1))
            else:
                heappop(rest)
        return tuple((node, shares[node.place]) for node in sorted(nodes, key=_place))

    def _all(self) -> Iterator[Shares]:
        """All shares there can be."""
        more = 1 if self._even else self._odd
        most = [min(node.units, self._share + more) for node in self._nodes]
        for chosen in sets_of(most, range(len(most)), self._number, self._units):
            places = sorted(chosen)
            # Each node as often as it can give one unit more.
            givers = [place for place in places for _ in range(most[place] - self._share)]
            for odd in sets_of([1] * len(givers), givers, self._odd, self._odd):
                extra = Counter(givers[index] for index in odd)
                yield tuple((self._nodes[place], self._share + extra[place]) for place in places)

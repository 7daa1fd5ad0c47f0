"""Distributed allocation held against every way to share: number of nodes, sockets, evenness of the rest, order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dra.allocation import allocate
from dra.allocation.distributed import distributed
from dra.allocation.errors import AllocationError
from dra.allocation.machine import Machine, machine_of
from dra.allocation.options import AllocationOptions, NumaNodes, Strategy
from dra.allocation.packed import packed
from dra.allocation.sets import MOST_SETS, sets_of
from dra.allocation.shares import Node, Sharing, even_shares_fit
from nri_cpu.topology import Cpu, Topology
from tests.unit.dra.allocation.random_machines import Request, requests
from tests.unit.dra.allocation.small_machines import small_requests

# Units of each node, 0 for those that give none.
Ways = Iterator[tuple[int, ...]]


def all_ways(most: list[int], number: int, units: int, even: bool) -> Ways:
    """Every way in which `number` of the nodes give `units`, none less than the even share, rounded down."""
    least = units // number
    if not least:
        return
    for nodes in combinations(range(len(most)), number):
        for given_ in product(*(range(least, min(most[node], least + 1 if even else units) + 1) for node in nodes)):
            if sum(given_) == units:
                shares = dict(zip(nodes, given_, strict=True))
                yield tuple(shares.get(node, 0) for node in range(len(most)))


def variance(numbers: Iterable[int]) -> Fraction:
    values = [Fraction(number) for number in numbers]
    mean = sum(values, Fraction()) / len(values)
    return sum(((value - mean) * (value - mean) for value in values), Fraction()) / len(values)


def in_order(way: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The nodes that give, the earliest first, then how much, the earliest most; ways are of nodes in Order."""
    return [place for place, share in enumerate(way) if share], [-share for share in way]


class Naive:
    """Answers by trying everything, for one request."""

    def __init__(self, machine: Machine, free: int, count: int, options: AllocationOptions) -> None:
        self.machine, self.free, self.count, self.options = machine, free, count, options
        cores = [core for core in machine.cores if not core & ~free]
        full = options.full_physical_cores
        self.width = cores[0].bit_count() if full and cores else 1
        self.units = count // self.width
        self.nodes = sorted((node for node in machine.nodes if node & free), key=self._order)
        self.most = [self._units_of(node, cores) for node in self.nodes]

    def _units_of(self, node: int, cores: list[int]) -> int:
        if self.options.full_physical_cores:
            return sum(1 for core in cores if core & node)
        return (node & self.free).bit_count()

    def _order(self, node: int) -> tuple[int, ...]:
        sockets = [socket for socket in self.machine.sockets if socket & node]
        outer = node if len(sockets) > 1 else sockets[0]
        return (outer & self.free).bit_count(), outer & -outer, (node & self.free).bit_count(), node & -node

    def ways(self) -> list[tuple[int, ...]] | None:
        """The ways of the right number of nodes; None when it is to be packed, none at all when it is an error."""
        numa_nodes = self.options.numa_nodes
        if numa_nodes is NumaNodes.ALL:
            numa_nodes = min(len(self.nodes), self.units)
        if isinstance(numa_nodes, int):
            return list(all_ways(self.most, numa_nodes, self.units, even=True))
        for number in range(1, len(self.nodes) + 1):
            ways = list(all_ways(self.most, number, self.units, even=False))
            if ways:
                return ways
        return None

    def cpus(self, way: tuple[int, ...]) -> int:
        cpus = 0
        for node, share in zip(self.nodes, way, strict=True):
            if share:
                cpus |= packed(self.machine, self.free & node, share * self.width, self.options)
        return cpus

    def key(self, way: tuple[int, ...]) -> tuple[object, ...]:
        cpus = self.cpus(way)
        rest = [(node & self.free & ~cpus).bit_count() for node in self.nodes]
        return sum(1 for socket in self.machine.sockets if socket & cpus), variance(rest), in_order(way)


@given(
    st.one_of(requests(28), small_requests(12)),
    st.one_of(st.sampled_from([None, *NumaNodes]), st.integers(1, 6)),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_no_way_to_share_is_better(
    request_: Request, numa_nodes: NumaNodes | int | None, full: bool, align_l3: bool
) -> None:
    machine, free, count = machine_of(request_.topology), request_.free.mask, request_.count
    assume(sum(1 for node in machine.nodes if node & free) <= 6)
    options = AllocationOptions(Strategy.DISTRIBUTED, numa_nodes, full, align_l3)
    naive = Naive(machine, free, count, options)
    widths = {core.bit_count() for core in machine.cores for node in naive.nodes if core & node}
    refused = full and (len(widths) != 1 or count % naive.width or naive.units > sum(naive.most))
    ways = [] if refused else naive.ways()
    if ways == []:
        with pytest.raises(AllocationError):
            distributed(machine, free, count, options)
        return
    ours = distributed(machine, free, count, options)
    assert not ours & ~free
    assert ours.bit_count() == count
    assert ours == distributed(machine, free, count, options)
    all_packed = packed(machine, free, count, options)
    on_one = sum(1 for node in machine.nodes if node & all_packed) == 1
    automatic = numa_nodes in (None, NumaNodes.AUTO)
    if ways is None or (automatic and sum(map(bool, ways[0])) == 1 and on_one):
        assert ours == all_packed
    else:
        assert ours == naive.cpus(min(ways, key=naive.key))


@given(
    st.one_of(requests(28), small_requests(12)),
    st.one_of(st.none(), st.just(NumaNodes.ALL), st.integers(1, 6)),
    st.booleans(),
    st.integers(1, 40),
)
@settings(max_examples=300, deadline=None)
def test_numbers_that_a_refusal_offers_are_the_nearest_that_are_not_refused(
    request_: Request, numa_nodes: NumaNodes | int | None, full: bool, count: int
) -> None:
    options = AllocationOptions(Strategy.DISTRIBUTED, numa_nodes, full)

    def answered(number: int) -> bool:
        try:
            return len(allocate(request_.topology, request_.free, number, options)) == number
        except AllocationError as error:
            offered[number] = error.would_fit
            return False

    offered: dict[int, tuple[int, ...]] = {}
    if not answered(count):
        possible = [number for number in range(1, len(request_.free) + 1) if answered(number)]
        smaller = [number for number in possible if number < count][-1:]
        larger = [number for number in possible if number > count][:1]
        assert offered[count] == (*smaller, *larger)


@st.composite
def any_nodes(draw: st.DrawFn) -> tuple[list[Node], int, int, int]:
    """Nodes of up to three sockets, whose free CPUs say little about their whole cores; how many, units, width."""
    width, share = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    sockets = sorted(draw(st.lists(st.integers(0, draw(st.integers(0, 2))), min_size=3, max_size=6)))
    nodes = []
    for place, socket in enumerate(sockets):
        units = share + draw(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3, -1 if share > 1 else 0]))
        free = units * width + (draw(st.integers(0, 12)) if width > 1 else 0)
        nodes.append(Node(place, place, 0, free, units, units * width, socket))
    number = draw(st.integers(2, len(nodes)))
    return nodes, number, number * share + draw(st.integers(0, number - 1)), width


def sockets_of_which_two_have_equal_free_cpus() -> list[Node]:
    """And not equal whole cores."""
    have = [(4, 2, 0), (12, 3, 1), (12, 6, 2), (14, 6, 3), (10, 3, 3), (8, 4, 3)]
    return [Node(place, place, 0, free, units, 2 * units, socket) for place, (free, units, socket) in enumerate(have)]


@given(any_nodes(), st.booleans())
@example((sockets_of_which_two_have_equal_free_cpus(), 4, 14, 2), False)
@example((sockets_of_which_two_have_equal_free_cpus(), 4, 14, 2), True)
@settings(max_examples=500, deadline=None)
def test_shares_are_the_best_whatever_the_nodes_have(case: tuple[list[Node], int, int, int], even: bool) -> None:
    nodes, number, units, width = case
    ways = list(all_ways([node.units for node in nodes], number, units, even))
    assert not even or even_shares_fit(nodes, number, units) == bool(ways)
    assume(ways)

    def key(way: tuple[int, ...]) -> tuple[object, ...]:
        sockets = {node.socket for node, share in zip(nodes, way, strict=True) if share}
        rest = variance(node.free - share * width for node, share in zip(nodes, way, strict=True))
        return len(sockets), rest, in_order(way)

    shares = {node.place: share for node, share in Sharing(nodes, number, units, width, even).on_fewest_sockets()}
    assert tuple(shares.get(node.place, 0) for node in nodes) == min(ways, key=key)


@pytest.mark.parametrize(("even", "in_a_socket"), [(True, 1), (False, 48)])
def test_many_nodes_and_none_like_the_other_get_an_answer(
    even: bool, in_a_socket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far more sets than are looked at: 24 of 48 nodes, and whole cores are not where free CPUs are."""
    looked_at: list[int] = []

    def counted(*args: Any) -> Iterator[tuple[int, ...]]:
        for chosen in sets_of(*args):
            looked_at.append(len(chosen))
            yield chosen

    monkeypatch.setattr("dra.allocation.shares.sets_of", counted)
    nodes = [
        Node(place, place, 0, 40 + place * 7 % 48, 8 + place * 5 % 12, 2 * (8 + place * 5 % 12), place // in_a_socket)
        for place in range(48)
    ]
    shares = Sharing(nodes, 24, 24 * 8 + 11, 2, even).on_fewest_sockets()
    assert sum(looked_at) <= 8 * MOST_SETS + 48
    assert len(shares) == 24
    assert sum(share for _, share in shares) == 24 * 8 + 11
    assert all(8 <= share <= (9 if even else node.units) for node, share in shares)


def test_a_big_machine_of_nodes_with_many_sockets_gets_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = Topology.of(Cpu(n, n // 2, 0, -1, n, n // 16, 0) for n in range(512))
    machine = machine_of(topology)
    free = topology.online.mask & ~sum(1 << n for n in range(0, 512, 7))
    keys: list[object] = []

    def counted(sharing: Sharing, shares: Any) -> Any:
        keys.append(shares)
        return key(sharing, shares)

    key = Sharing._key
    monkeypatch.setattr(Sharing, "_key", counted)
    for numa_nodes in (20, NumaNodes.ALL, None):
        keys.clear()
        cpus = distributed(machine, free, 190, AllocationOptions(Strategy.DISTRIBUTED, numa_nodes))
        assert cpus.bit_count() == 190
        assert len(keys) < MOST_SETS / 2
        assert not cpus & ~free

"""Promises of spread allocation, held against every choice there is on machines small enough to try them all."""

from collections.abc import Iterator
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra.allocation.machine import machine_of
from dra.allocation.sets import MOST_SETS, fewest, sets_of
from dra.allocation.spread import _Request, spread, spread_quality
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Cpu, Topology
from tests.unit.dra.allocation.random_machines import Request, requests
from tests.unit.dra.allocation.small_machines import small_requests
from tests.unit.topology.machines import box, hybrid, machine, t1, t1b, t2

Vector = tuple[int, int, int, bool, int, list[int]]


def chosen(topology: Topology, free: str, count: int) -> str:
    return str(CPUSet.from_mask(spread(machine_of(topology), CPUSet.parse(free).mask, count)))


def vector(topology: Topology, free: CPUSet, cpus: CPUSet) -> Vector:
    """All levels of spread, smaller is better, said the long way."""
    machine_ = machine_of(topology)

    def touched(objects: tuple[int, ...]) -> list[CPUSet]:
        return [each for each in map(CPUSet.from_mask, objects) if each & cpus]

    cores = touched(machine_.cores)
    return (
        len(touched(machine_.sockets)),
        len(touched(machine_.nodes)),
        -len(cores),
        len(touched(machine_.types)) > 1,
        len([core for core in cores if core <= free and not core <= cpus]),
        list(cpus),
    )


def smt(width: int, cores: int) -> Topology:
    """One socket of cores with `width` threads, siblings adjacent."""
    return Topology.of(Cpu(n, 0, 0, -1, n // width, 0, 0) for n in range(width * cores))


@pytest.mark.parametrize(
    ("topology", "free", "count", "expected"),
    [
        (t1(), "0-15", 2, "0-1"),
        (t1(), "0-15", 8, "0-7"),
        (t1(), "0-15", 10, "0-9"),
        (t1(), "1-15", 2, "1,8"),
        (t1(), "0-15", 16, "0-15"),
        (t1b(), "0-15", 5, "0-4"),
        (t2(), "0-15", 2, "0-1"),
        (t2(), "0-15", 5, "0-3,8"),
        (t2(), "0-1,4-7,12-15", 5, "4-7,12"),
        (t2(), "0-15", 9, "0-8"),
        (box(), "0-15", 3, "0-1,8"),
        (box(), "0-1,4-5", 3, "0-1,4"),
    ],
)
def test_documented_choices(topology: Topology, free: str, count: int, expected: str) -> None:
    assert chosen(topology, free, count) == expected


@pytest.mark.fault("R12")
def test_cores_that_lost_a_thread_are_taken_before_whole_ones() -> None:
    assert chosen(t1(offline=[15]), "0-14", 1) == "7"
    assert chosen(t1(offline=[15]), "0-14", 3) == "0-1,7"


@pytest.mark.fault("R12")
def test_core_types_are_not_mixed_as_long_as_one_has_cores_enough() -> None:
    assert chosen(hybrid(2, 4), "0-7", 2) == "4-5"
    assert chosen(hybrid(4, 2), "0-9", 3) == "0,2,4"
    # More different cores are worth the mix.
    assert chosen(hybrid(2, 4), "0-7", 5) == "0,4-7"


@pytest.mark.fault("R15")
def test_cores_of_any_width_give_one_thread_and_then_as_many_as_possible_are_taken_wholly() -> None:
    assert chosen(smt(4, 4), "0-15", 4) == "0,4,8,12"
    assert chosen(smt(4, 4), "0-15", 7) == "0-4,8,12"
    assert chosen(smt(4, 4), "0-15", 6) == "0-2,4,8,12"
    # Two more: core 4-7 could take both, core 13-15 gives them and is broken already.
    assert chosen(smt(4, 4), "4-7,13-15", 4) == "4-6,13"
    # Of five threads more, three complete a core; the others are the lowest.
    assert chosen(smt(4, 4), "0-2,4-7,9-15", 9) == "0-2,4-7,9,12"


@pytest.mark.fault("R11")
def test_cores_with_the_same_id_on_two_sockets_are_different_cores() -> None:
    assert chosen(t2(), "3,7,11,15", 3) == "3,7,11"
    assert chosen(t2(), "0,4-5,8", 2) == "4-5"


def test_sockets_that_share_a_numa_node_are_worth_more_than_equal_ones_that_do_not() -> None:
    topology = Topology.of(Cpu(n, n // 4, 0, -1, n, n // 8, 0) for n in range(16))
    assert chosen(topology, "2-15", 8) == "8-15"


P_CORE, E_CORE = CoreType.P_CORE, CoreType.E_CORE


@pytest.mark.parametrize(
    ("cpus", "count", "expected"),
    [
        pytest.param([(0, 0, n // 2) for n in range(4)] + [(1, 1, n) for n in range(4)], 2, "4-5", id="width"),
        pytest.param(
            [(0, 0, n, (P_CORE, E_CORE)[n % 2]) for n in range(4)] + [(1, 1, n, P_CORE) for n in range(4)],
            3,
            "4-6",
            id="type",
        ),
        pytest.param([(0, n // 2, n) for n in range(4)] + [(1, 2, n) for n in range(4)], 3, "4-6", id="nodes"),
    ],
)
def test_sockets_that_differ_only_in_what_their_cpus_are_are_told_apart(
    cpus: list[tuple[int, int, int] | tuple[int, int, int, CoreType]], count: int, expected: str
) -> None:
    topology = Topology.of(Cpu(n, cpu[0], 0, -1, cpu[2], cpu[1], 0, *cpu[3:]) for n, cpu in enumerate(cpus))
    assert chosen(topology, "0-7", count) == expected


def test_one_type_in_another_node_is_worth_a_broken_core() -> None:
    kinds = [(0, 0, P_CORE), (0, 1, E_CORE), (1, 2, P_CORE), (1, 2, P_CORE), (1, 3, P_CORE), (1, 3, P_CORE)]
    topology = Topology.of(Cpu(n, 0, 0, -1, core, node, 0, kind) for n, (node, core, kind) in enumerate(kinds))
    assert chosen(topology, "0-5", 2) == "2,4"


@given(st.one_of(small_requests(), requests(16, most_free=10)))
@settings(max_examples=600, deadline=None)
def test_no_choice_of_all_is_better(request_: Request) -> None:
    topology, free, count = request_.topology, request_.free, request_.count
    ours = CPUSet.from_mask(spread(machine_of(topology), free.mask, count))
    assert ours <= free
    assert len(ours) == count
    best = min(vector(topology, free, CPUSet(each)) for each in combinations(free, count))
    assert vector(topology, free, ours) == best


def test_a_core_of_one_thread_is_none_that_is_completed() -> None:
    cores = [(0,), (1,), (2, 3, 4), (5, 6)]
    topology = Topology.of(Cpu(cpu, 0, 0, -1, core[0], 0, 0) for core in cores for cpu in core)
    assert str(CPUSet.from_mask(spread(machine_of(topology), topology.online.mask, 5))) == "0-2,5-6"


@given(requests(96))
@settings(max_examples=100, deadline=None)
def test_machines_too_big_to_try_everything_get_the_number_out_of_what_is_free(request_: Request) -> None:
    machine_ = machine_of(request_.topology)
    cpus = CPUSet.from_mask(spread(machine_, request_.free.mask, request_.count))
    assert cpus <= request_.free
    assert len(cpus) == request_.count
    assert cpus.mask == spread(machine_, request_.free.mask, request_.count)


@given(requests(16, most_free=10))
@settings(max_examples=50, deadline=None)
def test_quality_says_the_levels_in_their_order(request_: Request) -> None:
    topology, free, count = request_.topology, request_.free, request_.count
    cpus = spread(machine_of(topology), free.mask, count)
    quality = spread_quality(machine_of(topology), free.mask, cpus)
    sockets, nodes, cores, mixed, broken, _ = vector(topology, free, CPUSet.from_mask(cpus))
    assert list(quality.items()) == [
        ("sockets", sockets),
        ("numaNodes", nodes),
        ("cores", -cores),
        ("coreTypesMixed", mixed),
        ("coresBroken", broken),
    ]


def test_a_machine_of_many_equal_sockets_is_searched_once_for_each_kind() -> None:
    big = machine(sockets=32, cores=8, threads=2, nodes=2)
    assert chosen(big, f"0-{32 * 16 - 1}", 16 * 15 + 3) == "0-123,256-374"


def test_a_machine_of_many_sockets_and_none_like_the_other_gets_an_answer() -> None:
    """More sets than are looked at: 12 of 28 sockets."""
    cpus = [
        Cpu(100 * socket + n, socket, 0, -1, n // 2, socket, socket)
        for socket in range(28)
        for n in range(8 + 2 * (socket % 3))
    ]
    topology = Topology.of(cpus)
    free = topology.online - CPUSet(100 * socket + socket % 7 for socket in range(28))
    machine_ = machine_of(topology)
    got = spread(machine_, free.mask, 120)
    assert got & ~free.mask == 0
    assert got.bit_count() == 120
    assert spread_quality(machine_, free.mask, got)["sockets"] == 12


def test_8_of_16_sockets_that_are_all_different_are_the_best_of_all_sets() -> None:
    """Which come last: sockets 8 to 15 have six free CPUs like the others, on more cores."""
    three_of_five = list(combinations(range(5), 3))[:8]
    free = [
        CPUSet(10 * socket + 2 * core + thread for core in three for thread in (0, 1))
        for socket, three in enumerate(three_of_five)
    ]
    for socket, (*whole, half) in enumerate(three_of_five, 8):
        first = 10 * socket
        another = min({0, 1, 2, 3, 4} - {*whole, half})
        free.append(
            CPUSet(first + 2 * core + thread for core in whole for thread in (0, 1))
            | CPUSet([first + 2 * half, first + 2 * another + 1])
        )
    topology = Topology.of(Cpu(n, n // 10, 0, -1, n // 2, n // 10, n // 10) for n in range(160))
    got = CPUSet.from_mask(spread(machine_of(topology), CPUSet.union(free).mask, 48))
    assert got == CPUSet.union(free[8:])


@pytest.mark.parametrize("sockets", [20, 28, 64])
def test_a_search_has_an_end(sockets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def counted(*args: Any) -> Iterator[tuple[int, ...]]:
        for chosen in sets_of(*args):
            looked_at.append(len(chosen))
            yield chosen

    monkeypatch.setattr("dra.allocation.spread.sets_of", counted)
    topology = Topology.of(Cpu(n, n // 16, 0, -1, n // 2, n // 16, n // 16) for n in range(16 * sockets))
    taken = CPUSet(16 * socket + (socket + 7 * n) % 16 for socket in range(sockets) for n in range(1 + socket % 3))
    free = topology.online - taken
    count = len(free) // 2
    assert len(CPUSet.from_mask(spread(machine_of(topology), free.mask, count))) == count
    assert len(looked_at) <= MOST_SETS
    assert sum(looked_at) <= 8 * MOST_SETS + sockets


@pytest.mark.parametrize(
    ("sockets", "nodes", "cores", "threads", "count"),
    [(8, 4, 16, 4, 302), (2, 8, 64, 8, 600), (2, 16, 128, 4, 610)],
)
def test_of_many_regions_that_are_as_good_few_lists_are_made(
    sockets: int, nodes: int, cores: int, threads: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which CPUs of cores of four threads and more are the lowest takes a step for each CPU."""
    made: list[int] = []

    def counted(request: Any, pool: int, *args: int) -> int:
        made.append(pool)
        return original(request, pool, *args)

    original = _Request._lowest_completing
    monkeypatch.setattr(_Request, "_lowest_completing", counted)
    topology = machine(sockets=sockets, nodes=nodes, cores=cores, threads=threads)
    free = topology.online - CPUSet(Random(1).sample(list(topology.online), len(topology.online) // 20))
    machine_ = machine_of(topology)
    got = spread(machine_, free.mask, count)
    assert len(made) < 10
    # The same comes out when the list of each is made.
    made.clear()
    monkeypatch.setattr(_Request, "_bound", lambda *_: topology.online.mask)
    if sockets == 8:
        monkeypatch.setattr("dra.allocation.sets._SET", 10**5)
        assert spread(machine_, free.mask, count) == got
        assert len(made) > 40


def test_sets_come_once_each_for_all_kinds_and_only_those_that_hold_enough() -> None:
    sizes, kinds = [4, 4, 3, 5, 3], ["a", "a", "b", "c", "b"]
    assert list(sets_of(sizes, kinds, 2, 8)) == [(3, 0), (3, 2), (0, 1)]
    assert list(sets_of(sizes, range(5), 2, 9)) == [(3, 0), (3, 1)]
    assert list(sets_of(sizes, kinds, 5, 19)) == [(3, 0, 1, 2, 4)]
    assert not list(sets_of(sizes, kinds, 5, 20))
    assert not list(sets_of(sizes, kinds, 6, 1))
    assert [fewest(sizes, least) for least in (1, 5, 6, 9, 10, 19)] == [1, 1, 2, 2, 3, 5]

"""Promises of distributed allocation: which nodes give how much, and that what can't be even is refused."""

from functools import partial

import pytest

from dra.allocation import allocate
from dra.allocation.distributed import distributed, distributed_quality
from dra.allocation.errors import AllocationError, SMTAlignmentError
from dra.allocation.machine import machine_of
from dra.allocation.options import AllocationOptions, NumaNodes, Strategy
from dra.allocation.quality import packed_quality
from dra.allocation.spread import spread_quality
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Cpu, Topology
from tests.unit.topology.machines import box, hybrid, machine, t1, t2

ALL = NumaNodes.ALL


def options(numa_nodes: NumaNodes | int | None = None, **more: bool) -> AllocationOptions:
    return AllocationOptions(Strategy.DISTRIBUTED, numa_nodes, **more)


def chosen(
    topology: Topology, free: str, count: int, numa_nodes: NumaNodes | int | None = None, **more: bool
) -> CPUSet:
    mask = CPUSet.parse(free).mask
    return CPUSet.from_mask(distributed(machine_of(topology), mask, count, options(numa_nodes, **more)))


def shares(topology: Topology, cpus: CPUSet) -> list[int]:
    """CPUs on each node of the machine."""
    return [len(node & cpus) for node in topology.nodes.values()]


@pytest.mark.fault("B5", "F-1")
@pytest.mark.parametrize(
    ("topology", "free", "count", "numa_nodes", "expected"),
    [
        (t2(), "0-15", 4, None, "0-1,8-9"),
        (t2(), "0-15", 4, NumaNodes.AUTO, "0-1,8-9"),
        (t2(), "0-15", 4, ALL, "0,4,8,12"),
        (t2(), "0-15", 4, 2, "0,4,8,12"),
        (t2(), "0-15", 15, ALL, "0-7,8-11,12-14"),
        (t2(), "0-15", 10, None, "0-2,4-6,8-9,12-13"),
        (t2(), "0-15", 1, ALL, "0"),
        (t1(), "0-15", 6, ALL, "0-2,8-10"),
        (box(), "0-15", 6, None, "0-3,8,10"),
    ],
)
def test_documented_choices(
    topology: Topology, free: str, count: int, numa_nodes: NumaNodes | None, expected: str
) -> None:
    assert chosen(topology, free, count, numa_nodes) == CPUSet.parse(expected)


@pytest.mark.fault("B5")
@pytest.mark.parametrize(
    ("sockets", "nodes", "expected"), [(1, 1, [15]), (2, 1, [8, 7]), (2, 2, [4, 4, 4, 3]), (4, 1, [4, 4, 4, 3])]
)
def test_one_claim_is_even_on_a_machine_of_any_number_of_nodes(sockets: int, nodes: int, expected: list[int]) -> None:
    topology = machine(sockets=sockets, cores=16 // sockets, threads=2, nodes=nodes)
    assert sorted(shares(topology, chosen(topology, "0-31", 15, ALL)), reverse=True) == expected


@pytest.mark.fault("B5")
def test_shares_that_cannot_be_even_are_an_error_with_each_nodes_free_cpus() -> None:
    with pytest.raises(
        AllocationError,
        match=r"^9 CPUs requested on 2 NUMA nodes, 4 or 5 on each; free are 8 on node 0, 2 on node 1$",
    ) as caught:
        chosen(t2(), "0-3,8-11,4,12", 9, ALL)
    assert caught.value.would_fit == (5,)
    assert shares(t2(), chosen(t2(), "0-3,8-11,4,12", 5, ALL)) == [3, 2]


@pytest.mark.parametrize(
    ("count", "numa_nodes", "message", "would_fit"),
    [
        (4, 3, "4 CPUs requested on 3 NUMA nodes, 1 or 2 on each; free are 8 on node 0, 8 on node 1", ()),
        (4, 5, "4 CPUs requested on 5 NUMA nodes, too few for 1 on each; free are 8 on node 0, 8 on node 1", ()),
        (1, 2, "1 CPU requested on 2 NUMA nodes, too few for 1 on each; free are 8 on node 0, 8 on node 1", (2,)),
        (9, 1, "9 CPUs requested on 1 NUMA node, 9 on each; free are 8 on node 0, 8 on node 1", (8,)),
    ],
)
def test_a_number_of_nodes_that_cannot_be_is_refused(
    count: int, numa_nodes: int, message: str, would_fit: tuple[int, ...]
) -> None:
    with pytest.raises(AllocationError) as caught:
        chosen(t2(), "0-15", count, numa_nodes)
    assert str(caught.value) == message
    assert caught.value.would_fit == would_fit


@pytest.mark.fault("B5")
def test_with_all_nodes_and_fewer_cpus_than_nodes_each_cpu_is_on_a_node_of_its_own() -> None:
    topology = machine(sockets=2, cores=8, nodes=4)
    assert sorted(shares(topology, chosen(topology, "0-15", 3, ALL))) == [0] * 5 + [1] * 3
    assert sum(shares(topology, chosen(topology, "0-15", 3, ALL))[:4]) == 3


def test_nodes_without_free_cpus_are_not_among_all() -> None:
    topology = machine(sockets=2, cores=8, nodes=2)
    assert shares(topology, chosen(topology, "0-3,8-15", 6, ALL)) == [2, 0, 2, 2]


@pytest.mark.fault("U3")
def test_four_nodes_of_one_socket_are_taken_although_others_would_leave_an_evener_rest() -> None:
    # 32, 32, 32 and 30 free CPUs on the nodes of both sockets.
    topology = machine(sockets=2, cores=64, threads=2, nodes=4)
    free = topology.online - CPUSet.parse("48,176,112,240")
    cpus = CPUSet.from_mask(distributed(machine_of(topology), free.mask, 120, options()))
    assert shares(topology, cpus) == [30, 30, 30, 30, 0, 0, 0, 0]


@pytest.mark.fault("U4")
def test_odd_cpus_come_from_the_nodes_that_share_and_keep_the_rest_even() -> None:
    topology = machine(sockets=4, cores=8)
    # 3, 6, 5 and 4 free: three nodes for 13 and 14; node 1 has most, then nodes 1 and 2 have one more than the other.
    assert shares(topology, chosen(topology, "0-2,8-13,16-20,24-27", 13)) == [0, 5, 4, 4]
    assert shares(topology, chosen(topology, "0-2,8-13,16-20,24-27", 14)) == [0, 5, 5, 4]
    # As many as possible to one node: 2 CPUs more than the share where the others have none.
    topology = Topology.of(Cpu(n, 0, 0, -1, n, max(0, n - 7), 0) for n in range(10))
    assert shares(topology, chosen(topology, "0-9", 10)) == [8, 1, 1]


def test_the_fewest_nodes_that_can_share_evenly_are_taken() -> None:
    topology = machine(sockets=1, cores=24, nodes=3)
    # 8, 3 and 4 free: two nodes can't give 5 each, three can give 3.
    assert shares(topology, chosen(topology, "0-7,8-10,16-19", 10)) == [4, 3, 3]


def test_where_no_number_of_nodes_can_share_evenly_it_is_packed() -> None:
    topology = machine(sockets=1, cores=24, nodes=3)
    # 8, 1 and 2 free: nor can two give 5 each, nor three 3.
    assert shares(topology, chosen(topology, "0-7,8,16-17", 10)) == [8, 0, 2]


def test_within_a_node_the_share_is_packed() -> None:
    assert str(chosen(t2(), "0-3,8-11,4-7,13-15", 6, ALL)) == "0-1,4-5,8,13"
    topology = machine(sockets=2, cores=8, threads=2, l3_per_node=2)
    free = "0,2-3,4-5,20-21,8-15,24-31"
    assert CPUSet.parse("0,2-3") <= chosen(topology, free, 6, ALL)
    assert CPUSet.parse("0,4,20") <= chosen(topology, free, 6, ALL, align_l3=False)


@pytest.mark.fault("B5", "U1")
def test_full_physical_cores_are_shared_out_whole() -> None:
    assert str(chosen(t2(), "0-15", 6, ALL, full_physical_cores=True)) == "0-1,4,8-9,12"
    assert str(chosen(t2(), "0-15", 4, full_physical_cores=True)) == "0-1,8-9"
    # Node 0 has three cores of which one is whole; loose threads are no core.
    assert str(chosen(t2(), "0-2,8,4-7,12-15", 6, full_physical_cores=True)) == "4-6,12-14"
    with pytest.raises(
        AllocationError,
        match=r"2 NUMA nodes, 4 on each; free are 4 on node 0 \(2 CPUs on whole cores\), 8 on node 1 \(8 CPUs on whole",
    ) as caught:
        chosen(t2(), "0-2,8,4-7,12-15", 8, ALL, full_physical_cores=True)
    assert caught.value.would_fit == (6,)


@pytest.mark.fault("B5", "U1")
def test_full_physical_cores_that_cannot_give_the_number_are_packeds_error() -> None:
    with pytest.raises(SMTAlignmentError, match="requested 3 CPUs is not a multiple of 2 threads per core"):
        chosen(t1(), "0-15", 3, ALL, full_physical_cores=True)
    with pytest.raises(SMTAlignmentError, match="2 CPUs are on whole free cores"):
        chosen(t2(), "0-4,12", 4, 2, full_physical_cores=True)
    with pytest.raises(SMTAlignmentError, match="0 CPUs are on whole free cores"):
        chosen(t2(), "0-7", 4, full_physical_cores=True)


@pytest.mark.fault("R12")
def test_full_physical_cores_of_several_widths_have_no_even_shares() -> None:
    with pytest.raises(SMTAlignmentError, match=r"^requested 4 CPUs .* have 1 and 2 threads.*; use strategy: packed$"):
        chosen(hybrid(2, 4), "0-7", 4, full_physical_cores=True)
    # What others hold makes no difference: it is the cores of the nodes that count, also those that are not free.
    with pytest.raises(SMTAlignmentError, match="have 1 and 2 threads") as caught:
        chosen(hybrid(2, 4), "0-3", 4, full_physical_cores=True)
    assert caught.value.would_fit == ()
    # Node 1 has a core that lost a thread; nodes without free CPUs are not asked.
    topology = machine(sockets=2, cores=4, threads=2, offline=[7])
    assert str(chosen(topology, "0-3,8-11", 4, full_physical_cores=True)) == "0-1,8-9"
    with pytest.raises(SMTAlignmentError, match="have 1 and 2 threads"):
        chosen(topology, "0-4,8-11", 4, full_physical_cores=True)


@pytest.mark.fault("R15")
def test_full_physical_cores_of_four_threads_are_units_of_four() -> None:
    topology = Topology.of(Cpu(n, n // 16, 0, -1, n // 4, n // 16, n // 16) for n in range(32))
    assert str(chosen(topology, "0-31", 12, ALL, full_physical_cores=True)) == "0-7,16-19"


def test_one_node_of_several_sockets_is_one_node_although_packed_prefers_a_socket_of_two_nodes() -> None:
    # Node 0: sockets 0 and 1 of a CPU each and more; nodes 1 and 2 are socket 2.
    cpus = [Cpu(n, n, 0, -1, n, 0, 0) for n in range(2)] + [Cpu(n, 2, 0, -1, n, n - 1, 1) for n in (2, 3)]
    assert str(chosen(Topology.of(cpus), "0-3", 2, 1)) == "0-1"
    assert str(chosen(Topology.of(cpus), "0-3", 2)) == "0-1"
    # Only auto is packed on one node: a number is a number.
    assert str(chosen(t2(), "0-2,4-7,12-15", 3)) == "0-2"
    assert str(chosen(t2(), "0-2,4-7,12-15", 3, 1)) == "4-5,12"
    assert str(chosen(t2(), "0-2,4-7,12-15", 1)) == "0"
    assert str(chosen(t2(), "0-2,4-7,12-15", 1, ALL)) == "4"


def test_parts_of_a_node_that_crosses_sockets_are_one_node() -> None:
    """As contradicting tables have it: node 0 is half of each of two sockets, which also have a node of their own."""
    topology = of_places([(0, 0), (0, 0), (1, 0), (1, 0), (0, 1), (0, 1), (1, 2), (1, 2)])
    assert shares(topology, chosen(topology, "0-7", 6, ALL)) == [2, 2, 2]
    assert shares(topology, chosen(topology, "0-7", 3)) == [3, 0, 0]
    with pytest.raises(AllocationError, match=r"free are 4 on node 0, 2 on node 1, 2 on node 2$") as caught:
        chosen(topology, "0-7", 8, ALL)
    assert caught.value.would_fit == (7,)
    for quality in (distributed_quality, spread_quality, partial(packed_quality, align_l3=True)):
        assert quality(machine_of(topology), topology.online.mask, 0b1110)["numaNodes"] == 1


def of_places(places: list[tuple[int, int]]) -> Topology:
    """CPUs without siblings, at these (socket, node)."""
    return Topology.of(Cpu(n, socket, 0, -1, n, node, 0) for n, (socket, node) in enumerate(places))


def test_where_nodes_hold_sockets_it_is_the_sockets_of_the_cpus_that_count() -> None:
    """As in virtual machines: nodes of many small sockets."""
    # The odd CPU: node 0 has more, but each in a socket of its own.
    topology = of_places([(0, 0), (1, 0), (2, 0), (3, 1), (3, 1)])
    assert str(chosen(topology, "0-4", 3, ALL)) == "0,3-4"
    # Two odd ones, both to node 0, or another socket of node 1 or 2 were touched.
    topology = of_places([(0, 0)] * 4 + [(1, 1), (1, 1), (2, 1), (3, 2), (3, 2), (4, 2)])
    assert str(chosen(topology, "0-9", 8)) == "0-5,7-8"
    assert sorted(shares(topology, chosen(topology, "0-9", 8, ALL))) == [2, 3, 3]
    # Which nodes: the two that have their CPUs together.
    topology = of_places([(0, 0), (1, 0), (2, 1), (2, 1), (3, 2), (3, 2)])
    assert str(chosen(topology, "0-5", 4, 2)) == "2-5"


def test_of_equals_those_are_taken_that_come_first_in_order() -> None:
    # Sockets 0 and 1 have two nodes with 4 free CPUs each; the third has 2 in socket 0, 1 in socket 1.
    topology = machine(sockets=2, cores=12, nodes=3)
    assert shares(topology, chosen(topology, "0-9,12-20", 4, 2)) == [0, 0, 0, 2, 2, 0]
    # 4, 3 and 3 free, 8 wanted: 2 on each, and two of the three nodes give one more.
    topology = of_places([(n, 0 if n < 4 else (n - 1) // 3) for n in range(10)])
    assert shares(topology, chosen(topology, "0-9", 8)) == [3, 3, 2]


@pytest.mark.fault("B5", "U1")
@pytest.mark.parametrize(
    ("free", "count", "numa_nodes", "there", "would_fit"),
    [
        ("0-11", 4, ALL, "8 on node 0 (8 CPUs on whole cores), 4 on node 1 (0 CPUs on whole cores)", (2,)),
        ("0-3,4-7,12-15", 4, 2, "4 on node 0 (0 CPUs on whole cores), 8 on node 1 (8 CPUs on whole cores)", ()),
    ],
)
def test_all_nodes_are_also_those_without_a_whole_free_core(
    free: str, count: int, numa_nodes: NumaNodes | int, there: str, would_fit: tuple[int, ...]
) -> None:
    with pytest.raises(AllocationError) as caught:
        chosen(t2(), free, count, numa_nodes, full_physical_cores=True)
    assert str(caught.value) == f"4 CPUs requested on 2 NUMA nodes, 2 on each; free are {there}"
    assert caught.value.would_fit == would_fit
    assert str(chosen(t2(), "0-11", 2, ALL, full_physical_cores=True)) == "0,8"


def test_a_refusal_lists_eight_nodes_and_how_many_more_there_are() -> None:
    topology = machine(sockets=1, cores=20, nodes=10)
    with pytest.raises(AllocationError, match=r"free are 2 on node 0, .*, 2 on node 7 and 2 more$"):
        chosen(topology, "0-18", 20, ALL)


@pytest.mark.parametrize(
    ("free", "count", "full", "would_fit"),
    [("0-15", 17, False, (16,)), ("0-15", 3, True, (4,)), ("0-11", 10, True, ()), ("0-15", 18, True, (16,))],
)
def test_what_a_refusal_offers_two_nodes_can_give(
    free: str, count: int, full: bool, would_fit: tuple[int, ...]
) -> None:
    with pytest.raises(AllocationError) as caught:
        allocate(t2(), CPUSet.parse(free), count, options(2, full_physical_cores=full))
    assert caught.value.would_fit == would_fit


def test_quality_has_names_in_the_order_in_which_they_count() -> None:
    quality = distributed_quality(machine_of(t2()), CPUSet.parse("0-15").mask, CPUSet.parse("0-7,8-11,12-14").mask)
    assert list(quality.items()) == [("numaNodes", 2), ("shares", (8, 7)), ("sockets", 2), ("deviation", 0.5)]

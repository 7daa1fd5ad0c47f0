"""Promises of packed allocation: a subset of what is free, the exact number, and the documented choices."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.allocation import AllocationError, AllocationOptions, SMTAlignmentError, allocate
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Cpu, Topology
from tests.unit.dra.allocation.random_machines import Request, requests
from tests.unit.topology.machines import box, hybrid, machine, t1, t1b, t2


def parse(text: str) -> CPUSet:
    return CPUSet.parse(text)


def without_l3(topology: Topology) -> Topology:
    return Topology.of(replace(cpu, l3=None) for cpu in topology.cpus.values())


@pytest.mark.parametrize(
    ("topology", "free", "count", "expected"),
    [
        (t1(), "0-15", 2, "0,8"),
        (t1(), "0-15", 3, "0-1,8"),
        pytest.param(t1(), "1-15", 3, "1,8-9", marks=pytest.mark.fault("U6")),
        pytest.param(t1(offline=[15]), "0-14", 2, "0,8", marks=pytest.mark.fault("R12", "H3")),
        pytest.param(t1(offline=[15]), "0-14", 1, "7", marks=pytest.mark.fault("R12")),
        pytest.param(t1b(), "3,5,7,11-15", 5, "5,7,12-13,15", marks=pytest.mark.fault("U2", "R13")),
        pytest.param(t2(), "0-3,10-11", 4, "2-3,10-11", marks=pytest.mark.fault("R11")),
        (t2(), "0-15", 8, "0-3,8-11"),
        (without_l3(t2()), "0,8,4-7,12-15", 4, "4-5,12-13"),
        (box(), "0-15", 4, "0-1,8-9"),
        (box(), "0,2-15", 4, "2-3,10-11"),
        (box(), "0-15", 6, "0-2,8-10"),
    ],
)
def test_documented_choices(topology: Topology, free: str, count: int, expected: str) -> None:
    assert allocate(topology, parse(free), count) == parse(expected)


def test_one_numa_node_is_worth_a_broken_core() -> None:
    # Socket 0 has three loose threads on two nodes.
    assert allocate(box(), parse("0-2,4-5,12-13"), 3) == parse("4-5,12")


def test_one_l3_is_worth_a_broken_core() -> None:
    # Node 0 has three loose threads on two L3.
    topology = machine(sockets=2, cores=4, threads=2, l3_per_node=2)
    assert allocate(topology, parse("0-2,4-5,12-13"), 3) == parse("4-5,12")


@pytest.mark.fault("R12")
def test_one_type_of_core_is_worth_a_broken_core() -> None:
    p_core, e_core = CoreType.P_CORE, CoreType.E_CORE
    kinds = [
        (0, 0, p_core),
        (0, 0, p_core),
        (0, 1, e_core),
        (1, 2, p_core),
        (1, 2, p_core),
        (1, 3, p_core),
        (1, 3, p_core),
    ]
    topology = Topology.of(Cpu(n, 0, 0, -1, core, node, node, kind) for n, (node, core, kind) in enumerate(kinds))
    assert allocate(topology, parse("0-6"), 3) == parse("3-5")


@pytest.mark.fault("R15")
def test_four_cpus_on_four_way_smt_are_one_core() -> None:
    topology = Topology.of([Cpu(n, 0, -1, -1, n // 4, 0, 0) for n in range(16)])
    assert allocate(topology, parse("0-15"), 4) == parse("0-3")
    assert allocate(topology, parse("1-15"), 4) == parse("4-7")
    assert allocate(topology, parse("1-15"), 3) == parse("1-3")


def of_cores(*cores: tuple[int, int]) -> Topology:
    """One node; for each core its L3 and its threads; siblings are adjacent."""
    threads = [(core, l3) for core, (l3, width) in enumerate(cores) for _ in range(width)]
    return Topology.of(Cpu(n, 0, 0, -1, core, 0, l3) for n, (core, l3) in enumerate(threads))


def test_whole_objects_come_before_parts_where_the_kubelet_would_break_a_core() -> None:
    # An L3 of 8 CPUs is taken whole; the other gives one of its two whole cores and its loose thread.
    assert allocate(t1b(), parse("0-3,8-11,4-6,12-13"), 11) == parse("0-3,8-11,4,12,6")


@pytest.mark.fault("R12")
def test_cores_of_several_widths_are_combined_so_that_none_is_broken() -> None:
    assert allocate(of_cores((0, 2), (0, 2), (0, 2), (0, 3)), parse("0-8"), 5) == parse("0-1,6-8")
    assert allocate(of_cores((0, 3), (0, 3), (0, 4)), parse("0-9"), 7) == parse("0-2,6-9")


@pytest.mark.fault("R12")
def test_a_loose_thread_goes_before_a_narrower_core_that_is_whole() -> None:
    # Three threads of the first core are loose, the second is whole with two.
    assert allocate(of_cores((0, 4), (0, 2)), parse("1-5"), 1) == parse("1")


def test_inside_the_best_node_the_kubelets_steps_choose() -> None:
    # Two whole nodes; the kubelet would take its three CPUs from both. One core has to be broken.
    node, l3 = {0: 0, 1: 1, 2: 1, 3: 0}, {0: 0, 1: 1, 2: 1, 3: 2}
    cores = [min(n, 7 - n) for n in range(8)]
    topology = Topology.of(Cpu(n, node[core], 0, -1, core, node[core], l3[core]) for n, core in enumerate(cores))
    assert allocate(topology, parse("0-7"), 3) == parse("1-2,5")


def test_a_mix_of_types_that_the_kubelet_takes_is_kept_where_none_can_do_without() -> None:
    # Each L3 has three E-cores and P-cores besides; the first has fewer CPUs free, the kubelet prefers the second.
    e_cores, l3 = {0, 1, 2, 5, 6, 7}, [0] * 5 + [1] * 7
    cores = [0, 1, 2, 3, 3, 5, 6, 7, 8, 8, 10, 10]
    topology = Topology.of(
        Cpu(n, 0, 0, -1, core, 0, l3[n], CoreType.E_CORE if core in e_cores else CoreType.P_CORE)
        for n, core in enumerate(cores)
    )
    assert allocate(topology, parse("0-7,9-11"), 4) == parse("5-7,9")


@pytest.mark.fault("U3")
def test_what_a_socket_has_comes_from_one_socket() -> None:
    # Two sockets of four NUMA nodes, one of which has lost two CPUs: nodes of 32, 32, 32 and 30 CPUs.
    topology = machine(sockets=2, cores=64, threads=2, nodes=4)
    free = topology.online - parse("48,112,176,240")
    chosen = allocate(topology, free, 120)
    assert sum(not socket.isdisjoint(chosen) for socket in topology.sockets.values()) == 1


@pytest.mark.fault("R12")
def test_a_type_that_comes_first_among_equals_goes_before_what_the_kubelet_takes() -> None:
    # E-cores have the lower numbers here, so the kubelet takes 0-1.
    kinds = [CoreType.E_CORE] * 4 + [CoreType.P_CORE] * 4
    topology = Topology.of(Cpu(n, 0, 0, -1, n, 0, 0, kind) for n, kind in enumerate(kinds))
    assert allocate(topology, parse("0-7"), 2) == parse("4-5")
    assert allocate(topology, parse("0-7"), 5) == parse("0-4")


@pytest.mark.fault("R12")
@pytest.mark.parametrize("count", range(1, 9))
def test_half_a_p_core_is_never_mixed_with_e_cores(count: int) -> None:
    chosen = allocate(hybrid(2, 4), parse("0-7"), count)
    halves = [core for core in ("0-1", "2-3") if len(parse(core) & chosen) == 1]
    assert not (halves and chosen & parse("4-7"))


@pytest.mark.fault("R12")
def test_an_e_core_is_taken_before_a_p_core_is_broken() -> None:
    assert allocate(hybrid(2, 4), parse("0-7"), 1) == parse("4")
    assert allocate(hybrid(2, 4), parse("0-7"), 2) == parse("0-1")


def test_without_l3_alignment_the_cores_decide() -> None:
    # Threads that no L3 has enough of are worth more than an L3 of whole cores only if L3 groups don't count.
    free = parse("0-1,4-5,12-13")
    assert allocate(t1b(), free, 3) == parse("4-5,12")
    assert allocate(t1b(), free, 3, AllocationOptions(align_l3=False)) == parse("0,4,12")


@pytest.mark.parametrize("count", [0, -1])
def test_a_number_that_is_not_positive_is_refused(count: int) -> None:
    with pytest.raises(AllocationError, match=rf"^{count} CPUs requested: the number must be positive$"):
        allocate(t1(), parse("0-15"), count)


def test_too_few_free_cpus_are_an_error_with_both_numbers() -> None:
    with pytest.raises(AllocationError, match=r"^5 CPUs requested, 4 free \(0-3\)$") as refused:
        allocate(t1(), parse("0-3"), 5)
    assert refused.value.would_fit == (4,)
    with pytest.raises(AllocationError, match=r"^1 CPU requested, 0 free$"):
        allocate(t1(), CPUSet(), 1)


def test_cpus_that_the_topology_does_not_have_are_not_taken() -> None:
    with pytest.raises(AllocationError, match=r"^2 CPUs requested, 1 free \(7\)$"):
        allocate(t1(), parse("7,16-17"), 2)


@pytest.mark.fault("R11", "R12", "R15")
@given(requests(), st.booleans(), st.booleans())
def test_the_choice_is_a_subset_of_free_with_the_exact_number_and_always_the_same(
    request_: Request, align_l3: bool, full_cores: bool
) -> None:
    topology, free, count = request_.topology, request_.free, request_.count
    options = AllocationOptions(align_l3=align_l3, full_physical_cores=full_cores)
    try:
        chosen = allocate(topology, free, count, options)
    except SMTAlignmentError:
        assert full_cores
        return
    assert chosen <= free
    assert len(chosen) == count
    assert chosen == allocate(Topology.of(topology.cpus.values()), free, count, options)


@given(requests(), st.booleans())
def test_what_fits_in_one_object_stays_in_one(request_: Request, align_l3: bool) -> None:
    topology, free, count = request_.topology, request_.free, request_.count
    chosen = allocate(topology, free, count, AllocationOptions(align_l3=align_l3))
    kinds = [tuple(topology.sockets.values()), tuple(topology.nodes.values())]
    if align_l3:
        kinds.append(topology.l3_groups)
    for objects in kinds:
        touched = sum(not part.isdisjoint(chosen) for part in objects)
        assert (touched == 1) or all(len(part & free) < count for part in objects)


@given(requests())
def test_at_most_one_core_is_broken(request_: Request) -> None:
    topology, free = request_.topology, request_.free
    chosen = allocate(topology, free, request_.count)
    assert sum(core <= free and bool(core & chosen) and not core <= chosen for core in topology.cores) <= 1


@given(requests())
def test_cores_that_are_broken_already_come_first(request_: Request) -> None:
    """One CPU: no whole core of the L3 it comes from is broken if any thread there is loose (fault U6)."""
    topology, free = request_.topology, request_.free
    chosen = allocate(topology, free, 1)
    core = next(core for core in topology.cores if not core.isdisjoint(chosen))
    loose = CPUSet.union(core & free for core in topology.cores if len(core) == 1 or not core <= free)
    assert not (len(core) > 1 and core <= free and loose)


def test_what_crosses_is_cut_and_answered() -> None:
    """Broken firmware: an L3 with half of each of two NUMA nodes, cores with a thread on each socket."""
    cpus = [Cpu(n, n // 6, 0, -1, n % 5, n // 6, n // 4) for n in range(12)]
    crossing = Topology.of(Cpu(n, n % 2, 0, -1, n // 2, n // 5, n // 3) for n in range(16))
    siblings = Topology.of(Cpu(n, 0, 0, -1, n % 6, n // 6, n // 4) for n in range(12))
    for topology in (Topology.of(cpus), crossing, siblings):
        for count in range(1, len(topology.online) + 1):
            chosen = allocate(topology, topology.online, count)
            assert len(chosen) == count
            assert chosen <= topology.online

"""Promises of packed allocation: a subset of what is free, the exact number, and the documented choices."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.allocation import AllocationError, AllocationOptions, allocate
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Cpu, Topology
from tests.unit.topology.machines import box, hybrid, machine, t1, t1b, t2


def parse(text: str) -> CPUSet:
    return CPUSet.parse(text)


@pytest.mark.parametrize(
    ("topology", "free", "count", "expected"),
    [
        (t1(), "0-15", 2, "0,8"),
        (t1(), "0-15", 3, "0-1,8"),
        pytest.param(t1(), "1-15", 3, "1,8-9", marks=pytest.mark.fault("U6")),
        pytest.param(t1(offline=[15]), "0-14", 2, "0,8", marks=pytest.mark.fault("R12")),
        pytest.param(t1(offline=[15]), "0-14", 1, "7", marks=pytest.mark.fault("R12")),
        pytest.param(t1b(), "3,5,7,11-15", 5, "5,7,12-13,15", marks=pytest.mark.fault("U2", "R13")),
        pytest.param(t2(), "0-3,10-11", 4, "2-3,10-11", marks=pytest.mark.fault("R11")),
        (t2(), "0-15", 8, "0-3,8-11"),
        (t2(), "0,8,4-7,12-15", 4, "4-5,12-13"),
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
    with pytest.raises(AllocationError, match=r"^5 CPUs requested, 4 free \(0-3\)$"):
        allocate(t1(), parse("0-3"), 5)
    with pytest.raises(AllocationError, match=r"^1 CPUs requested, 0 free$"):
        allocate(t1(), CPUSet(), 1)


def test_cpus_that_the_topology_does_not_have_are_not_taken() -> None:
    with pytest.raises(AllocationError, match=r"^2 CPUs requested, 1 free \(7\)$"):
        allocate(t1(), parse("7,16-17"), 2)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    if draw(st.booleans()):
        return hybrid(draw(st.integers(0, 3)), draw(st.integers(1, 5)))
    dies, nodes, l3 = draw(st.sampled_from([(1, 1, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2)]))
    shape = {"sockets": draw(st.integers(1, 3)), "dies": dies, "nodes": nodes, "l3_per_node": l3}
    cores, threads = 2 * draw(st.integers(1, 2)), draw(st.integers(1, 4))
    total = shape["sockets"] * dies * cores * threads
    offline = draw(st.sets(st.integers(1, total - 1), max_size=total // 2)) if total > 1 else set()
    return machine(**shape, cores=cores, threads=threads, offline=offline)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Topology, CPUSet, int, AllocationOptions]:
    topology = draw(machines())
    free = CPUSet(draw(st.sets(st.sampled_from(list(topology.online)), min_size=1)))
    if draw(st.booleans()):
        free = topology.online - free or topology.online
    return topology, free, draw(st.integers(1, len(free))), AllocationOptions(align_l3=draw(st.booleans()))


def broken(topology: Topology, free: CPUSet, chosen: CPUSet) -> int:
    return sum(core <= free and bool(core & chosen) and not core <= chosen for core in topology.cores)


@pytest.mark.fault("R11", "R12")
@given(requests())
def test_the_choice_is_always_a_subset_of_free_with_the_exact_number(
    request_: tuple[Topology, CPUSet, int, AllocationOptions],
) -> None:
    topology, free, count, options = request_
    chosen = allocate(topology, free, count, options)
    assert chosen <= free
    assert len(chosen) == count
    assert chosen == allocate(topology, free, count, options)


@given(requests())
def test_what_fits_in_one_object_stays_in_one(request_: tuple[Topology, CPUSet, int, AllocationOptions]) -> None:
    topology, free, count, options = request_
    chosen = allocate(topology, free, count, options)
    for objects in (topology.sockets.values(), topology.nodes.values(), topology.l3_groups):
        if objects is topology.l3_groups and not options.align_l3:
            continue
        touched = sum(not part.isdisjoint(chosen) for part in objects)
        assert (touched == 1) or all(len(part & free) < count for part in objects)


@given(requests())
def test_at_most_one_core_is_broken(request_: tuple[Topology, CPUSet, int, AllocationOptions]) -> None:
    topology, free, count, options = request_
    assert broken(topology, free, allocate(topology, free, count, options)) <= 1


@given(st.integers(1, 4), st.integers(2, 4), st.data())
def test_inside_one_l3_no_choice_breaks_fewer_cores(cores: int, threads: int, data: st.DataObject) -> None:
    topology = machine(cores=cores, threads=threads, offline=data.draw(st.sets(st.integers(1, cores * threads - 1))))
    free = CPUSet(data.draw(st.sets(st.sampled_from(list(topology.online)), min_size=1)))
    count = data.draw(st.integers(1, len(free)))
    best = min(broken(topology, free, CPUSet(cpus)) for cpus in combinations(free, count))
    assert broken(topology, free, allocate(topology, free, count)) == best

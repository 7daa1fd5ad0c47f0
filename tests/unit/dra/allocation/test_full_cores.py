"""Promises of full physical cores: only whole free cores, or an error that says what there is."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.allocation import AllocationOptions, SMTAlignmentError, allocate
from dra.allocation.classic import classic
from dra.allocation.machine import machine_of
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Cpu, Topology
from tests.unit.dra.allocation.brute_force import Counted
from tests.unit.dra.allocation.random_machines import Request, requests
from tests.unit.topology.machines import hybrid, machine, t1

FULL_CORES = AllocationOptions(full_physical_cores=True)


def parse(text: str) -> CPUSet:
    return CPUSet.parse(text)


def chosen(topology: Topology, free: str, count: int) -> CPUSet:
    return allocate(topology, parse(free), count, FULL_CORES)


@pytest.mark.fault("B5", "U1")
def test_a_core_with_a_reserved_thread_is_never_taken() -> None:
    assert chosen(t1(), "1-15", 14) == parse("1-7,9-15")
    with pytest.raises(SMTAlignmentError, match="14 CPUs are on whole free cores") as refused:
        chosen(t1(), "1-15", 15)
    assert refused.value.would_fit == (14,)


@pytest.mark.fault("U1")
def test_whole_free_cores_count_not_whether_the_number_is_even() -> None:
    topology = machine(cores=6, threads=2)
    with pytest.raises(SMTAlignmentError, match=re.escape("requested 10 CPUs")) as refused:
        chosen(topology, "0,2-5,7-11", 10)
    assert "8 CPUs are on whole free cores" in str(refused.value)
    assert refused.value.would_fit == (8,)


@pytest.mark.fault("B5", "U5")
def test_a_number_that_is_no_multiple_is_refused_with_the_nearest_that_are() -> None:
    with pytest.raises(SMTAlignmentError) as refused:
        chosen(t1(), "0-15", 3)
    expected = "requested 3 CPUs is not a multiple of 2 threads per core; 16 CPUs are on whole free cores"
    assert str(refused.value) == expected
    assert refused.value.would_fit == (2, 4)


@pytest.mark.fault("U1")
def test_a_core_with_an_offline_thread_is_whole_with_those_it_has() -> None:
    topology = t1(offline=[15])
    assert chosen(topology, "0-14", 1) == parse("7")
    assert chosen(topology, "0-14", 3) == parse("0,7-8")
    assert chosen(topology, "0-14", 15) == parse("0-14")


def test_widths_that_differ_are_named_with_the_possible_numbers() -> None:
    # Cores of 4, 4 and 1 threads.
    topology = Topology.of(Cpu(n, 0, 0, -1, n // 4, 0, 0) for n in range(9))
    with pytest.raises(SMTAlignmentError) as refused:
        chosen(topology, "0-8", 6)
    expected = (
        "requested 6 CPUs cannot be made of full physical cores of 1, 4 threads; "
        "possible are 5 or 8; 9 CPUs are on whole free cores"
    )
    assert str(refused.value) == expected
    assert refused.value.would_fit == (5, 8)


def test_more_than_are_free_is_refused_with_what_whole_cores_have() -> None:
    with pytest.raises(SMTAlignmentError, match=r"requested 16 CPUs .*; 14 CPUs are on whole") as refused:
        chosen(t1(), "1-15", 16)
    assert refused.value.would_fit == (14,)


def test_a_number_that_no_machine_has_is_refused_like_any_other() -> None:
    # As bits of a mask it would fill the memory.
    with pytest.raises(SMTAlignmentError, match=f"requested {10**18} CPUs .*; 16 CPUs are on whole") as refused:
        chosen(t1(), "0-15", 10**18)
    assert refused.value.would_fit == (16,)


def test_one_cpu_is_not_told_as_several() -> None:
    with pytest.raises(SMTAlignmentError) as refused:
        chosen(t1(), "0-15", 1)
    expected = "requested 1 CPU is not a multiple of 2 threads per core; 16 CPUs are on whole free cores"
    assert str(refused.value) == expected
    with pytest.raises(SMTAlignmentError, match=r"; 1 CPU is on whole free cores$"):
        chosen(t1(offline=[15]), "0-7", 2)


def test_no_whole_free_core_leaves_nothing_that_would_fit() -> None:
    with pytest.raises(SMTAlignmentError, match="requested 2 CPUs on full physical cores; 0 CPUs") as refused:
        chosen(t1(), "0-7", 2)
    assert refused.value.would_fit == ()


@pytest.mark.fault("R12")
def test_one_type_of_core_only_if_its_whole_cores_are_that_many() -> None:
    assert chosen(hybrid(2, 4), "0-7", 3) == parse("4-6")
    assert chosen(hybrid(2, 4), "1-7", 4) == parse("4-7")
    assert chosen(hybrid(2, 3), "0-6", 5) == parse("0-1,4-6")
    # Three E-cores are not four, and P-cores without CPU 0 are two threads.
    assert chosen(hybrid(2, 3), "1-6", 4) == parse("2-5")


def test_l3_groups_that_cannot_make_the_number_of_whole_cores_are_passed_over() -> None:
    # L3 0: cores of 2, 2 and 2 threads; L3 1: 3 and 3; L3 2: 4, 2 and 1. Five CPUs are 4 + 1 in one L3.
    widths = [(0, 2), (0, 2), (0, 2), (1, 3), (1, 3), (2, 4), (2, 2), (2, 1)]
    cores = [(core, group) for core, (group, width) in enumerate(widths) for _ in range(width)]
    topology = Topology.of(Cpu(n, 0, 0, -1, core, 0, group) for n, (core, group) in enumerate(cores))
    assert chosen(topology, "0-18", 5) == parse("12-15,18")
    assert allocate(topology, parse("0-18"), 5, AllocationOptions(align_l3=False)) != parse("12-15,18")


@given(requests())
def test_only_whole_cores_are_taken_and_a_refusal_tells_numbers_that_are_not_refused(request_: Request) -> None:
    topology, free = request_.topology, request_.free
    try:
        cpus = allocate(topology, free, request_.count, FULL_CORES)
    except SMTAlignmentError as error:
        refused = error
    else:
        assert CPUSet.union(core for core in topology.cores if core <= cpus) == cpus
        return
    assert str(request_.count) in str(refused)
    for count in refused.would_fit:
        assert len(allocate(topology, free, count, FULL_CORES)) == count


@given(requests(), st.booleans())
def test_what_the_kubelet_takes_is_kept_if_it_is_of_whole_cores_and_as_good(request_: Request, align_l3: bool) -> None:
    topology, free, count = request_.topology, request_.free, request_.count
    found = classic(machine_of(topology), free.mask, count, align_l3)
    whole = [core for core in topology.cores if core <= free]
    if found is None or CPUSet.union(core for core in whole if core <= CPUSet.from_mask(found)).mask != found:
        return
    kubelet = CPUSet.from_mask(found)
    cpus = allocate(topology, free, count, AllocationOptions(align_l3=align_l3, full_physical_cores=True))
    counted = Counted(topology, free, align_l3)
    types = [{topology.cpus[cpu].core_type for cpu in each} for each in (cpus, kubelet)]
    if counted.vector(cpus) == counted.vector(kubelet) and types[0] == types[1]:
        assert cpus == kubelet

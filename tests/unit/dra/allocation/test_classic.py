"""The kubelet's choice, its faults included: answers of the kubelet of Kubernetes 1.37 to the same requests."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.allocation.classic import classic
from dra.allocation.machine import machine_of
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Cpu, Topology
from tests.unit.dra.allocation.random_machines import Request, requests
from tests.unit.topology.machines import box, hybrid, machine, t1, t1b, t2

BIG = machine(sockets=2, cores=64, threads=2, nodes=4, l3_per_node=2)
FRAGMENTED = str(CPUSet(cpu for cpu in range(256) if cpu < 128 or cpu % 3))
SHARED_NODE = Topology.of(
    replace(cpu, numa_node=cpu.socket // 2) for cpu in machine(sockets=4, cores=4, threads=2).cpus.values()
)

# L3 groups of 2, 6 and 4 CPUs on two sockets of 8 and 4; sockets of 4 and 8 CPUs with two nodes each.
UNEVEN_L3 = Topology.of(Cpu(n, n // 8, 0, -1, n // 2, n // 8, 0 if n < 2 else 1 + n // 8) for n in range(12))
UNEVEN_SOCKETS = Topology.of(Cpu(n, int(n >= 4), 0, -1, n, n // 2 if n < 4 else 1 + n // 4, n // 4) for n in range(12))
# One node of two sockets, and one socket of two nodes.
MIXED = Topology.of(Cpu(n, min(n // 4, 2), 0, -1, n, max(n // 4 - 1, 0), n // 4) for n in range(16))
SMT4 = Topology.of(Cpu(n, 0, 0, -1, n // 4, 0, 0) for n in range(16))


@pytest.mark.parametrize(
    ("topology", "free", "count", "align_l3", "expected"),
    [
        (t1(), "0-15", 3, True, "0-1,8"),
        (t1(), "1-15", 3, True, "1,8-9"),
        (t1(), "0-15", 3, False, "0-1,8"),
        (t1b(), "1-15", 5, True, "1-2,8-10"),
        (t1b(), "0,4-15", 9, True, "0,4-7,12-15"),
        (t2(), "0-3,8-15", 8, True, "0-3,8-11"),
        (t2(), "1-15", 11, False, "1,4-9,12-15"),
        (box(), "0-15", 6, True, "0-2,8-10"),
        (box(), "1-15", 9, False, "4-8,12-15"),
        (hybrid(2, 4), "0-7", 3, True, "4-6"),
        (hybrid(2, 4), "0-7", 6, False, "0-1,4-7"),
        (BIG, "0-255", 48, True, "0-23,128-151"),
        (BIG, "0-255", 157, False, "0-78,128-205"),
        (
            BIG,
            FRAGMENTED,
            30,
            True,
            "65-66,68-69,71-72,74-75,77-78,113-114,116-117,119,193-194,196-197,199-200,202-203,205-206,241-242,244-245,247",
        ),
        (
            BIG,
            FRAGMENTED,
            71,
            True,
            "65-66,68-69,71-72,74-75,77-78,80-84,86-87,89-90,92-93,95-96,98-99,101,113-114,116-117,119-120,122-123,125-126,193-194,196-197,199-200,202-203,205-206,208-209,211-212,214-215,217-218,220-221,223-224,226-227,229,241-242,244-245,247-248,250-251,253-254",
        ),
        (
            BIG,
            FRAGMENTED,
            71,
            False,
            "65-66,68-69,71-72,74-75,77-78,80-84,86-87,89-90,92-93,95-96,98-99,101,113-114,116-117,119-120,122-123,125-126,193-194,196-197,199-200,202-203,205-206,208-209,211-212,214-215,217-218,220-221,223-224,226-227,229,241-242,244-245,247-248,250-251,253-254",
        ),
        (UNEVEN_L3, "0-11", 3, True, "8-10"),
        (UNEVEN_L3, "0-11", 9, True, "0-4,8-11"),
        (UNEVEN_SOCKETS, "0-2,4-11", 8, False, "0-2,4-8"),
        (UNEVEN_SOCKETS, "0-11", 8, True, "0-7"),
        (SMT4, "1-5,8-15", 2, True, "4-5"),
        (SMT4, "2-15", 5, True, "2-6"),
        (MIXED, "0-15", 3, False, "8-10"),
        (MIXED, "1-6,9-15", 7, False, "9-15"),
        (SHARED_NODE, "0-31", 9, True, "0-4,16-19"),
        (SHARED_NODE, "1-31", 17, False, "8-16,24-31"),
        (SHARED_NODE, "1-3,6-8,16-30", 13, True, "1-3,6-8,16-19,22-24"),
    ],
)
def test_the_kubelet_answers_the_same(topology: Topology, free: str, count: int, align_l3: bool, expected: str) -> None:
    found = classic(machine_of(topology), CPUSet.parse(free).mask, count, align_l3)
    assert found == CPUSet.parse(expected).mask


@pytest.mark.fault("U2", "R12", "R13")
def test_it_has_the_faults_of_the_kubelet() -> None:
    straddling = classic(machine_of(t1b()), CPUSet.parse("3,5,7,11-15").mask, 5, True)
    assert straddling == CPUSet.parse("3,5,11-13").mask
    two_halves = classic(machine_of(t1(offline=[15])), CPUSet.parse("0-14").mask, 2, True)
    assert two_halves == CPUSet.parse("0,7").mask


@pytest.mark.fault("U1")
def test_what_is_not_free_is_no_answer() -> None:
    # 7 CPUs over 4 cores are 1 a core: half a core counts as whole there, and its other half is taken as well.
    topology = machine(cores=4, threads=2, offline=[7])
    assert classic(machine_of(topology), CPUSet.parse("0-2").mask, 2, False) is None


@given(requests(), st.booleans())
def test_an_answer_is_a_subset_of_free_with_the_exact_number(request_: Request, align_l3: bool) -> None:
    found = classic(machine_of(request_.topology), request_.free.mask, request_.count, align_l3)
    assert found is None or (found.bit_count() == request_.count and not found & ~request_.free.mask)

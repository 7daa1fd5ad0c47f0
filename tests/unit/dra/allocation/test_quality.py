"""The quality of a choice, by name and as it is compared: the levels of the specification, nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.allocation.machine import machine_of
from dra.allocation.quality import packed_quality, quality_of
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Topology
from tests.unit.dra.allocation.brute_force import Counted
from tests.unit.dra.allocation.random_machines import Request, requests
from tests.unit.topology.machines import box, hybrid, t1b

NAMES = ["sockets", "numaNodes", "l3Groups", "coreTypesMixed", "coresBroken"]


@pytest.mark.parametrize(
    ("topology", "free", "cpus", "expected"),
    [
        (box(), "0-15", "0,8", [1, 1, 1, 0, 0]),
        (box(), "0-15", "0-7", [2, 4, 4, 0, 8]),
        (t1b(), "3,5,7,11-15", "3,5,11-13", [1, 1, 2, 0, 0]),
        (t1b(), "0-15", "0-1,4,8", [1, 1, 2, 0, 2]),
        (hybrid(2, 4), "0-7", "0,4", [1, 1, 1, 1, 1]),
        (hybrid(2, 4), "1-7", "1,4", [1, 1, 1, 1, 0]),
    ],
)
def test_each_level_has_its_name(topology: Topology, free: str, cpus: str, expected: list[int]) -> None:
    named = packed_quality(machine_of(topology), CPUSet.parse(free).mask, CPUSet.parse(cpus).mask, True)
    assert named == dict(zip(NAMES, expected, strict=True))
    assert list(named) == NAMES


def test_without_alignment_l3_groups_are_not_counted() -> None:
    named = packed_quality(machine_of(t1b()), CPUSet.parse("0-15").mask, CPUSet.parse("0,4").mask, False)
    assert named == {"sockets": 1, "numaNodes": 1, "coreTypesMixed": 0, "coresBroken": 2}


@given(requests(), st.booleans(), st.data())
def test_quality_compares_as_the_levels_do(request_: Request, align_l3: bool, data: st.DataObject) -> None:
    machine, free = machine_of(request_.topology), request_.free
    some = st.sets(st.sampled_from(list(free)), min_size=1).map(CPUSet)
    first, second = data.draw(some), data.draw(some)
    counted = Counted(request_.topology, free, align_l3)
    by_name = packed_quality(machine, free.mask, first.mask, align_l3)
    assert tuple(by_name.values()) == counted.vector(first)
    is_less = quality_of(machine, free.mask, first.mask, align_l3) < quality_of(
        machine, free.mask, second.mask, align_l3
    )
    assert is_less == (counted.vector(first) < counted.vector(second))

"""An explained answer is the plain one with its quality; an explained refusal, the plain one with what would fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.allocation import AllocationError, AllocationOptions, NumaNodes, Strategy, allocate
from dra.allocation.explain import explain
from nri_cpu.cpuset import CPUSet
from tests.unit.topology.machines import t1, t2

OPTIONS = [
    AllocationOptions(),
    AllocationOptions(align_l3=False),
    AllocationOptions(full_physical_cores=True),
    AllocationOptions(Strategy.SPREAD),
    AllocationOptions(Strategy.DISTRIBUTED),
    AllocationOptions(Strategy.DISTRIBUTED, NumaNodes.ALL),
    AllocationOptions(Strategy.DISTRIBUTED, 2, full_physical_cores=True),
]


@given(st.sets(st.integers(0, 15)), st.integers(-1, 18), st.sampled_from(OPTIONS))
def test_explaining_changes_no_answer(free: set[int], count: int, options: AllocationOptions) -> None:
    found = explain(t2(), CPUSet(free), count, options)
    assert (found.requested, found.free) == (count, CPUSet(free))
    try:
        plain, refusal = allocate(t2(), CPUSet(free), count, options), None
    except AllocationError as error:
        plain, refusal = None, error
    assert found.cpus == plain
    assert bool(found.quality) == (plain is not None)
    assert (found.error, found.would_fit) == ((str(refusal), refusal.would_fit) if refusal else (None, ()))


@pytest.mark.parametrize(
    ("options", "quality"),
    [
        (OPTIONS[0], {"sockets": 1, "numaNodes": 1, "l3Groups": 1, "coreTypesMixed": 0, "coresBroken": 1}),
        (OPTIONS[1], {"sockets": 1, "numaNodes": 1, "coreTypesMixed": 0, "coresBroken": 1}),
        (OPTIONS[3], {"sockets": 1, "numaNodes": 1, "cores": 3, "coreTypesMixed": 0, "coresBroken": 3}),
    ],
)
def test_the_quality_is_named_in_the_order_in_which_it_counts(
    options: AllocationOptions, quality: dict[str, int]
) -> None:
    assert list(explain(t1(), t1().online, 3, options).quality.items()) == list(quality.items())


def test_the_shares_of_a_distribution_are_told() -> None:
    options = AllocationOptions(Strategy.DISTRIBUTED, NumaNodes.ALL)
    assert dict(explain(t2(), t2().online, 15, options).quality) == {
        "numaNodes": 2,
        "shares": (8, 7),
        "sockets": 2,
        "deviation": 0.5,
    }


@pytest.mark.fault("U1")
def test_a_refusal_of_full_cores_tells_the_whole_free_ones_and_the_numbers_that_would_fit() -> None:
    found = explain(t1(), CPUSet.parse("0-6,8-14") - CPUSet([1]), 11, AllocationOptions(full_physical_cores=True))
    assert found.cpus is None
    assert found.whole_cores == CPUSet.parse("0,2-6,8,10-14")
    assert found.would_fit == (10, 12)

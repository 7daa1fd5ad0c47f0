"""Packed allocation reaches the best of levels 1 to 5: held against every choice there is, on small machines."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra.allocation import AllocationOptions, SMTAlignmentError, allocate
from tests.unit.dra.allocation.brute_force import Counted, best_vector
from tests.unit.dra.allocation.random_machines import Request, random_request, requests


def check(request_: Request, align_l3: bool, full_cores: bool) -> None:
    topology, free, count = request_.topology, request_.free, request_.count
    options = AllocationOptions(align_l3=align_l3, full_physical_cores=full_cores)
    best = best_vector(topology, free, count, align_l3, full_cores)
    try:
        chosen = allocate(topology, free, count, options)
    except SMTAlignmentError:
        assert best is None
    else:
        assert Counted(topology, free, align_l3).vector(chosen) == best


@pytest.mark.fault("R11", "R12", "R13", "R15", "U2", "U6")
@pytest.mark.parametrize("full_cores", [False, True])
@pytest.mark.parametrize("align_l3", [False, True])
@pytest.mark.parametrize("seeds", [range(500), range(500, 1000), range(1000, 1500)], ids=str)
def test_no_choice_is_better_on_machines_of_all_kinds(seeds: range, align_l3: bool, full_cores: bool) -> None:
    for seed in seeds:
        rng = Random(seed)
        smt = rng.choice(((1, 2, 2, 3, 4), (2,), (8,)))
        check(random_request(rng, rng.choice((8, 12, 16, 24)), smt, rng.choice((6, 8, 11))), align_l3, full_cores)


@given(requests(cpus=16, most_free=9), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_no_choice_is_better_where_hypothesis_looks(request_: Request, align_l3: bool, full_cores: bool) -> None:
    check(request_, align_l3, full_cores)

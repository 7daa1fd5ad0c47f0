"""Packed allocation is the best of levels 1 to 5, held against every choice there is, and of the best the right one."""

from collections.abc import Callable
from functools import partial
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra.allocation import AllocationOptions, SMTAlignmentError, allocate
from dra.allocation.areas import Area, areas_of, cost_of
from dra.allocation.classic import classic
from dra.allocation.cores import whole
from dra.allocation.fewest import Fewest, Threads, WholePieces
from dra.allocation.machine import Machine, machine_of
from dra.allocation.sums import can_give, pieces_of
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Topology
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


def types(topology: Topology, cpus: CPUSet) -> set[CoreType]:
    return {topology.cpus[cpu].core_type for cpu in cpus}


@given(requests(), st.booleans())
def test_what_the_kubelet_takes_is_kept_if_it_is_as_good(request_: Request, align_l3: bool) -> None:
    topology, free, count = request_.topology, request_.free, request_.count
    chosen = allocate(topology, free, count, AllocationOptions(align_l3=align_l3))
    found = classic(machine_of(topology), free.mask, count, align_l3)
    if found is None:
        return
    kubelet, counted = CPUSet.from_mask(found), Counted(topology, free, align_l3)
    assert counted.vector(chosen) <= counted.vector(kubelet)
    if counted.vector(chosen) == counted.vector(kubelet) and types(topology, chosen) == types(topology, kubelet):
        assert chosen == kubelet


@given(requests(), st.booleans())
def test_else_the_kubelets_steps_choose_inside_what_is_used(request_: Request, align_l3: bool) -> None:
    topology, free, count = request_.topology, request_.free, request_.count
    machine = machine_of(topology)
    chosen = allocate(topology, free, count, AllocationOptions(align_l3=align_l3))
    kinds = types(topology, chosen)
    inside = CPUSet(cpu for cpu in free if topology.cpus[cpu].core_type in kinds)
    for objects in (machine.sockets, machine.nodes, machine.l3_groups if align_l3 else ()):
        if objects:
            inside &= CPUSet.from_mask(sum(each for each in objects if each & chosen.mask))
    found = classic(machine, inside.mask, count, align_l3)
    if found is None or found == chosen.mask:
        return
    counted, inner = Counted(topology, free, align_l3), CPUSet.from_mask(found)
    everywhere = classic(machine, free.mask, count, align_l3)
    assert chosen.mask == everywhere or counted.vector(chosen) < counted.vector(inner)


def first_in_order(leaves: list[int], machine: Machine, align_l3: bool, can_give: Callable[[int], bool]) -> int | None:
    """Of all sets of areas that can give what is asked at the least cost, the one that uses the earliest areas."""
    found = []
    for used in product((True, False), repeat=len(leaves)):
        cpus = sum(leaf for leaf, is_used in zip(leaves, used, strict=True) if is_used)
        if can_give(cpus):
            found.append((cost_of(machine, cpus, align_l3), tuple(not is_used for is_used in used), cpus))
    return min(found)[2] if found else None


def in_nested_order(areas: tuple[Area, ...], free: int) -> list[int]:
    """The free CPUs of the innermost areas: fewest first, then the lowest id, and so inside each."""
    found = []
    for area in sorted((area for area in areas if area.cpus & free), key=lambda area: (area.cpus & free).bit_count()):
        found += in_nested_order(area.children, free) if area.children else [area.cpus & free]
    return found


@given(requests(cpus=16), st.booleans())
def test_of_equals_the_areas_that_come_first_in_order_are_used(request_: Request, align_l3: bool) -> None:
    machine, free, count = machine_of(request_.topology), request_.free.mask, request_.count
    areas = areas_of(machine, align_l3)
    leaves = in_nested_order(areas, free)
    if len(leaves) > 9:
        return
    fewest = Fewest(areas, free, Threads(count))
    expected = first_in_order(leaves, machine, align_l3, lambda cpus: cpus.bit_count() >= count)
    assert fewest.cost is not None
    assert fewest.choice(fewest.cost) == expected

    pieces_in = partial(pieces_of, machine, whole(machine.shapes, free))
    unbroken = Fewest(areas, free, WholePieces(count, pieces_in, None))
    expected = first_in_order(leaves, machine, align_l3, lambda cpus: can_give(pieces_in(cpus), count))
    assert expected == (None if unbroken.cost is None else unbroken.choice(unbroken.cost))

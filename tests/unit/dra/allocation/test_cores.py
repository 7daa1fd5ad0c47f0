"""Cores as bit masks and the numbers they can make: the same as counting core by core."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from dra.allocation import cores
from dra.allocation.machine import machine_of
from dra.allocation.sums import can_give, differences, pieces_of, sums
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.allocation.random_machines import Request, requests
from tests.unit.topology.machines import hybrid


def leads(found: list[CPUSet]) -> int:
    return CPUSet(core.first() for core in found).mask


@given(requests())
def test_cores_are_whole_touched_and_counted_as_one_by_one(request_: Request) -> None:
    machine, free, all_cores = machine_of(request_.topology), request_.free, list(request_.topology.cores)
    whole = [core for core in all_cores if core <= free]
    assert cores.whole(machine.shapes, free.mask) == leads(whole)
    assert cores.touched(machine.shapes, free.mask) == leads([core for core in all_cores if core & free])
    assert cores.cpus_of(machine.shapes, leads(whole)) == CPUSet.union(whole).mask
    widest = max(map(len, all_cores))
    expected = [leads([core for core in all_cores if len(core & free) == number]) for number in range(widest + 1)]
    assert cores.by_threads(machine.shapes, free.mask) == expected


@given(st.sets(st.integers(0, 300)), st.integers(0, 40))
def test_the_lowest_bits_are_those_of_a_sorted_list(cpus: set[int], number: int) -> None:
    assert cores.lowest(CPUSet(cpus).mask, number) == CPUSet(sorted(cpus)[:number]).mask


@given(requests(cpus=16, most_free=9))
def test_sums_are_those_of_all_sets_that_break_no_core(request_: Request) -> None:
    machine, free = machine_of(request_.topology), request_.free
    whole = cores.whole(machine.shapes, free.mask)
    unbroken = set()
    for number in range(len(free) + 1):
        for cpus in map(CPUSet, combinations(free, number)):
            if all(core <= cpus or core.isdisjoint(cpus) for core in request_.topology.cores if core <= free):
                unbroken.add(number)
                break
    pieces = pieces_of(machine, whole, free.mask)
    assert {number for number in range(len(free) + 2) if can_give(pieces, number)} == unbroken
    assert CPUSet.from_mask(sums(pieces, 1, len(free))) == CPUSet(unbroken)
    assert CPUSet.from_mask(sums(pieces, 1, request_.count)) == CPUSet(n for n in unbroken if n <= request_.count)
    assert CPUSet.from_mask(differences(pieces, 1 << len(free))) == CPUSet(len(free) - n for n in unbroken)


def test_a_part_of_a_whole_core_is_no_piece() -> None:
    machine = machine_of(hybrid(2, 2))
    whole = cores.whole(machine.shapes, machine.cpus)
    pieces = pieces_of(machine, whole, CPUSet.parse("0,2-4").mask)
    assert pieces.whole == ((1, 1), (2, 1))
    assert pieces.loose == 0

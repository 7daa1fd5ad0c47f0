"""The machine as a forest of areas: every kind of object may contain every other, and what crosses is cut."""

from hypothesis import given
from hypothesis import strategies as st

from dra.allocation.areas import COSTS, Area, areas_of, cost_of, least_cost
from dra.allocation.machine import machine_of
from dra.allocation.options import AllocationOptions
from dra.allocation.packed import packed
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Cpu, Topology
from tests.unit.dra.allocation.random_machines import Request, requests
from tests.unit.topology.machines import box, t2

SOCKET, NODE, L3 = COSTS


def shape(areas: tuple[Area, ...]) -> list[object]:
    """Areas as text, cost and what is inside."""
    return [(str(CPUSet.from_mask(area.cpus)), area.cost, *shape(area.children)) for area in areas]


def test_equal_sets_are_one_area_that_costs_them_all() -> None:
    assert shape(areas_of(machine_of(t2()), True)) == [
        ("0-3,8-11", SOCKET + NODE + L3),
        ("4-7,12-15", SOCKET + NODE + L3),
    ]


def test_l3_groups_are_areas_only_if_aligned() -> None:
    machine = machine_of(box())
    inside = ("0-1,8-9", NODE + L3), ("2-3,10-11", NODE + L3)
    assert shape(areas_of(machine, True))[0] == ("0-3,8-11", SOCKET, *inside)
    unaligned = ("0-1,8-9", NODE), ("2-3,10-11", NODE)
    assert shape(areas_of(machine, False))[0] == ("0-3,8-11", SOCKET, *unaligned)


def test_a_node_of_several_sockets_and_an_l3_of_several_nodes_contain_them() -> None:
    cpus = [Cpu(n, n // 2, 0, -1, n, 0, n // 2) for n in range(4)]
    assert shape(areas_of(machine_of(Topology.of(cpus)), True)) == [
        ("0-3", NODE, ("0-1", SOCKET + L3), ("2-3", SOCKET + L3)),
    ]


def test_an_l3_that_two_nodes_share_half_is_cut_at_their_border() -> None:
    topology = Topology.of(Cpu(n, 0, 0, -1, n, n // 6, n // 4) for n in range(12))
    machine = machine_of(topology)
    assert [str(CPUSet.from_mask(group)) for group in machine.l3_groups] == ["0-3", "4-5", "6-7", "8-11"]


def test_threads_of_two_types_or_l3_groups_are_never_one_core() -> None:
    kinds = [CoreType.P_CORE, CoreType.E_CORE, CoreType.E_CORE, CoreType.E_CORE]
    topology = Topology.of(Cpu(n, 0, 0, -1, n // 2, 0, n // 3, kind) for n, kind in enumerate(kinds))
    assert machine_of(topology).cores == (1, 2, 4, 8)


def test_a_node_that_two_sockets_share_half_is_cut_and_keeps_its_number() -> None:
    topology = Topology.of(Cpu(n, n // 3, 0, -1, n, 7 if n in (0, 1) else 9, 0) for n in range(6))
    machine = machine_of(topology)
    assert [str(CPUSet.from_mask(node)) for node in machine.nodes] == ["0-1", "2", "3-5"]
    assert machine.node_numbers == (7, 9, 9)


@given(requests(), st.booleans())
def test_areas_lie_inside_each_other_and_cover_the_machine(request_: Request, align_l3: bool) -> None:
    machine = machine_of(request_.topology)

    def check(areas: tuple[Area, ...], outer: int) -> int:
        assert sum(area.cpus for area in areas) == outer
        return sum(area.cost + (check(area.children, area.cpus) if area.children else 0) for area in areas)

    everything = SOCKET * len(machine.sockets) + NODE * len(machine.nodes) + align_l3 * len(machine.l3_groups)
    assert check(areas_of(machine, align_l3), machine.cpus) == everything
    assert cost_of(machine, machine.cpus, align_l3) == everything


@given(requests(), st.booleans())
def test_no_choice_costs_less_than_the_bound(request_: Request, align_l3: bool) -> None:
    machine, free, count = machine_of(request_.topology), request_.free.mask, request_.count
    chosen = packed(machine, free, count, AllocationOptions(align_l3=align_l3))
    assert cost_of(machine, chosen, align_l3) >= least_cost(machine, free, count, align_l3)


def test_equal_topologies_have_one_machine() -> None:
    assert machine_of(t2()) is machine_of(t2())

"""Promises of the topology value."""

import pytest

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Cpu, Topology
from tests.unit.topology.machines import box, hybrid, t1, t2


def sets(*texts: str) -> tuple[CPUSet, ...]:
    return tuple(CPUSet.parse(text) for text in texts)


@pytest.mark.fault("R11")
def test_cores_of_two_sockets_with_equal_core_ids_stay_apart() -> None:
    assert t2().cores == sets("0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15")


@pytest.mark.fault("R11")
def test_cores_of_two_clusters_with_equal_core_ids_stay_apart() -> None:
    cpus = [Cpu(n, 0, -1, n // 2, n % 2, 0, None) for n in range(4)]
    assert Topology.of(cpus).cores == sets("0", "1", "2", "3")


@pytest.mark.fault("R12")
def test_a_core_with_an_offline_thread_has_the_threads_that_are_left() -> None:
    topology = t1(offline=[15])
    assert topology.cores[-1] == CPUSet([7])
    assert topology.online == CPUSet(range(15))
    assert topology.present == CPUSet(range(16))
    assert topology.smt_enabled


@pytest.mark.fault("R15")
def test_a_core_may_have_four_threads() -> None:
    cpus = [Cpu(n, 0, -1, -1, n // 4, 0, 0) for n in range(8)]
    assert Topology.of(cpus).cores == sets("0-3", "4-7")


def test_smt_is_off_where_every_core_has_one_thread() -> None:
    assert not t1(offline=range(8, 16)).smt_enabled
    assert hybrid().smt_enabled


def test_the_node_in_a_box_has_its_levels() -> None:
    topology = box()
    nodes = sets("0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15")
    assert topology.sockets == {0: CPUSet.parse("0-3,8-11"), 1: CPUSet.parse("4-7,12-15")}
    assert topology.nodes == dict(enumerate(nodes))
    assert topology.l3_groups == nodes


def test_cpus_of_a_node_without_l3_are_one_group() -> None:
    cpus = [Cpu(n, 0, -1, -1, n, n // 2, None) for n in range(4)]
    assert Topology.of(cpus).l3_groups == sets("0-1", "2-3")


def test_an_l3_of_several_nodes_is_one_group() -> None:
    cpus = [Cpu(n, 0, -1, -1, n, n // 2, 7) for n in range(4)]
    assert Topology.of(cpus).l3_groups == sets("0-3")


def test_dies_are_those_of_each_socket() -> None:
    cpus = [Cpu(n, n // 4, n // 2 % 2, -1, n, 0, None) for n in range(8)]
    assert Topology.of(cpus).dies == sets("0-1", "2-3", "4-5", "6-7")


def test_possible_cpus_are_at_least_those_that_are_present() -> None:
    topology = Topology.of([Cpu(1, 0, -1, -1, 1, 0, None)], CPUSet([0, 1]))
    assert topology.possible == topology.present == CPUSet([0, 1])
    assert Topology.of([], CPUSet([0]), possible=CPUSet([3])).possible == CPUSet([0, 3])


def test_nodes_have_cpus_or_memory_or_both_and_mappings_are_in_order() -> None:
    topology = Topology.of(
        [Cpu(n, 0, -1, -1, n, node, None) for n, node in enumerate((1, 9, 4))],
        memory_nodes=[2, 1, 0],
        memoryless_nodes=[9, 8, 4],
        pcie_roots={"pci0000:80": CPUSet([0]), "pci0000:00": CPUSet()},
    )
    assert topology.memory_nodes == (0, 2)
    assert topology.memoryless_nodes == (4, 9)
    assert list(topology.pcie_roots) == ["pci0000:00", "pci0000:80"]


def test_topologies_are_equal_by_value_and_can_be_keys() -> None:
    assert {box(): 1}[box()] == 1
    assert box() != Topology.of(box().cpus.values(), isolated=CPUSet([3]))

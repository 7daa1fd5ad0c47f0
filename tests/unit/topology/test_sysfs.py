"""Promises of the reader: the machine as it is, and something usable from whatever a kernel leaves out."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Topology, TopologyError, read_online, read_topology
from nri_cpu.topology.files import Sysfs
from nri_cpu.topology.nodes import Nodes, read_nodes
from tests.unit.topology.machines import box, hybrid, machine, t1, t1b, t2, write_sysfs

CPU = "sys/devices/system/cpu"


@pytest.mark.parametrize(
    "topology",
    [t1(), t1(offline=[15]), t1b(), t2(), box(), hybrid(), machine(sockets=4, cores=4, threads=4, nodes=2)],
    ids=["t1", "t1-offline", "t1b", "t2", "box", "hybrid", "smt4"],
)
def test_what_a_kernel_shows_is_read_back(tmp_path: Path, topology: Topology) -> None:
    assert read_topology(write_sysfs(tmp_path, topology)) == topology


def test_this_machine_can_be_read() -> None:
    topology = read_topology(Path("/"))
    assert topology.online == read_online(Path("/")) != CPUSet()


@pytest.mark.fault("R14")
def test_without_cache_and_node_directories_every_cpu_is_there_on_node_0(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t1())
    shutil.rmtree(tmp_path / "sys/devices/system/node")
    for cpu in range(16):
        shutil.rmtree(tmp_path / CPU / f"cpu{cpu}/cache")
    topology = read_topology(tmp_path)
    assert topology.online == CPUSet(range(16))
    assert {(cpu.numa_node, cpu.l3) for cpu in topology.cpus.values()} == {(0, None)}
    assert topology.cores == t1().cores


@pytest.mark.fault("R14")
def test_without_topology_directories_each_cpu_is_a_core_of_socket_0(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t1())
    for cpu in range(16):
        shutil.rmtree(tmp_path / CPU / f"cpu{cpu}/topology")
    topology = read_topology(tmp_path)
    assert len(topology.cores) == 16
    assert set(topology.sockets) == {0}


@pytest.mark.fault("A26")
def test_an_l3_without_an_id_is_named_after_its_lowest_cpu(tmp_path: Path) -> None:
    write_sysfs(tmp_path, machine(cores=8, l3_per_node=2))
    for cpu in range(8):
        (tmp_path / CPU / f"cpu{cpu}/cache/index3/id").unlink()
    assert [cpu.l3 for cpu in read_topology(tmp_path).cpus.values()] == [0, 0, 0, 0, 4, 4, 4, 4]


@pytest.mark.fault("A26")
def test_two_l3_with_one_id_stay_apart(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t1b())
    for cpu in range(16):
        (tmp_path / CPU / f"cpu{cpu}/cache/index3/id").write_text("0\n")
    assert read_topology(tmp_path).l3_groups == t1b().l3_groups


@pytest.mark.fault("A26")
def test_cluster_65535_is_none(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t1())
    assert {cpu.cluster for cpu in read_topology(tmp_path).cpus.values()} == {-1}


@pytest.mark.fault("A27")
@pytest.mark.parametrize("text", ["", "-", "abc", "0x3", "1 2", "9" * 40, "\x00\xff"])
def test_a_bad_number_costs_that_field_only(tmp_path: Path, text: str) -> None:
    write_sysfs(tmp_path, t1())
    (tmp_path / CPU / "cpu3/topology/die_id").write_text(text)
    topology = read_topology(tmp_path)
    assert topology.online == CPUSet(range(16))
    assert topology == t1()  # by its sibling's
    (tmp_path / CPU / "cpu11/topology/die_id").write_text(text)
    assert {cpu.id for cpu in read_topology(tmp_path).cpus.values() if cpu.die == -1} == {3, 11}


@pytest.mark.fault("A27")
def test_minus_one_is_a_legal_value(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t1())
    for cpu in range(16):
        for name in ("die_id", "cluster_id", "physical_package_id"):
            (tmp_path / CPU / f"cpu{cpu}/topology/{name}").write_text("-1\n")
    topology = read_topology(tmp_path)
    assert topology.cores == t1().cores
    assert set(topology.sockets) == {0}


@pytest.mark.fault("A27")
def test_other_negative_numbers_are_no_ids_either(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t1())
    for cpu in range(16):
        for name in ("die_id", "cluster_id", "physical_package_id", "core_id"):
            (tmp_path / CPU / f"cpu{cpu}/topology/{name}").write_text("-7\n")
    cpus = read_topology(tmp_path).cpus.values()
    assert {(cpu.socket, cpu.die, cpu.cluster) for cpu in cpus} == {(0, -1, -1)}
    assert all(cpu.core >= 0 for cpu in cpus)


def test_a_kernel_with_masks_only_is_read(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t1b())
    for path in list(tmp_path.rglob("shared_cpu_list")) + list(tmp_path.rglob("cpulist")):
        mask = f"{CPUSet.parse(path.read_text()).mask:x}"
        name = "cpumap" if path.name == "cpulist" else "shared_cpu_map"
        path.with_name(name).write_text(f"00000000,{mask.zfill(8)}\n")
        path.unlink()
    assert read_topology(tmp_path) == t1b()


def test_a_list_that_ends_with_a_nul_is_read(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t2())
    for path in tmp_path.rglob("cpulist"):
        path.write_text(path.read_text() + "\0")
    assert read_topology(tmp_path) == t2()


def test_without_the_online_file_the_directories_count(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t1(offline=[15]))
    (tmp_path / CPU / "online").unlink()
    assert read_online(tmp_path) == CPUSet(range(15))


def test_an_unreadable_online_file_does_not_hide_the_cpus(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t1())
    (tmp_path / CPU / "online").write_text("0-15,17-3\n")
    assert read_online(tmp_path) == CPUSet(range(16))


def test_no_cpu_at_all_is_an_error_that_names_file_and_way_out(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=f"{tmp_path}/sys/devices/system/cpu/online .* HOST_ROOT"):
        read_topology(tmp_path)


def test_what_is_odd_is_told_also_of_a_machine_without_cpus(tmp_path: Path) -> None:
    (tmp_path / CPU).mkdir(parents=True)
    (tmp_path / CPU / "online").write_text("nonsense\n")
    told: list[str] = []
    with pytest.raises(TopologyError, match="tells of no CPU"):
        read_topology(tmp_path, tell=told.extend)
    assert told == ["not a list of CPUs, and passed over: online"]


def test_an_offline_cpu_keeps_its_node(tmp_path: Path) -> None:
    assert read_topology(write_sysfs(tmp_path, t2())).offline_nodes == {}
    offline = machine(sockets=2, cores=4, threads=2, offline=[13])
    assert read_topology(write_sysfs(tmp_path / "again", offline)).offline_nodes == {13: 1}


def test_core_types_come_from_the_two_pmus(tmp_path: Path) -> None:
    topology = read_topology(write_sysfs(tmp_path, hybrid()))
    assert [topology.cpus[cpu].core_type for cpu in (0, 3, 4)] == [CoreType.P_CORE, CoreType.P_CORE, CoreType.E_CORE]


@pytest.mark.fault("H1")
def test_a_cpu_that_goes_off_line_meanwhile_is_in_no_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sysfs(tmp_path, t2())
    gone = iter([13, 14])

    def read_nodes_and_lose_a_cpu(sysfs: Sysfs, *arguments: Any) -> Nodes:
        found = read_nodes(sysfs, *arguments)
        if cpu := next(gone, None):
            shutil.rmtree(tmp_path / CPU / f"cpu{cpu}/topology")
            (tmp_path / CPU / "online").write_text("0-12,14-15\n" if cpu == 13 else "0-12,15\n")
        return found

    monkeypatch.setattr("nri_cpu.topology.sysfs.read_nodes", read_nodes_and_lose_a_cpu)
    topology = read_topology(tmp_path)
    assert topology.online == CPUSet.parse("0-12,15")
    assert topology.cores == machine(sockets=2, cores=4, threads=2, offline=[13, 14]).cores

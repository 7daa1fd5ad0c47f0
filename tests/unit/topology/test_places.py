"""Promises about L3 caches, NUMA nodes and PCIe roots, where a kernel leaves out or contradicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Overlay, Topology, read_topology
from tests.unit.topology.machines import machine, sysfs_files, t1, t1b, t2

Files = dict[str, str]


def read(files: Files) -> Topology:
    return read_topology(Path("/nowhere"), Overlay.of(files))


def cache(cpu: int, name: str, index: int = 3) -> str:
    return f"/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{name}"


def node(number: int, name: str) -> str:
    return f"/sys/devices/system/node/node{number}/{name}"


def changed(files: Files, part: str, text: str | None) -> Files:
    """With this text (None: without) in all files whose path has that part."""
    kept = {path: old for path, old in files.items() if part not in path}
    return kept | ({} if text is None else dict.fromkeys(files.keys() - kept.keys(), text))


# L3


@pytest.mark.fault("A26")
@pytest.mark.parametrize("text", ["0", "-1", "x", "", None])
def test_caches_without_ids_of_their_own_are_named_after_their_lowest_cpu(text: str | None) -> None:
    topology = read(changed(sysfs_files(machine(cores=8, l3_per_node=2)), "index3/id", text))
    assert [cpu.l3 for cpu in topology.cpus.values()] == [0, 0, 0, 0, 4, 4, 4, 4]


@pytest.mark.fault("A26")
def test_the_name_of_a_cache_without_an_id_is_no_other_caches() -> None:
    # The second cache would be named 4, which is the first one's id.
    files = sysfs_files(machine(cores=8, l3_per_node=2))
    for cpu in range(8):
        files[cache(cpu, "id")] = "4" if cpu < 4 else "x"
    assert read(files).l3_groups == (CPUSet(range(4)), CPUSet(range(4, 8)))


@pytest.mark.fault("A26", "R18")
def test_ids_that_each_socket_counts_anew_are_of_different_caches() -> None:
    files = sysfs_files(t2())
    for cpu in range(16):
        files[cache(cpu, "id")] = "0"
    assert read(files).l3_groups == t2().l3_groups


@pytest.mark.parametrize("text", ["", "x", "8-15", "700", "\0"])
def test_sharers_that_leave_out_the_cpu_itself_give_way_to_the_mask(text: str) -> None:
    topology = t1b()
    files = changed(sysfs_files(topology), "index3/shared_cpu_list", text)
    for cpu in (0, 4):
        files[cache(cpu, "shared_cpu_list")] = "15"
    assert read(files).l3_groups == topology.l3_groups


def test_a_cache_that_tells_of_no_sharers_is_none() -> None:
    files = changed(changed(sysfs_files(t1()), "index3/shared_cpu_list", None), "index3/shared_cpu_map", "x")
    assert {cpu.l3 for cpu in read(files).cpus.values()} == {None}


def test_caches_that_overlap_have_each_cpu_once() -> None:
    files = sysfs_files(t1b())
    files[cache(4, "shared_cpu_list")] = "0-15"
    topology = read(files)
    assert topology.l3_groups == t1b().l3_groups


@pytest.mark.parametrize("index", [0, 1, 2, 4, 9])
def test_level_3_may_stand_at_any_index(index: int) -> None:
    files = {path: text for path, text in sysfs_files(t1b()).items() if "index0" not in path}
    assert read({path.replace("index3", f"index{index}"): text for path, text in files.items()}) == t1b()


@pytest.mark.parametrize("text", ["2", "4", "", "x", "03", "3 3", None])
def test_other_levels_are_no_l3(text: str | None) -> None:
    assert {cpu.l3 for cpu in read(changed(sysfs_files(t1()), "index3/level", text)).cpus.values()} == {None}


def test_offline_sharers_are_no_members() -> None:
    files = changed(sysfs_files(t1(offline=[15])), "index3/shared_cpu_list", "0-15")
    assert read(files) == t1(offline=[15])


def test_an_l3_may_span_nodes_and_a_node_may_have_cpus_without_one() -> None:
    files = sysfs_files(machine(sockets=1, cores=4, nodes=2))
    files = {path: text for path, text in files.items() if "cpu3/cache" not in path}
    for cpu in range(3):
        files[cache(cpu, "shared_cpu_list")] = "0-2"
        files[cache(cpu, "id")] = "7"
    topology = read(files)
    assert topology.l3_groups == (CPUSet([0, 1, 2]), CPUSet([3]))
    assert topology.nodes == {0: CPUSet([0, 1]), 1: CPUSet([2, 3])}


# NUMA nodes


@pytest.mark.fault("R14")
def test_without_nodes_all_cpus_are_on_node_0() -> None:
    files = {path: text for path, text in sysfs_files(t2()).items() if "/node" not in path}
    assert read(files).nodes == {0: CPUSet(range(16))}


def test_a_cpus_own_link_tells_where_no_list_does() -> None:
    files = sysfs_files(t2()) | {node(1, "cpulist"): "4-7\n"}
    assert read(files).nodes == t2().nodes


def test_a_cpu_in_several_lists_is_on_the_lowest_and_the_others_may_have_memory_only() -> None:
    files = sysfs_files(t2()) | {node(0, "cpulist"): "0-15", node(1, "cpulist"): "0-15"}
    topology = read(files)
    assert topology.nodes == {0: CPUSet(range(16))}
    assert topology.memory_nodes == (1,)


@pytest.mark.parametrize("text", ["x", "0-3,8-1", "99999"])
def test_a_nodes_list_that_can_not_be_understood_gives_way_to_the_mask(text: str) -> None:
    assert read(sysfs_files(t2()) | {node(0, "cpulist"): text}) == t2()


def test_cpus_that_are_not_there_are_on_no_node() -> None:
    files = sysfs_files(t2()) | {node(0, "cpulist"): "0-3,8-11,100-200"}
    assert read(files) == t2()


SOME, NONE = "Node 1 MemTotal:       66322432 kB\n", "Node 1 MemTotal:              0 kB\n"
NODES = "/sys/devices/system/node"


@pytest.mark.parametrize(
    ("text", "some", "none"),
    [
        (SOME, True, False),
        (NONE, False, True),
        ("Node 1 MemFree:  1 kB\nNode 1 MemTotal: 7 kB\n", True, False),
        ("MemTotal: x kB", False, False),
        ("", False, False),
        ("\0", False, False),
        (None, False, False),
    ],
)
def test_a_node_has_memory_or_none_or_it_is_not_known(text: str | None, some: bool, none: bool) -> None:
    files = changed(sysfs_files(t2()), "node1/meminfo", text) | {node(5, "cpulist"): "\n"}
    if text is not None:
        files[node(5, "meminfo")] = text
    topology = read(files)
    assert topology.memory_nodes == ((5,) if some else ())  # which has no CPUs
    assert topology.memoryless_nodes == ((1,) if none else ())  # which has some
    assert topology.nodes == t2().nodes


@pytest.mark.parametrize("name", ["has_memory", "has_normal_memory"])
@pytest.mark.parametrize("text", ["x", "", None])
def test_without_a_nodes_own_word_the_kernels_list_tells(name: str, text: str | None) -> None:
    files = changed(sysfs_files(t2()), "/meminfo", text) | {node(5, "cpulist"): "", node(6, "cpulist"): ""}
    topology = read(files | {f"{NODES}/{name}": "0,5\n"})
    assert topology.memory_nodes == (5,)
    assert topology.memoryless_nodes == (1,)


def test_a_nodes_own_word_counts_more_than_a_list() -> None:
    files = sysfs_files(t2()) | {node(0, "meminfo"): NONE, node(5, "cpulist"): "", node(5, "meminfo"): SOME}
    topology = read(files | {f"{NODES}/has_memory": "0\n"})
    assert topology.memory_nodes == (5,)
    assert topology.memoryless_nodes == (0,)


@pytest.mark.parametrize("text", ["", "x", "\n", "99999"])
def test_the_older_list_tells_where_the_newer_one_can_not_be_understood(text: str) -> None:
    files = changed(sysfs_files(t2()), "/meminfo", None)
    topology = read(files | {f"{NODES}/has_memory": text, f"{NODES}/has_normal_memory": "1\n"})
    assert topology.memoryless_nodes == (0,)
    assert read(files | {f"{NODES}/has_memory": text}).memoryless_nodes == ()


def test_of_the_memory_of_a_node_that_an_overlay_adds_nothing_is_known() -> None:
    # What a machine that hides its nodes says of itself: one node.
    files = changed(sysfs_files(t2()), "/meminfo", None)
    topology = read(files | {f"{NODES}/has_memory": "0\n", f"{NODES}/online": "0\n"})
    assert list(topology.nodes) == [0, 1]
    assert topology.memoryless_nodes == ()


def test_cpus_without_a_node_say_nothing_of_the_memory_of_node_0() -> None:
    files = {path: text for path, text in sysfs_files(t2()).items() if "/node" not in path}
    topology = read(files | {f"{NODES}/has_memory": "1\n"})
    assert topology.nodes == {0: CPUSet(range(16))}
    assert topology.memoryless_nodes == ()


@pytest.mark.fault("H1")
def test_a_node_whose_cpus_are_all_off_line_has_memory_only_and_its_cpus_are_known() -> None:
    topology = machine(sockets=2, cores=2, offline=[2, 3])
    files = sysfs_files(topology) | {node(1, "cpulist"): "\n", node(1, "meminfo"): "Node 1 MemTotal: 9 kB\n"}
    found = read(files)
    assert found.nodes == {0: CPUSet([0, 1])}
    assert found.memory_nodes == (1,)
    assert found.offline_nodes == {2: 1, 3: 1}


# PCIe roots


@pytest.mark.fault("C6")
def test_pcie_roots_move_no_cpu() -> None:
    root = "/sys/devices/pci0000:80/pci_bus/0000:80/cpulistaffinity"
    files = sysfs_files(t2()) | {root: "0-3,8-11\n"}  # which is node 0, though the root may well be on node 1
    topology = read(files)
    assert topology.pcie_roots == {"pci0000:80": CPUSet.parse("0-3,8-11")}
    assert topology.nodes == t2().nodes
    assert topology.sockets == t2().sockets


@pytest.mark.parametrize(
    "name", ["pci0000:0", "pci0000:000", "pci000:00", "pci123456789:00", "PCI0000:00", "pci0000:0g", "pci00:00 ", "pci"]
)
def test_other_devices_are_no_roots(name: str) -> None:
    root = f"/sys/devices/{name}/pci_bus/{name[3:]}/cpulistaffinity"
    assert read(sysfs_files(t1()) | {root: "0-3"}).pcie_roots == {}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"cpulistaffinity": "0-3,700\n"}, "0-3"),
        ({"cpulistaffinity": "\n", "cpuaffinity": "f"}, ""),
        ({"cpulistaffinity": "x", "cpuaffinity": "0000,00000000,0000000f"}, "0-3"),
        ({"cpuaffinity": "ff"}, "0-7"),
        ({"cpuaffinity": "f" * 4096}, None),
        ({"cpuaffinity": "x"}, None),
        ({"uevent": ""}, None),
    ],
)
def test_a_roots_cpus_are_those_of_its_list_or_mask_that_are_there(texts: Files, expected: str | None) -> None:
    files = {f"/sys/devices/pci1a2b3:c4/pci_bus/1a2b3:c4/{name}": text for name, text in texts.items()}
    roots = read(sysfs_files(t1()) | files).pcie_roots
    assert roots == ({} if expected is None else {"pci1a2b3:c4": CPUSet.parse(expected)})

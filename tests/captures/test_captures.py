"""Promises of the reader on captured machines: what hwloc reads from the same tree, and why where it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from loguru import logger

from dra.devices import DeviceMode, GroupBy, devices_of
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Topology, read_topology
from nri_cpu.topology.files import Sysfs
from nri_cpu.topology.overlay import parse_overlay
from tests.captures.hwloc import Seen, see
from tests.captures.machines import NAMES, capture

CPU = "/sys/devices/system/cpu"


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line).strip()), format="{message}", level="DEBUG")
    yield lines
    logger.remove(sink)


def read(name: str) -> Topology:
    return read_topology(capture(name))


def cpus(*texts: str) -> tuple[CPUSet, ...]:
    return tuple(CPUSet.parse(text) for text in texts)


def caches(topology: Topology) -> list[CPUSet]:
    return [group for group in topology.l3_groups if topology.cpus[group.first()].l3 is not None]


def types(topology: Topology) -> dict[CoreType, str]:
    kinds = {kind: CPUSet(cpu.id for cpu in topology.cpus.values() if cpu.core_type is kind) for kind in CoreType}
    return {kind: str(members) for kind, members in kinds.items() if members}


# Where hwloc's word is not ours; each has a test of its own below.
NO_PACKAGE_IDS = "256ppc-8n8s4t"
NO_REAL_NODES = "fakeheterocpunuma"


def without(other: str) -> list[str]:
    return [name for name in NAMES if name != other]


def test_cpus_and_cores_are_those_that_hwloc_reads(name: str) -> None:
    topology, seen = read(name), see(capture(name))
    assert topology.online == seen.cpus
    assert list(topology.cores) == seen.cores


def test_l3_caches_are_those_that_hwloc_reads(name: str) -> None:
    assert caches(read(name)) == see(capture(name)).l3


@pytest.mark.parametrize("name", without(NO_PACKAGE_IDS))
def test_sockets_are_those_that_hwloc_reads(name: str) -> None:
    assert read(name).sockets == see(capture(name)).sockets


def test_dies_are_those_that_hwloc_reads(name: str) -> None:
    topology, seen = read(name), see(capture(name))
    # hwloc shows no dies where each socket has one.
    assert set(topology.dies) == set(seen.dies or topology.sockets.values())


@pytest.mark.parametrize("name", without(NO_REAL_NODES))
def test_numa_nodes_are_those_that_hwloc_reads(name: str) -> None:
    topology = read(name)
    assert topology.nodes == see(capture(name)).nodes
    assert topology.memory_nodes == topology.memoryless_nodes == ()


def test_each_oddity_is_one_line(name: str, log: list[str]) -> None:
    read(name)
    kinds = [re.sub(r"[0-9][-0-9,]*", "N", line) for line in log]
    assert len(kinds) == len(set(kinds))
    assert all(line.startswith("topology: ") for line in log)


@pytest.mark.fault("R14", "H1")
def test_there_are_devices_and_each_has_cpus_that_are_there(name: str) -> None:
    topology = read(name)
    choices = [(DeviceMode.INDIVIDUAL, GroupBy.MACHINE), *((DeviceMode.GROUPED, group_by) for group_by in GroupBy)]
    for mode, group_by in choices:
        devices = devices_of(topology, topology.online, mode, group_by)
        assert devices
        assert all(device.cpus and device.cpus <= topology.online for device in devices)
        assert sum(len(device.cpus) for device in devices) == len(topology.online)


def test_present_and_possible_cpus_are_the_kernels() -> None:
    topology = read("32amd64-4s2n4c-cgroup2")
    assert (topology.present, topology.possible) == cpus("0-31", "0-47")


# What differs, and why


def test_sockets_that_the_kernel_does_not_tell_are_one() -> None:
    # physical_package_id is -1 on this kernel. hwloc takes core_siblings instead, which that kernel fills with the
    # threads of one core, and so sees 64 packages of one core each. Fewest sockets would then mean fewest cores, and a
    # device for each socket a device for each core, so that -1 counts as it is meant: not known, one.
    topology, seen = read(NO_PACKAGE_IDS), see(capture(NO_PACKAGE_IDS))
    assert topology.sockets == {0: CPUSet(range(256))}
    assert set(seen.sockets) == {-1}
    assert list(topology.cores) == seen.cores


@pytest.mark.fault("R14")
def test_every_cpu_has_one_node_also_where_lists_overlap_or_leave_it_out() -> None:
    # No kernel shows this. hwloc drops the nodes that overlap an earlier one, 4 and 5, and leaves CPUs 4-7 and 12-19
    # without a node; containers run there too, and a CPU that is in no node or in several would be in no device or in
    # several.
    topology, seen = read(NO_REAL_NODES), see(capture(NO_REAL_NODES))
    nodes = {0: "0-7", 1: "8-11", 3: "20-23", 4: "16-19", 5: "12-15"}
    assert topology.nodes == {node: CPUSet.parse(text) for node, text in nodes.items()}
    assert set(seen.nodes) == {0, 1, 2, 3}
    assert seen.nodes[3] == topology.nodes[3]
    # It has memory and no CPU; hwloc says what it is near to.
    assert topology.memory_nodes == (2,)
    assert topology.memoryless_nodes == ()


@pytest.mark.fault("R11")
@pytest.mark.parametrize("name", ["32amd64-4s2n4c-cgroup2", "48amd64-4pa2n6c-sparse"])
def test_core_ids_that_repeat_inside_a_socket_make_no_siblings(name: str, log: list[str]) -> None:
    # Each of the two dies of a socket counts its cores from 0, and nothing names the die; the siblings tell.
    topology = read(name)
    assert not topology.smt_enabled
    assert [cpu.core for cpu in topology.cpus.values()] == list(topology.online)
    assert log == [f"topology: core ids and lists of siblings contradict each other for CPUs {topology.online}"]


@pytest.mark.fault("A26")
def test_a_list_of_sharers_that_leaves_out_its_own_cpu_gives_way_to_the_mask(log: list[str]) -> None:
    # All 64 lists say 0-7; hwloc never reads them.
    name = "64fake-4n2s2ca2c2t"
    topology = read(name)
    assert Sysfs(capture(name)).text(f"{CPU}/cpu63/cache/index3/shared_cpu_list") == "0-7"
    assert topology.cpus[63].l3 == 56
    assert log == ["topology: the list of an L3 cache's sharers leaves out CPUs 8,16,24,32,40,48,56"]


def test_a_pci_domain_of_more_than_four_digits_is_a_root_like_others(log: list[str]) -> None:
    # hwloc ignores it, being built for 16 bits. The capture has no pci_bus for it, which the overlay adds.
    name = "2pa-pcidomain32bits"
    assert read(name).pcie_roots == {"pci0000:00": CPUSet.parse("0-1")}
    assert log[-1] == "topology: no CPUs are told for the PCIe root pci10000:00"
    overlay = parse_overlay('/sys/devices/pci10000:00/pci_bus/10000:00/cpulistaffinity: "1\\n"\n')
    assert read_topology(capture(name), overlay).pcie_roots["pci10000:00"] == CPUSet([1])


@pytest.mark.fault("C6")
def test_pcie_roots_of_a_kernel_with_masks_are_read_and_move_no_cpu() -> None:
    # Firmware calls all CPUs of the four sockets local to both roots: nothing of the CPUs' own places comes from that.
    topology = read("40intel64-2g2n4c+pcilocality")
    assert topology.pcie_roots == {"pci0000:00": CPUSet(range(40)), "pci0000:40": CPUSet(range(40))}
    assert topology.nodes == {node: CPUSet(range(node, 40, 4)) for node in range(4)}


@pytest.mark.fault("R12")
def test_offline_cpus_are_present_on_their_node_and_in_no_core() -> None:
    # There is no list of online, nor of present CPUs. hwloc knows of offline CPUs only that they are left out.
    topology = read("16em64t-4s2c2t-offlines")
    assert topology.present - topology.online == CPUSet.parse("2,5,13-14")
    assert topology.offline_nodes == dict.fromkeys([2, 5, 13, 14], 0)
    assert topology.cores == cpus("0,8", "1,9", "3,11", "4,12", "6", "7,15", "10")
    topology = read("16amd64-8n2c-cpusets")
    assert topology.offline_nodes == {4: 2}


@pytest.mark.fault("R15")
def test_four_threads_are_one_core() -> None:
    assert {len(core) for core in read("256ppc-8n8s4t").cores} == {4}


@pytest.mark.fault("R11", "A26")
def test_clusters_are_no_cores_and_an_l3_without_an_id_has_its_lowest_cpu() -> None:
    topology = read("128arm-2pa2n8cluster4co")
    assert len({(cpu.socket, cpu.cluster) for cpu in topology.cpus.values()}) == 32
    assert {cpu.l3 for cpu in topology.cpus.values()} == {0, 32, 64, 96}
    assert types(topology) == {CoreType.STANDARD: "0-127"}


@pytest.mark.fault("P-6")
def test_a_hybrid_machine_without_the_pmus_files_is_standard_and_has_its_types_with_them() -> None:
    # hwloc tells the kinds apart by clock rates, which differ between equal cores of other machines.
    name = "20em64t-hybrid-1p6c2t+2ca4co1t"
    assert types(read(name)) == {CoreType.STANDARD: "0-19"}
    overlay = parse_overlay('/sys/devices/cpu_core/cpus: "0-11\\n"\n/sys/devices/cpu_atom/cpus: "12-19\\n"\n')
    topology = read_topology(capture(name), overlay)
    assert types(topology) == {CoreType.P_CORE: "0-11", CoreType.E_CORE: "12-19"}
    assert {len(core) for core in topology.cores} == {1, 2}


def test_two_capacities_are_p_cores_and_e_cores() -> None:
    # 234 and 1025, and a kernel may say a little more than 1024.
    assert types(read("fakeheterocpunuma")) == {CoreType.P_CORE: "12-23", CoreType.E_CORE: "0-11"}


def test_seen_has_all_that_is_compared() -> None:
    assert see(capture("fakecpuid1f-64intel64-2p4d2n2c2t")) == Seen(
        cpus=CPUSet(range(64)),
        cores=[CPUSet([n, n + 1]) for n in range(0, 64, 2)],
        l3=[CPUSet(range(n, n + 8)) for n in range(0, 64, 8)],
        dies=[CPUSet(range(n, n + 8)) for n in range(0, 64, 8)],
        sockets={n: CPUSet(range(16 * n, 16 * n + 16)) for n in range(4)},
        nodes={n: CPUSet(range(4 * n, 4 * n + 4)) for n in range(16)},
    )

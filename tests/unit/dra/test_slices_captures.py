"""Promises of the slices of real machines: devices of CPUs that are there, objects that the API takes."""

import pytest

from dra.devices import PCIE_ROOT, DeviceMode, GroupBy, devices_of
from dra.slices.limits import check
from dra.slices.objects import slices_of
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import read_topology
from tests.captures.machines import NAMES, capture

NODE = "node-a"
CONFIGURATIONS = [(DeviceMode.INDIVIDUAL, GroupBy.NUMANODE), *((DeviceMode.GROUPED, group_by) for group_by in GroupBy)]


@pytest.mark.fault("A26", "A28", "R14", "R18")
@pytest.mark.parametrize("name", NAMES)
def test_every_machine_has_devices_of_cpus_that_are_there_and_slices_that_are_taken(name: str) -> None:
    topology = read_topology(capture(name))
    for mode, group_by in CONFIGURATIONS:
        for pcie_roots in (False, True):
            devices = devices_of(topology, topology.online, mode, group_by, pcie_roots)
            assert CPUSet.union(device.cpus for device in devices) == topology.online
            assert sum(len(device.cpus) for device in devices) == len(topology.online)
            slices = slices_of(devices, NODE, node_allocatable_mapping=pcie_roots)
            assert slices
            assert check(slices) == []


@pytest.mark.parametrize(
    ("name", "individual", "nodes", "sockets"),
    [
        ("256ppc-8n8s4t", [128, 128], [0, 1, 4, 5, 8, 9, 12, 13], [0]),
        ("16em64t-4s2c2t-offlines", [12], [0], range(4)),
        ("40intel64-2g2n4c+pcilocality", [40], range(4), range(4)),
        ("20em64t-hybrid-1p6c2t+2ca4co1t", [20], [0], [0]),
    ],
)
def test_these_machines_have_the_devices_that_their_names_tell(
    name: str, individual: list[int], nodes: list[int], sockets: list[int]
) -> None:
    topology = read_topology(capture(name))

    def names(mode: DeviceMode, group_by: GroupBy = GroupBy.NUMANODE) -> list[list[str]]:
        slices = slices_of(devices_of(topology, topology.online, mode, group_by), NODE)
        return [[device["name"] for device in manifest["spec"]["devices"]] for manifest in slices]

    assert list(map(len, names(DeviceMode.INDIVIDUAL))) == individual
    assert names(DeviceMode.GROUPED) == [[f"cpudevnuma{node:03}" for node in nodes]]
    assert names(DeviceMode.GROUPED, GroupBy.SOCKET) == [[f"cpudevsocket{socket:03}" for socket in sockets]]
    assert names(DeviceMode.GROUPED, GroupBy.MACHINE) == [["cpudevmachine"]]


def test_a_machine_tells_which_pcie_roots_are_near() -> None:
    topology = read_topology(capture("40intel64-2g2n4c+pcilocality"))
    devices = devices_of(topology, topology.online, DeviceMode.GROUPED, pcie_roots=True)
    near = {device.name: device.attributes.get(PCIE_ROOT) for device in devices}
    roots = {name for found in near.values() if isinstance(found, tuple) for name in found}
    assert roots == {"pci0000:00", "pci0000:40"}
    slices = slices_of(devices, NODE)
    assert [device["attributes"].get(PCIE_ROOT) for device in slices[0]["spec"]["devices"]] == [
        found and {"strings": list(found)} for found in near.values() if isinstance(found, tuple | None)
    ]

"""Promises of devices: names that keep their CPUs, the documented attributes, nothing that is reserved."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.devices import (
    MAX_VALUES,
    PCIE_ROOT,
    Device,
    DeviceMode,
    GroupBy,
    by_name,
    devices_of,
    every_device,
    grouped_devices,
    individual_devices,
)
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Cpu, Topology
from tests.unit.topology.machines import box, hybrid, machine, t1, t2

ALL = CPUSet(range(16))


@pytest.mark.fault("R8")
def test_a_name_is_the_same_cpu_whatever_is_reserved_or_offline() -> None:
    full = by_name(individual_devices(t1(), ALL))
    fewer = by_name(individual_devices(t1(offline=[1]), ALL - CPUSet([0, 8])))
    assert full["cpudev003"].cpus == fewer["cpudev003"].cpus == CPUSet([3])
    assert {name: device.cpus for name, device in fewer.items()}.items() <= {n: d.cpus for n, d in full.items()}.items()
    assert full.keys() - fewer.keys() == {"cpudev000", "cpudev008", "cpudev001"}


def test_siblings_stand_side_by_side() -> None:
    names = [device.name for device in individual_devices(t1(), ALL)]
    assert names[:4] == ["cpudev000", "cpudev008", "cpudev001", "cpudev009"]


@pytest.mark.fault("A29")
def test_an_individual_device_has_the_documented_attributes() -> None:
    device = by_name(individual_devices(box(), ALL))["cpudev014"]
    assert device == Device(
        name="cpudev014",
        cpus=CPUSet([14]),
        attributes={
            "dra.cpu/cpuID": 14,
            "dra.cpu/coreID": 2,
            "dra.cpu/coreType": "standard",
            "dra.cpu/cacheL3ID": 3,
            "dra.cpu/socketID": 1,
            "dra.cpu/smtEnabled": True,
            "dra.cpu/numaNodeID": 3,
            "dra.net/numaNode": 3,
            "resource.kubernetes.io/numaNode": 3,
        },
        capacity={},
        allow_multiple_allocations=False,
    )


@pytest.mark.fault("A29")
def test_a_grouped_device_has_the_documented_attributes_and_capacity() -> None:
    devices = grouped_devices(box(), ALL - CPUSet([4]))
    assert [device.name for device in devices] == ["cpudevnuma000", "cpudevnuma001", "cpudevnuma002", "cpudevnuma003"]
    assert devices[2] == Device(
        name="cpudevnuma002",
        cpus=CPUSet.parse("5,12-13"),
        attributes={
            "dra.cpu/numCPUs": 3,
            "dra.cpu/smtEnabled": True,
            "dra.cpu/socketID": 1,
            "dra.cpu/numaNodeID": 2,
            "dra.net/numaNode": 2,
            "resource.kubernetes.io/numaNode": 2,
        },
        capacity={"dra.cpu/cpu": 3},
        allow_multiple_allocations=True,
        group_by=GroupBy.NUMANODE,
    )


@pytest.mark.fault("A29", "F-2")
def test_a_socket_device_has_the_documented_attributes_and_no_numa_node() -> None:
    devices = grouped_devices(box(), ALL - CPUSet([4]), GroupBy.SOCKET)
    assert [device.name for device in devices] == ["cpudevsocket000", "cpudevsocket001"]
    assert devices[1] == Device(
        name="cpudevsocket001",
        cpus=CPUSet.parse("5-7,12-15"),
        attributes={"dra.cpu/numCPUs": 7, "dra.cpu/smtEnabled": True, "dra.cpu/socketID": 1},
        capacity={"dra.cpu/cpu": 7},
        allow_multiple_allocations=True,
        group_by=GroupBy.SOCKET,
    )


@pytest.mark.fault("A29")
def test_the_machine_device_has_its_size_and_no_place() -> None:
    assert grouped_devices(box(), ALL - CPUSet([4]), GroupBy.MACHINE) == (
        Device(
            name="cpudevmachine",
            cpus=CPUSet.parse("0-3,5-15"),
            attributes={"dra.cpu/numCPUs": 15, "dra.cpu/smtEnabled": True},
            capacity={"dra.cpu/cpu": 15},
            allow_multiple_allocations=True,
            group_by=GroupBy.MACHINE,
        ),
    )


def test_core_types_are_named() -> None:
    types = [device.attributes["dra.cpu/coreType"] for device in individual_devices(hybrid(1, 1), ALL)]
    assert types == ["p-core", "p-core", "e-core"]


@pytest.mark.fault("R14")
def test_a_machine_without_l3_and_numa_has_devices_without_what_is_not_known() -> None:
    topology = Topology.of(Cpu(n, n, -1, -1, 0, 0, None) for n in range(2))
    (device,) = grouped_devices(topology, topology.online)
    assert "dra.cpu/socketID" not in device.attributes
    assert all("dra.cpu/cacheL3ID" not in device.attributes for device in individual_devices(topology, ALL))


def test_a_node_with_everything_reserved_has_no_device() -> None:
    assert [device.name for device in grouped_devices(t2(), CPUSet.parse("4-7,12-15"))] == ["cpudevnuma001"]
    assert individual_devices(t2(), CPUSet()) == ()
    assert all(grouped_devices(t2(), CPUSet(), group_by) == () for group_by in GroupBy)


def test_a_node_of_several_sockets_has_no_socket_also_when_all_but_one_are_reserved() -> None:
    topology = Topology.of(Cpu(n, n // 2, -1, -1, n % 2, 0, 0) for n in range(4))
    (device,) = grouped_devices(topology, CPUSet.parse("2-3"))
    assert "dra.cpu/socketID" not in device.attributes


def test_groups_with_everything_off_line_have_no_device_and_the_others_keep_their_names() -> None:
    topology = machine(sockets=2, cores=4, threads=2, offline=[0, 1, 2, 3, 8, 9, 10, 11])
    names = [device.name for by in GroupBy for device in grouped_devices(topology, topology.online, by)]
    assert names == ["cpudevnuma001", "cpudevsocket001", "cpudevmachine"]


def test_a_device_tells_the_configuration_that_has_it() -> None:
    settings = {name: device.setting for name, device in every_device(t2(), ALL).items()}
    assert settings["cpudev003"] == "cpuDeviceMode individual"
    assert settings["cpudevnuma001"] == "cpuDeviceMode grouped, groupBy numanode"
    assert settings["cpudevsocket001"] == "cpuDeviceMode grouped, groupBy socket"
    assert settings["cpudevmachine"] == "cpuDeviceMode grouped, groupBy machine"


def roots(topology: Topology, pcie: dict[str, str]) -> Topology:
    return Topology.of(topology.cpus.values(), pcie_roots={name: CPUSet.parse(cpus) for name, cpus in pcie.items()})


def pcie_roots(
    topology: Topology, allocatable: CPUSet, mode: DeviceMode, group_by: GroupBy = GroupBy.NUMANODE
) -> dict[str, object]:
    devices = devices_of(topology, allocatable, mode, group_by, pcie_roots=True)
    return {device.name: device.attributes.get(PCIE_ROOT) for device in devices}


def test_pcie_roots_are_those_near_any_cpu_of_the_device() -> None:
    topology = roots(t2(), {"pci0000:80": "4-7,12-15", "pci0000:00": "0-3,8-11", "pci0000:40": "0-3,8-11,64"})
    assert pcie_roots(topology, ALL, DeviceMode.GROUPED) == {
        "cpudevnuma000": ("pci0000:00", "pci0000:40"),
        "cpudevnuma001": ("pci0000:80",),
    }
    every = ("pci0000:00", "pci0000:40", "pci0000:80")
    assert pcie_roots(topology, ALL, DeviceMode.GROUPED, GroupBy.MACHINE) == {"cpudevmachine": every}
    assert pcie_roots(topology, ALL, DeviceMode.INDIVIDUAL)["cpudev012"] == ("pci0000:80",)


def test_what_is_reserved_does_not_change_the_pcie_roots_of_a_group() -> None:
    topology = roots(t2(), {"pci0000:00": "0", "pci0000:40": "1-3", "pci0000:80": "4-7,12-15"})
    for group_by in GroupBy:
        everything = pcie_roots(topology, ALL, DeviceMode.GROUPED, group_by)
        for reserved in ("0", "0-2,8", "0,4"):
            left = ALL - CPUSet.parse(reserved)
            assert pcie_roots(topology, left, DeviceMode.GROUPED, group_by) == everything


def test_without_pcie_roots_near_it_or_without_being_asked_a_device_has_no_such_attribute() -> None:
    topology = roots(t2(), {"pci0000:00": "0-3,8-11", "pci0000:01": ""})
    assert pcie_roots(topology, ALL, DeviceMode.GROUPED)["cpudevnuma001"] is None
    assert all(PCIE_ROOT not in device.attributes for device in devices_of(topology, ALL, DeviceMode.GROUPED))
    assert pcie_roots(topology, CPUSet.parse("12"), DeviceMode.GROUPED) == {"cpudevnuma001": None}


@pytest.mark.parametrize("mode", DeviceMode)
def test_more_pcie_roots_than_a_device_has_room_for_are_left_out_by_name_and_told(mode: DeviceMode) -> None:
    names = tuple(f"pci{n:04x}:00" for n in range(60))
    topology = roots(t1(), dict.fromkeys(names, "0-15"))
    device = devices_of(topology, ALL, mode, pcie_roots=True)[0]
    kept = device.attributes[PCIE_ROOT]
    assert isinstance(kept, tuple)
    assert len(device.attributes) - 1 + len(kept) == MAX_VALUES
    assert kept + device.left_out == names


MACHINES = st.sampled_from([t1(), t1(offline=[3, 15]), t2(), box(), hybrid(), machine(sockets=4, cores=3, nodes=1)])


@pytest.mark.fault("K13", "R18")
@given(MACHINES, st.sets(st.integers(0, 15)), st.sampled_from(DeviceMode), st.sampled_from(GroupBy))
def test_devices_of_a_configuration_part_what_is_allocatable(
    topology: Topology, cpus: set[int], mode: DeviceMode, group_by: GroupBy
) -> None:
    allocatable = CPUSet(cpus)
    devices = devices_of(topology, allocatable, mode, group_by)
    assert len(by_name(devices)) == len(devices)
    assert sum(len(device.cpus) for device in devices) == len(allocatable & topology.online)
    assert all(device.cpus and device.cpus <= allocatable for device in devices)
    sizes = [device.capacity.get("dra.cpu/cpu", 1) for device in devices]
    assert sizes == [len(device.cpus) for device in devices]


@pytest.mark.fault("K13", "R8")
@given(MACHINES, st.sets(st.integers(0, 15)), st.sets(st.integers(0, 15)))
def test_whatever_is_reserved_or_off_line_a_name_means_the_same_group(
    topology: Topology, reserved: set[int], offline: set[int]
) -> None:
    whole = every_device(topology, topology.online)
    left = Topology.of(cpu for cpu in topology.cpus.values() if cpu.id not in offline)
    allocatable = left.online - CPUSet(reserved)
    fewer = every_device(left, allocatable)
    assert {name: whole[name].cpus & allocatable for name in fewer} == {n: device.cpus for n, device in fewer.items()}
    assert all(not device.cpus & allocatable for name, device in whole.items() if name not in fewer)


@given(MACHINES, st.sampled_from(DeviceMode), st.sampled_from(GroupBy))
def test_every_device_has_those_of_each_configuration(topology: Topology, mode: DeviceMode, group_by: GroupBy) -> None:
    every = every_device(topology, ALL)
    assert all(every[device.name] == device for device in devices_of(topology, ALL, mode, group_by))
    individual = len(individual_devices(topology, ALL))
    assert len(every) == individual + sum(len(grouped_devices(topology, ALL, by)) for by in GroupBy)

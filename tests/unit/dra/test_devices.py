"""Promises of devices: names that keep their CPUs, the documented attributes, nothing that is reserved."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.devices import Device, DeviceMode, by_name, devices_of, grouped_devices, individual_devices
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Cpu, Topology
from tests.unit.topology.machines import box, hybrid, t1, t2

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


@pytest.mark.fault("K13")
@given(st.sampled_from([t1(), t1(offline=[3, 15]), t2(), box(), hybrid()]), st.sets(st.integers(0, 15)))
def test_devices_of_a_mode_part_what_is_allocatable(topology: Topology, cpus: set[int]) -> None:
    allocatable = CPUSet(cpus)
    for mode in DeviceMode:
        devices = devices_of(mode, topology, allocatable)
        assert len(by_name(devices)) == len(devices)
        assert sum(len(device.cpus) for device in devices) == len(allocatable & topology.online)
        assert all(device.cpus <= allocatable for device in devices)

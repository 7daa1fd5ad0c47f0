"""Promises of ResourceSlices: as many as the API's limits need, whole pools, documented objects; and of their check."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.devices import PCIE_ROOT, Device, DeviceMode, GroupBy, devices_of
from dra.slices.limits import check
from dra.slices.objects import generate_name, slices_of
from nri_cpu.config import is_node_name
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Topology
from tests.unit.topology.machines import box, machine, t2

NODE = "node-a"


def cpus(number: int, pcie: bool = False) -> tuple[Device, ...]:
    """That many devices, of one CPU each."""
    one = machine(cores=number)
    roots = {"pci0000:00": one.online} if pcie else {}
    topology = Topology.of(one.cpus.values(), pcie_roots=roots)
    return devices_of(topology, topology.online, DeviceMode.INDIVIDUAL, pcie_roots=pcie)


def names(slices: Any) -> list[list[str]]:
    return [[device["name"] for device in manifest["spec"]["devices"]] for manifest in slices]


@pytest.mark.fault("A28")
@pytest.mark.parametrize(
    ("devices", "pcie", "sizes"),
    [
        (1, False, [1]),
        (128, False, [128]),
        (129, False, [128, 1]),
        (300, False, [128, 128, 44]),
        (64, True, [64]),
        (65, True, [64, 1]),
        (129, True, [64, 64, 1]),
    ],
)
def test_devices_are_divided_over_as_many_slices_as_are_needed(devices: int, pcie: bool, sizes: list[int]) -> None:
    slices = slices_of(cpus(devices, pcie), NODE)
    assert list(map(len, names(slices))) == sizes
    assert {manifest["spec"]["pool"]["resourceSliceCount"] for manifest in slices} == {len(sizes)}
    assert [name for piece in names(slices) for name in piece] == [device.name for device in cpus(devices)]
    assert check(slices) == []


@pytest.mark.fault("R9")
def test_nothing_to_publish_is_no_slice() -> None:
    assert slices_of((), NODE) == ()
    assert check(()) == []


def test_a_grouped_slice_is_the_documented_object() -> None:
    topology = Topology.of(
        t2().cpus.values(), pcie_roots={"pci0000:00": CPUSet.parse("0-3"), "pci0000:80": t2().online}
    )
    devices = devices_of(topology, CPUSet.parse("0-3,8-11"), DeviceMode.GROUPED, pcie_roots=True)
    assert slices_of(devices, NODE, node_allocatable_mapping=True, generation=7) == (
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"generateName": "00000-dra.cpu-node-a-"},
            "spec": {
                "driver": "dra.cpu",
                "nodeName": NODE,
                "pool": {"name": NODE, "generation": 7, "resourceSliceCount": 1},
                "devices": [
                    {
                        "name": "cpudevnuma000",
                        "attributes": {
                            "dra.cpu/numCPUs": {"int": 8},
                            "dra.cpu/smtEnabled": {"bool": True},
                            "resource.kubernetes.io/numaNode": {"int": 0},
                            "dra.cpu/numaNodeID": {"int": 0},
                            "dra.net/numaNode": {"int": 0},
                            "dra.cpu/socketID": {"int": 0},
                            "resource.kubernetes.io/pcieRoot": {"strings": ["pci0000:00", "pci0000:80"]},
                        },
                        "capacity": {"dra.cpu/cpu": {"value": "8"}},
                        "allowMultipleAllocations": True,
                        "nodeAllocatableResources": {
                            "cpu": {"mapping": {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}}
                        },
                    }
                ],
            },
        },
    )


def test_an_individual_device_is_the_documented_object() -> None:
    (manifest,) = slices_of(devices_of(t2(), CPUSet([12]), DeviceMode.INDIVIDUAL), NODE)
    assert manifest["spec"]["devices"] == [
        {
            "name": "cpudev012",
            "attributes": {
                "dra.cpu/cpuID": {"int": 12},
                "dra.cpu/coreID": {"int": 0},
                "dra.cpu/coreType": {"string": "standard"},
                "dra.cpu/socketID": {"int": 1},
                "dra.cpu/smtEnabled": {"bool": True},
                "resource.kubernetes.io/numaNode": {"int": 1},
                "dra.cpu/numaNodeID": {"int": 1},
                "dra.net/numaNode": {"int": 1},
                "dra.cpu/cacheL3ID": {"int": 1},
            },
        }
    ]
    (mapped,) = slices_of(devices_of(t2(), CPUSet([12]), DeviceMode.INDIVIDUAL), NODE, node_allocatable_mapping=True)
    (device,) = mapped["spec"]["devices"]
    assert device["nodeAllocatableResources"] == {"cpu": {"mapping": {"deviceMultiplier": "1"}}}


def test_names_begin_with_the_index_and_fit() -> None:
    assert generate_name(NODE, 255, 256) == "000ff-dra.cpu-node-a-"
    assert generate_name(NODE, 5, 16**6) == "000005-dra.cpu-node-a-"
    long = generate_name("a" * 42 + ".b.example", 0, 1)
    assert long == "00000-dra.cpu-" + "a" * 42 + "-"
    assert len(long) <= 58


@pytest.mark.parametrize(
    "node",
    [
        "n",
        "a" * 63,
        "a" * 253,
        "1" * 64 + "." + "-".join("b" * 90),
        ".".join(["a" * 61] * 4),
        "x" * 40 + "." + "y" * 60,
        "a" * 42 + "--b",
    ],
)
def test_any_name_of_a_node_gives_slices_that_are_taken(node: str) -> None:
    assert check(slices_of(cpus(129), node)) == []
    assert is_node_name(node)


@pytest.mark.parametrize(
    "node", ["", "a" * 254, "a..b", "a.", ".a", "-a", "a-", "a-.b", "A", "a_b", "a\n", "\u0131", "a/b"]
)
def test_a_name_that_no_node_has_is_none_here_and_in_the_configuration(node: str) -> None:
    slices = copy.deepcopy(slices_of(cpus(1), NODE))
    slices[0]["spec"]["nodeName"] = node
    assert check(slices) == [f"slice 0: nodeName {node!r} is no DNS subdomain"]
    assert not is_node_name(node)


@pytest.mark.fault("A28", "A29", "K13")
@given(
    st.sampled_from([box(), t2(), machine(cores=200), machine(sockets=8, cores=16, threads=2, nodes=2)]),
    st.sampled_from(DeviceMode),
    st.sampled_from(GroupBy),
    st.integers(0, 80),
    st.booleans(),
    st.integers(0, 100),
)
def test_slices_of_any_configuration_keep_the_limits(
    topology: Topology, mode: DeviceMode, group_by: GroupBy, roots: int, mapping: bool, reserved: int
) -> None:
    names_ = [f"pci{n:04x}:00" for n in range(roots)]
    topology = Topology.of(topology.cpus.values(), pcie_roots=dict.fromkeys(names_, topology.online))
    allocatable = topology.online - CPUSet(range(reserved))
    devices = devices_of(topology, allocatable, mode, group_by, pcie_roots=roots > 0)
    slices = slices_of(devices, NODE, mapping)
    assert check(slices) == []
    assert bool(slices) == bool(allocatable)
    assert sum(map(len, names(slices))) == len(devices)
    ours = {name for device in devices for name in device.attributes if name.startswith("resource.kubernetes.io/")}
    assert ours <= {"resource.kubernetes.io/numaNode", PCIE_ROOT}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda one, _: one.update(kind="ResourceClaim"), "slice 0: is a ResourceClaim of resource.k8s.io/v1"),
        (lambda one, _: one["metadata"].update(generateName="x-"), "slice 0: generateName 'x-' is no index"),
        (lambda one, _: one["spec"].update(driver="Dra"), "slice 0: driver 'Dra' is no DNS subdomain"),
        (lambda one, _: one["spec"]["pool"].update(name="a//b"), "slice 0: pool 'a//b' is no name"),
        (lambda one, _: one["spec"].update(nodeName="a" * 254), "is no DNS subdomain"),
        (lambda one, _: one["spec"]["pool"].update(resourceSliceCount=3), "resourceSliceCount is 3, the pool has 2"),
        (lambda one, _: one["spec"]["pool"].update(generation=9), "differ in pool.generation: [1, 9]"),
        (lambda one, _: one["spec"]["pool"].update(generation=-1), "slice 0: generation -1 is negative"),
        (lambda one, _: one["metadata"].update(generateName="00001-dra.cpu-n-"), "index 00001 is that of 2 slices"),
        (lambda one, _: one["spec"]["devices"].append(one["spec"]["devices"][0]), "slice 0: 129 devices, 128 at most"),
        (lambda one, _: one["spec"]["devices"].append(one["spec"]["devices"][0]), "device cpudev000 is there 2 times"),
        (
            lambda _, device: device["attributes"].update(x={"strings": ["y"]}),
            "128 devices, 64 at most where there are list attributes",
        ),
        (lambda _, device: device.update(name="CPU"), "slice 0: device CPU: the name is no DNS label"),
        (lambda _, device: device.update(taints=[]), "device cpudev000: has fields that are not checked here: taints"),
        (
            lambda _, device: device["attributes"].update({f"a{n}": {"int": n} for n in range(24)}),
            "33 attributes and capacities, 32 at most",
        ),
        (lambda _, device: device["attributes"].update(x={"ints": [1] * 40}), "49 values of attributes, 48 at most"),
        (lambda _, device: device["attributes"].update({"a/": {"int": 1}}), "a/ is no qualified name"),
        (lambda _, device: device["attributes"].update({"a" * 33: {"int": 1}}), "is no qualified name"),
        (lambda _, device: device["attributes"].update({"a" * 64 + "/b": {"int": 1}}), "is no qualified name"),
        (lambda _, device: device["attributes"].update(x={"int": 1, "bool": True}), "x: has the values int, bool"),
        (lambda _, device: device["attributes"].update(x={}), "x: has the values none"),
        (lambda _, device: device["attributes"].update(x={"list": [1]}), "x: has the values list"),
        (lambda _, device: device["attributes"].update(x={"strings": []}), "x: strings is empty"),
        (lambda _, device: device["attributes"].update(x={"int": True}), "x: True is no value for int"),
        (lambda _, device: device["attributes"].update(x={"int": 2**63}), "is no 64-bit number"),
        (lambda _, device: device["attributes"].update(x={"string": "y" * 65}), "has 65 bytes, 64 at most"),
        (lambda _, device: device.update(capacity={"x": {"value": "0"}}), "x: '0' is no positive whole quantity"),
        (
            lambda _, device: device.update(nodeAllocatableResources={"cpu": {"mapping": {}}}),
            "the mapping to cpu is neither by device nor by capacity",
        ),
        (
            lambda _, device: device.update(
                nodeAllocatableResources={"cpu": {"mapping": {"capacityKey": "x", "capacityMultiplier": "1"}}}
            ),
            "the mapping to cpu names the capacity x, which it does not have",
        ),
        (lambda one, _: one.update(data="x" * (1 << 20)), "bytes, 1048576 at most"),
    ],
)
def test_what_the_api_would_refuse_is_told(change: Any, told: str) -> None:
    slices = copy.deepcopy(slices_of(cpus(129), NODE))
    change(slices[0], slices[0]["spec"]["devices"][0])
    assert any(told in problem for problem in check(slices)), check(slices)

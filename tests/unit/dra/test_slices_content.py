"""Promises of what a slice says, whatever it looks like, and of what the server dropped of it."""

import copy
import functools
from typing import Any

import pytest

from dra.devices import PCIE_ROOT, Device, DeviceMode, GroupBy, devices_of
from dra.slices.content import content
from dra.slices.diff import Owner, plan
from dra.slices.dropped import dropped
from dra.slices.objects import Manifest, slices_of
from tests.unit.topology.machines import box

NODE = "node-a"
OWNER = Owner(NODE, "node-uid-1")


@functools.cache
def grouped() -> tuple[Device, ...]:
    topology = box()
    return devices_of(topology, topology.online, DeviceMode.GROUPED, GroupBy.NUMANODE)


def _spec(**changes: Any) -> Manifest:
    (manifest,) = slices_of(grouped()[:1], NODE, node_allocatable_mapping=True)
    spec = copy.deepcopy(manifest["spec"])
    spec["devices"][0].update(changes)
    return dict(spec)


CPU = "dra.cpu/cpu"


@pytest.mark.parametrize("value", ["8", "8000m", "8.0", "0.008k", "8e0", "80e-1", "+8", 8])
def test_quantities_of_one_value_are_one(value: object) -> None:
    same, other = _spec(capacity={CPU: {"value": "8"}}), _spec(capacity={CPU: {"value": "9"}})
    assert content(_spec(capacity={CPU: {"value": value}})) == content(same) != content(other)


@pytest.mark.parametrize("value", ["", "eight", None, True, [], {}, "8Qi", "1" * 100])
def test_what_is_no_quantity_is_none_of_ours(value: object) -> None:
    assert content(_spec(capacity={CPU: {"value": value}})) != content(_spec(capacity={CPU: {"value": "8"}}))


@pytest.mark.parametrize(
    ("same", "change"),
    [
        (True, {"nodeAllocatableResources": {"cpu": {"mapping": {"capacityKey": CPU, "capacityMultiplier": "1000m"}}}}),
        (False, {"nodeAllocatableResources": {"cpu": {"mapping": {"capacityKey": CPU, "capacityMultiplier": "2"}}}}),
        (False, {"nodeAllocatableResources": {"cpu": {"mapping": None}}}),
        (False, {"nodeAllocatableResources": None}),
        (True, {"taints": None, "bindingConditions": [], "bindsToNode": False, "consumesCounters": []}),
        (False, {"taints": [{"key": "k", "effect": "NoSchedule"}]}),
        (False, {"allowMultipleAllocations": False}),
        (False, {"allowMultipleAllocations": 1}),
        (False, {"attributes": None}),
        (False, {"attributes": []}),
        (False, {"capacity": {CPU: None}}),
        (False, {"name": None}),
    ],
)
def test_what_means_the_same_is_the_same(same: bool, change: dict[str, Any]) -> None:
    assert (content(_spec(**change)) == content(_spec())) is same


def test_false_is_a_value_of_an_attribute_and_types_count() -> None:
    said = [
        {"bool": False},
        {"bool": True},
        {"int": 1},
        {"int": True},
        {"int": 1.0},
        {"string": ""},
        {"string": "1"},
        {},
    ]
    assert len({content(_spec(attributes={"a": value})) for value in said}) == len(said)
    assert content(_spec(attributes={"a": {"int": 1, "bool": None}})) == content(_spec(attributes={"a": {"int": 1}}))


def test_generation_and_count_are_no_content_and_the_rest_of_the_spec_is() -> None:
    spec = _spec()
    assert content({**spec, "pool": None}) == content(spec)
    assert content({**spec, "allNodes": False, "sharedCounters": []}) == content(spec)
    assert content({**spec, "allNodes": True}) != content(spec)
    assert content({**spec, "devices": None}) == content({**spec, "devices": []}) != content(spec)


def test_what_is_nested_too_deeply_is_replaced_and_no_crash() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    (wanted,) = slices_of(grouped(), NODE)
    found = copy.deepcopy(wanted)
    found["metadata"] = {"name": "00000-x", "uid": "u", "resourceVersion": "1", "ownerReferences": [OWNER.reference]}
    assert not plan([found], [wanted], OWNER)
    found["spec"]["devices"] = deep
    assert content(found["spec"]) != content(wanted["spec"])
    assert len(plan([found], [wanted], OWNER).update) == 1


def answered(asked: Manifest, change: Any) -> list[str]:
    answer = copy.deepcopy(asked)
    change(answer["spec"])
    return dropped([(asked, answer)])


def _of_devices(change: Any) -> Any:
    return lambda spec: [change(device) for device in spec["devices"]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_of_devices(lambda device: None), []),
        (
            _of_devices(lambda device: device.pop("allowMultipleAllocations")),
            ["allowMultipleAllocations of 4 devices: the feature gate DRAConsumableCapacity is likely off"],
        ),
        (
            _of_devices(lambda device: device.update(nodeAllocatableResources={})),
            ["nodeAllocatableResources of 4 devices: the feature gate DRANodeAllocatableResources is likely off"],
        ),
        (
            _of_devices(lambda device: device["attributes"].pop(PCIE_ROOT)),
            [f"attributes {PCIE_ROOT} of 4 devices: the feature gate DRAListTypeAttributes is likely off"],
        ),
        (
            _of_devices(lambda device: device["attributes"][PCIE_ROOT].pop("strings")),
            [f"attributes {PCIE_ROOT} of 4 devices: the feature gate DRAListTypeAttributes is likely off"],
        ),
        (_of_devices(lambda device: device["attributes"].update({"dra.cpu/smtEnabled": {"bool": False}})), []),
        (_of_devices(lambda device: device.update(bindsToNode=True)), []),
        (lambda spec: spec["devices"][1].update(capacity=None), ["capacity of 1 device"]),
        (lambda spec: spec["devices"][1].update(capacity={}), ["capacity of 1 device"]),
        (
            lambda spec: spec["devices"][1]["attributes"].pop("dra.cpu/numCPUs"),
            ["attributes dra.cpu/numCPUs of 1 device"],
        ),
        (lambda spec: spec["devices"].pop(), ["all of 1 device"]),
        (lambda spec: spec.update(devices=None), ["all of 4 devices"]),
        (lambda spec: spec.update(devices=[None, 3, {}, {"name": []}]), ["all of 4 devices"]),
    ],
)
def test_what_the_server_dropped_is_named_with_the_feature_gate(change: Any, told: list[str]) -> None:
    (asked,) = slices_of(grouped(), NODE, node_allocatable_mapping=True)
    for device in asked["spec"]["devices"]:
        device["attributes"][PCIE_ROOT] = {"strings": ["pci0000:00"]}
    assert answered(asked, change) == told


def test_what_several_slices_lack_is_told_in_one_line() -> None:
    (asked,) = slices_of(grouped(), NODE)
    answer = copy.deepcopy(asked)
    answer["spec"]["devices"][0].pop("capacity")
    assert dropped([(asked, answer), (asked, answer), (asked, asked)]) == ["capacity of 2 devices"]
    assert dropped([]) == []

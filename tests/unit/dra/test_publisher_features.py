"""Promises of the publisher where server or node take less than is wanted."""

from collections.abc import Iterator

import pytest

from dra.devices import Device
from dra.slices.api import NodeInfo
from tests.unit.dra.publisher_scene import HOUR, Scene, cpus, grouped, made

FEATURE = "DRANodeAllocatableResources"


@pytest.fixture
def scene() -> Iterator[Scene]:
    with made() as scene:
        yield scene


def test_what_the_server_drops_is_told_and_not_asked_for_again_and_again(scene: Scene) -> None:
    scene.server.off = {"DRAConsumableCapacity"}
    scene.publisher.want(grouped())
    scene.run(24 * HOUR)
    assert scene.state[0]
    assert scene.state[1] == (
        f"the API server dropped allowMultipleAllocations of {len(grouped())} devices: "
        "the feature gate DRAConsumableCapacity is likely off"
    )
    count = scene.server.count(since=1)
    assert count["create"] == 0
    assert count["update"] <= 24
    assert scene.pools[0][0] == 1
    assert len([line for line in scene.log if "dropped" in line]) == 1


def test_what_was_dropped_is_published_after_the_kubelet_registers_anew(scene: Scene) -> None:
    scene.server.off = {"DRAConsumableCapacity"}
    scene.publisher.want(grouped())
    scene.time.at(100, scene.server.off.clear)
    scene.time.at(200, scene.publisher.poke)
    scene.run(300)
    assert scene.state == (True, None)
    assert all(device["allowMultipleAllocations"] for spec in scene.server.specs for device in spec["devices"])


def test_harm_to_slices_with_dropped_fields_is_repaired_too(scene: Scene) -> None:
    scene.server.off = {"DRAConsumableCapacity"}
    scene.publisher.want(grouped())
    scene.time.at(100, lambda: scene.server.change(scene.first(), lambda it: it["spec"]["devices"].pop()))
    scene.time.at(200, scene.server.remove)
    scene.run(300, look=(103,))
    assert scene.seen[103][0]
    assert scene.pools == [(1, 1, len(grouped()))]


def test_the_mapping_is_published_where_the_node_declares_it(scene: Scene) -> None:
    scene.server.node_info = NodeInfo("uid", frozenset({FEATURE}))
    scene.publisher.want(grouped(), node_allocatable_mapping=True)
    scene.run(HOUR)
    assert scene.state == (True, None)
    assert all("nodeAllocatableResources" in device for spec in scene.server.specs for device in spec["devices"])


def test_the_mapping_is_left_out_and_told_once_where_the_node_does_not_declare_it(scene: Scene) -> None:
    scene.publisher.want(grouped(), node_allocatable_mapping=True)
    scene.time.at(HOUR, lambda: setattr(scene.server, "node_info", NodeInfo("node-uid-1", frozenset({FEATURE}))))
    scene.run(HOUR - 1)
    assert scene.state == (True, None)
    assert not any("nodeAllocatableResources" in device for spec in scene.server.specs for device in spec["devices"])
    assert len([line for line in scene.log if "does not declare" in line]) == 1
    assert scene.server.count(since=1).keys() == {"node", "list", "watch"}


def test_the_mapping_comes_when_the_node_declares_it_later(scene: Scene) -> None:
    scene.publisher.want(grouped(), node_allocatable_mapping=True)
    scene.time.at(100, lambda: setattr(scene.server, "node_info", NodeInfo("node-uid-1", frozenset({FEATURE}))))
    scene.run(1000)
    assert all("nodeAllocatableResources" in device for spec in scene.server.specs for device in spec["devices"])


def test_without_mapping_where_the_server_refuses_it(scene: Scene) -> None:
    scene.server.node_info = NodeInfo("uid", frozenset({FEATURE}))
    scene.server.admits_mapping = False
    scene.publisher.want(grouped(), node_allocatable_mapping=True)
    scene.run(24 * HOUR)
    assert scene.state == (True, None)
    assert len([line for line in scene.log if "has no effect" in line]) == 1
    assert scene.server.count(since=1)["update"] <= 24


@pytest.mark.fault("K13")
def test_what_the_server_would_refuse_is_not_sent_and_told(scene: Scene) -> None:
    scene.publisher.want((*cpus(2), *cpus(2)))
    scene.time.at(HOUR, lambda: scene.publisher.want(cpus(2)))
    scene.run(2 * HOUR, look=(100,))
    is_published, problem = scene.seen[100]
    assert not is_published
    assert problem
    assert "device cpudev000 is there 2 times" in problem
    assert scene.server.count() == {"node": 1, "list": 1, "create": 1, "watch": 4}
    assert scene.state == (True, None)


def test_list_attributes_that_the_server_has_not_are_refused_with_its_words(scene: Scene) -> None:
    scene.server.off = {"DRAListTypeAttributes"}
    (device,) = cpus(1)
    attributes = {**device.attributes, "resource.kubernetes.io/pcieRoot": ("pci0000:00",)}
    scene.publisher.want([Device(device.name, device.cpus, attributes, {}, False)])
    scene.run(HOUR)
    assert scene.publisher.problem
    assert "exposePCIeRoots takes the feature gate DRAListTypeAttributes: 422 attributes" in scene.publisher.problem
    assert scene.server.count()["create"] <= 75

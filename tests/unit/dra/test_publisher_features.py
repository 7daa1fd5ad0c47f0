"""Promises of the publisher where server or node take less than is wanted."""

from collections.abc import Iterator

import pytest

from dra.devices import PCIE_ROOT, Device
from dra.slices.api import ForbiddenError, InvalidError, NodeInfo
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


def listed(number: int) -> tuple[Device, ...]:
    """With a list attribute each."""
    return tuple(
        Device(each.name, each.cpus, {**each.attributes, PCIE_ROOT: ("pci0000:00",)}, {}, False)
        for each in cpus(number)
    )


def lists(scene: Scene) -> int:
    return sum(PCIE_ROOT in device["attributes"] for spec in scene.server.specs for device in spec["devices"])


REFUSED = (
    f"the API server refused list attribute {PCIE_ROOT} of 130 devices: "
    "the feature gate DRAListTypeAttributes is likely off"
)


def test_without_list_attributes_where_the_server_refuses_them(scene: Scene) -> None:
    scene.server.off = {"DRAListTypeAttributes"}
    scene.publisher.want(listed(130))
    scene.run(24 * HOUR, look=(1.0,))
    assert scene.seen == {1.0: (True, REFUSED)}
    assert scene.state == (True, REFUSED)
    assert scene.pools == [(1, 2, 128), (1, 2, 2)]
    assert lists(scene) == 0
    assert len([line for line in scene.log if "refused" in line]) == 1
    count = scene.server.count(since=1)
    assert count["create"] == 0
    assert 20 <= count["update"] <= 24, "asked for once an hour"
    assert count["list"] <= 24 * 6


def test_list_attributes_come_after_the_kubelet_registers_anew(scene: Scene) -> None:
    scene.server.off = {"DRAListTypeAttributes"}
    scene.publisher.want(listed(130))
    scene.time.at(100, scene.server.off.clear)
    scene.time.at(200, scene.publisher.poke)
    scene.run(300, look=(199,))
    assert scene.seen == {199: (True, REFUSED)}
    assert scene.state == (True, None)
    assert lists(scene) == 130
    assert scene.pools == [(2, 3, 64), (2, 3, 64), (2, 3, 2)]


def test_list_attributes_come_by_themselves_within_two_hours(scene: Scene) -> None:
    scene.server.off = {"DRAListTypeAttributes"}
    scene.publisher.want(listed(130))
    scene.time.at(100, scene.server.off.clear)
    scene.run(2 * HOUR)
    assert scene.state == (True, None)
    assert lists(scene) == 130


def test_a_refusal_that_is_not_for_the_list_attributes_is_told_as_it_is(scene: Scene) -> None:
    scene.fail(InvalidError("422 other words"), "create")
    scene.publisher.want(listed(3))
    scene.time.at(1000, scene.heal)
    scene.run(1100, look=(999,))
    assert scene.seen == {999: (False, "ResourceSlices are not published: 422 other words")}
    assert scene.server.count()["create"] <= 2 * 25
    assert scene.state == (True, None)
    assert lists(scene) == 3, "they were not what was wrong"


def test_list_attributes_and_mapping_may_both_be_refused(scene: Scene) -> None:
    scene.server.node_info = NodeInfo("uid", frozenset({FEATURE}))
    scene.server.off = {"DRAListTypeAttributes"}
    scene.server.admits_mapping = False
    scene.publisher.want(listed(130), node_allocatable_mapping=True)
    scene.run(HOUR)
    assert scene.state == (True, REFUSED)
    assert scene.pools == [(1, 2, 128), (1, 2, 2)]


def test_a_write_that_is_forbidden_for_another_reason_is_not_taken_for_a_missing_mapping(scene: Scene) -> None:
    scene.server.node_info = NodeInfo("uid", frozenset({FEATURE}))
    scene.fail(ForbiddenError("403 no relationship"), "create")
    scene.publisher.want(grouped(), node_allocatable_mapping=True)
    scene.time.at(100, scene.heal)
    scene.run(200)
    assert scene.state == (True, None)
    assert all("nodeAllocatableResources" in device for spec in scene.server.specs for device in spec["devices"])


def test_the_mapping_comes_after_the_kubelet_registers_anew_where_the_server_refused_it(scene: Scene) -> None:
    scene.server.node_info = NodeInfo("uid", frozenset({FEATURE}))
    scene.server.admits_mapping = False
    scene.publisher.want(grouped(), node_allocatable_mapping=True)
    scene.time.at(100, lambda: setattr(scene.server, "admits_mapping", True))
    scene.time.at(200, scene.publisher.poke)
    scene.run(300)
    assert all("nodeAllocatableResources" in device for spec in scene.server.specs for device in spec["devices"])


def test_what_was_dropped_of_slices_that_are_no_more_is_forgotten(scene: Scene) -> None:
    scene.server.off = {"DRAConsumableCapacity"}
    scene.publisher.want(grouped())
    scene.time.at(100, lambda: scene.publisher.want(cpus(4)))
    scene.run(200, look=(99,))
    assert "allowMultipleAllocations" in str(scene.seen[99][1])
    assert scene.state == (True, None)

"""Promises of the publisher, over hours of virtual time: what is wanted is there, and the server has its peace."""

import functools
from collections.abc import Callable, Iterator

import pytest
from loguru import logger

from dra.devices import Device, DeviceMode, GroupBy, devices_of
from dra.slices.api import (
    ApiError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NodeInfo,
    NotFoundError,
)
from dra.slices.objects import Manifest, slices_of
from dra.slices.publisher import Publisher
from tests.unit.dra.slice_server import SliceServer
from tests.unit.dra.virtual_time import VirtualTime
from tests.unit.topology.machines import box, machine

NODE = "node-a"
HOUR = 3600.0
FEATURE = "DRANodeAllocatableResources"


@functools.cache
def cpus(number: int, pcie: bool = False) -> tuple[Device, ...]:
    topology = machine(cores=number)
    return devices_of(topology, topology.online, DeviceMode.INDIVIDUAL, pcie_roots=pcie)


def grouped() -> tuple[Device, ...]:
    topology = box()
    return devices_of(topology, topology.online, DeviceMode.GROUPED, GroupBy.NUMANODE)


class Scene:
    """A publisher and a server in one time; `run` lets it pass and ends with the publisher's end."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.server = SliceServer(self.time)
        self.publisher = Publisher(self.server, NODE, self.time)
        self.log: list[str] = []
        self.seen: dict[float, tuple[bool, str | None]] = {}

    def run(self, until: float, look: tuple[float, ...] = ()) -> None:
        """`look`: moments at which `published` and `problem` are seen."""
        for moment in look:
            self.time.at(moment, lambda moment=moment: self.seen.update({moment: self.state}))  # type: ignore[misc]
        self.time.at(until, self.publisher.stop)
        self.publisher.run()

    @property
    def state(self) -> tuple[bool, str | None]:
        return self.publisher.published, self.publisher.problem

    def fail(self, error: ApiError, *verbs: str) -> None:
        """Each request of these verbs, of all where none is named."""

        def fault(verb: str, manifest: Manifest | None) -> None:
            if not verbs or verb in verbs:
                raise error

        self.server.fault = fault

    def heal(self) -> None:
        self.server.fault = lambda verb, manifest: None

    @property
    def pools(self) -> list[tuple[int, int, int]]:
        """Generation, count and devices of each slice."""
        return [
            (spec["pool"]["generation"], spec["pool"]["resourceSliceCount"], len(spec["devices"]))
            for spec in self.server.specs
        ]

    def first(self) -> str:
        return min(self.server.objects)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    sink = logger.add(lambda message: scene.log.append(message.record["message"]), level="INFO")
    yield scene
    logger.remove(sink)


def test_nothing_is_asked_before_something_is_wanted(scene: Scene) -> None:
    scene.time.at(5, scene.publisher.poke)
    scene.run(HOUR, look=(10,))
    assert scene.server.calls == []
    assert scene.seen == {10: (False, None)}


def test_what_is_wanted_is_published_at_once(scene: Scene) -> None:
    scene.time.at(5, lambda: scene.publisher.want(cpus(130)))
    scene.run(5.5)
    assert scene.pools == [(1, 2, 128), (1, 2, 2)]
    assert scene.state == (True, None)
    assert [verb for when, verb in scene.server.calls if when == 5] == ["node", "list", "create", "create", "watch"]
    for object_ in scene.server.objects.values():
        assert object_["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid-1", "controller": True}
        ]


def test_at_rest_only_watches_are_renewed(scene: Scene) -> None:
    scene.publisher.want(cpus(130))
    scene.run(10 * HOUR)
    assert scene.server.count(since=1) == {"watch": 39}
    assert len(scene.log) == 1


def test_what_was_there_before_is_left_as_it_is(scene: Scene) -> None:
    scene.publisher.want(cpus(130))
    scene.run(10)
    before = scene.server.objects.copy()
    scene.publisher = Publisher(scene.server, NODE, scene.time)
    scene.publisher.want(cpus(130))
    scene.run(HOUR)
    assert scene.server.objects == before
    assert "create" not in scene.server.count(since=5)


def test_the_same_wanted_again_costs_nothing(scene: Scene) -> None:
    for second in range(100):
        scene.time.at(second, lambda: scene.publisher.want(cpus(4)))
    scene.run(200)
    assert scene.server.count() == {"node": 1, "list": 1, "create": 1, "watch": 1}


def test_many_changes_are_published_once_a_second_at_the_most(scene: Scene) -> None:
    for step in range(1000):
        scene.time.at(step / 100, lambda step=step: scene.publisher.want(cpus(1 + step % 7)))  # type: ignore[misc]
    scene.run(20)
    assert scene.server.count()["list"] <= 12
    assert scene.pools == [(1, 1, 1 + 999 % 7)]
    assert scene.publisher.published


def test_published_is_what_is_wanted_now(scene: Scene) -> None:
    scene.publisher.want(cpus(4))
    scene.time.at(100, lambda: scene.fail(ApiError("down")))
    scene.time.at(101, lambda: scene.publisher.want(cpus(5)))
    scene.time.at(102, scene.heal)
    scene.run(200, look=(99, 101.5, 110))
    assert scene.seen[99] == (True, None)
    assert scene.seen[101.5] == (False, "ResourceSlices are not published: down")
    assert scene.seen[110] == (True, None)


@pytest.mark.fault("R9")
def test_nothing_to_publish_leaves_no_slice_even_without_a_node(scene: Scene) -> None:
    scene.publisher.want(cpus(130))
    scene.time.at(10, lambda: setattr(scene.server, "node_info", None))
    scene.time.at(11, lambda: scene.publisher.want(()))
    scene.run(HOUR)
    assert scene.server.objects == {}
    assert scene.state == (True, None)


@pytest.mark.fault("R9")
def test_what_others_put_into_an_empty_pool_goes(scene: Scene) -> None:
    scene.publisher.want(())
    (manifest,) = slices_of(cpus(3), NODE)
    scene.time.at(100, lambda: scene.server.put(manifest))
    scene.run(102)
    assert scene.server.objects == {}


@pytest.mark.parametrize(
    "harm",
    [
        lambda scene: scene.server.remove(scene.first()),
        lambda scene: scene.server.remove(),
        lambda scene: scene.server.change(scene.first(), lambda it: it["spec"]["devices"].pop()),
        lambda scene: scene.server.change(scene.first(), lambda it: it["spec"]["pool"].update(generation=9)),
        lambda scene: scene.server.change(scene.first(), lambda it: it["metadata"].pop("ownerReferences")),
        lambda scene: scene.server.change(scene.first(), lambda it: it.pop("spec")),
        lambda scene: scene.server.change(scene.first(), lambda it: it.update(spec=[])),
        lambda scene: scene.server.change(scene.first(), lambda it: it["spec"].update(devices=None)),
        lambda scene: scene.server.change(scene.first(), lambda it: it["spec"].update(devices=[None, 3, {"name": []}])),
        lambda scene: scene.server.put(slices_of(cpus(1), NODE)[0]),
    ],
)
def test_what_others_do_is_undone_within_two_seconds(scene: Scene, harm: Callable[[Scene], object]) -> None:
    scene.publisher.want(cpus(130))
    for moment in (1000, 2000, 3000):
        scene.time.at(moment, lambda: harm(scene))
    scene.run(HOUR, look=(1000.5, 1002, 2000.5, 2002, 3000.5, 3002))
    assert [is_published for is_published, _ in scene.seen.values()] == [False, True] * 3
    (pool,) = {(generation, count) for generation, count, _ in scene.pools}
    assert pool[1] == 2
    assert [devices for _, _, devices in scene.pools] == [128, 2]
    assert scene.server.count(since=1)["list"] == 3


def test_what_does_not_matter_is_no_reason_to_ask(scene: Scene) -> None:
    scene.publisher.want(cpus(130))
    other = slices_of(cpus(1), "node-b")[0]
    scene.time.every(
        60,
        lambda: scene.server.change(scene.first(), lambda it: it["metadata"].update(labels={"at": scene.time.now()})),
    )
    scene.time.every(60, lambda: scene.server.put(other))
    scene.run(HOUR)
    assert scene.server.count(since=1).keys() == {"watch"}


@pytest.mark.fault("K7")
def test_slices_that_the_kubelet_deletes_at_its_start_come_back(scene: Scene) -> None:
    """It may do so before or after it registers the driver."""
    scene.publisher.want(cpus(130))
    for start in range(1000, 10_000, 1000):
        scene.time.at(start, scene.server.remove)
        scene.time.at(start + 0.2, scene.publisher.poke)
        scene.time.at(start + 3, scene.publisher.poke)
        scene.time.at(start + 3.5, scene.server.remove)
    looks = tuple(start + after for start in range(1000, 10_000, 1000) for after in (1.2, 5.5))
    scene.run(3 * HOUR, look=looks)
    assert set(scene.seen.values()) == {(True, None)}


def test_a_kubelet_that_starts_again_and_again_costs_a_few_requests_each_time(scene: Scene) -> None:
    scene.publisher.want(cpus(4))
    for start in range(10, 3600, 10):
        scene.time.at(start, scene.server.remove)
        scene.time.at(start + 0.2, scene.publisher.poke)
    scene.run(HOUR)
    assert sum(scene.server.count().values()) <= 360 * 5


def test_who_fights_for_the_slices_is_met_with_patience(scene: Scene) -> None:
    """Somebody who undoes at once whatever is written."""
    scene.publisher.want(cpus(130))
    ours = scene.server._called

    def called(verb: str, manifest: Manifest | None = None) -> None:
        ours(verb, manifest)
        if verb in ("create", "update"):
            scene.time.at(scene.time.now() + 0.1, scene.server.remove)

    scene.server._called = called  # type: ignore[method-assign]
    scene.run(HOUR)
    assert scene.server.count(since=0)["list"] <= 25
    assert scene.server.count(since=1800)["list"] <= 8
    assert not scene.publisher.published


def test_after_a_fight_the_next_harm_is_repaired_at_once(scene: Scene) -> None:
    scene.publisher.want(cpus(4))
    for moment in range(100, 400, 2):
        scene.time.at(moment, scene.server.remove if moment % 4 else scene.server.end_watches)
    scene.time.at(2000, scene.server.remove)
    scene.run(HOUR, look=(1999, 2002))
    assert set(scene.seen.values()) == {(True, None)}


@pytest.mark.parametrize("error", [ApiError("connection refused"), ForbiddenError("403"), InvalidError("422")])
def test_an_hour_without_api_server_is_an_attempt_a_minute_and_one_line(scene: Scene, error: ApiError) -> None:
    scene.fail(error)
    scene.publisher.want(cpus(4))
    scene.time.at(HOUR, scene.heal)
    scene.run(2 * HOUR, look=(HOUR - 1, HOUR + 61))
    assert 60 <= len([when for when, _ in scene.server.calls if when < HOUR]) <= 70
    assert scene.seen[HOUR - 1] == (False, f"ResourceSlices are not published: {error}")
    assert scene.seen[HOUR + 61] == (True, None)
    assert [line for line in scene.log if str(error) in line] == [
        f"ResourceSlices are not published: {error}",
        f"no more: ResourceSlices are not published: {error}",
    ]


def test_an_api_server_that_goes_away_later_leaves_what_is_published_published(scene: Scene) -> None:
    scene.publisher.want(cpus(4))

    def down() -> None:
        scene.fail(ApiError("refused"))
        scene.server.end_watches()

    scene.time.at(1000, down)
    scene.time.at(1000 + HOUR, scene.heal)
    scene.run(3 * HOUR, look=(2000, 1000 + HOUR + 121))
    assert scene.seen[2000] == (
        True,
        "changes of ResourceSlices are not seen: refused; ResourceSlices are not published: refused",
    )
    assert scene.seen[1000 + HOUR + 121] == (True, None)
    assert len(scene.server.calls) < 90


@pytest.mark.parametrize("verb", ["create", "update", "delete"])
@pytest.mark.parametrize("error", [ConflictError("409"), ForbiddenError("403 no relationship"), InvalidError("422")])
def test_writes_that_are_refused_each_time_make_no_hot_loop(scene: Scene, verb: str, error: ApiError) -> None:
    scene.publisher.want(cpus(130))
    scene.time.at(10, lambda: scene.fail(error, verb))
    scene.time.at(11, lambda: scene.server.change(scene.first(), lambda it: it["spec"].update(devices=[])))
    scene.time.at(11, lambda: scene.server.put(slices_of(cpus(1), NODE)[0]))
    scene.time.at(12, lambda: scene.publisher.want(cpus(260)))
    scene.time.at(13 + HOUR, scene.heal)
    scene.run(2 * HOUR, look=(HOUR, HOUR + 90))
    assert scene.server.count(since=12)["list"] <= 75
    assert scene.seen[HOUR] == (False, f"ResourceSlices are not published: {error}")
    assert scene.seen[HOUR + 90] == (True, None)
    assert [(count, devices) for _, count, devices in scene.pools] == [(3, 128), (3, 128), (3, 4)]


def test_a_conflict_now_and_then_is_done_again_within_a_second(scene: Scene) -> None:
    scene.publisher.want(cpus(4))

    def meanwhile(verb: str, manifest: Manifest | None) -> None:
        if verb == "update":
            scene.heal()
            scene.server.change(scene.first(), lambda it: it["metadata"].update(labels={}))

    scene.time.at(10, lambda: setattr(scene.server, "fault", meanwhile))
    scene.time.at(11, lambda: scene.publisher.want(cpus(5)))
    scene.run(13)
    assert scene.pools == [(1, 1, 5)]
    assert scene.server.count()["update"] == 2


def test_a_server_that_asks_to_wait_is_left_alone_so_long(scene: Scene) -> None:
    scene.fail(ApiError("429", retry_after=20.0))
    scene.publisher.want(cpus(4))
    scene.run(100)
    assert [when for when, _ in scene.server.calls] == [0, 20, 40, 60, 80]


def test_without_node_object_nothing_is_published_until_it_comes(scene: Scene) -> None:
    scene.server.node_info = None
    scene.publisher.want(cpus(4))
    scene.time.at(HOUR, lambda: setattr(scene.server, "node_info", NodeInfo("late")))
    scene.run(2 * HOUR, look=(HOUR - 1,))
    assert scene.seen[HOUR - 1] == (False, "ResourceSlices are not published: GET node: 404")
    assert scene.server.count()["node"] <= 75
    assert scene.pools == [(1, 1, 4)]


def test_a_node_that_comes_back_with_another_uid_owns_the_slices(scene: Scene) -> None:
    """The garbage collector deletes those of the one that went, sooner or later."""
    scene.publisher.want(cpus(130))
    scene.time.at(1000, lambda: setattr(scene.server, "node_info", None))
    scene.time.at(1010, lambda: setattr(scene.server, "node_info", NodeInfo("second")))
    scene.time.at(1020, scene.server.remove)
    scene.time.at(2000, lambda: setattr(scene.server, "node_info", NodeInfo("third")))
    scene.time.at(2005, scene.publisher.poke)
    scene.run(HOUR, look=(1022, 2006))
    assert set(scene.seen.values()) == {(True, None)}
    owners = [made["metadata"]["ownerReferences"][0]["uid"] for made in scene.server.objects.values()]
    assert owners == ["third", "third"]


def test_slices_that_go_with_their_node_are_not_published(scene: Scene) -> None:
    scene.publisher.want(cpus(4))
    scene.time.at(1000, lambda: setattr(scene.server, "node_info", None))
    scene.time.at(1001, scene.server.remove)
    scene.run(1100)
    assert not scene.publisher.published


def test_a_watch_that_can_not_go_on_lists_again(scene: Scene) -> None:
    scene.publisher.want(cpus(4))

    def expire() -> None:
        scene.server.fault = lambda verb, manifest: scene.server.compact() if verb == "watch" else None
        scene.server.remove()
        scene.server.end_watches(ExpiredError("410"))
        scene.time.at(scene.time.now() + 1, scene.heal)

    scene.time.at(1000, expire)
    scene.run(HOUR, look=(1002.5,))
    assert scene.seen == {1002.5: (True, None)}
    assert scene.pools == [(1, 1, 4)]
    assert scene.server.count(since=1)["list"] <= 4


@pytest.mark.parametrize("error", [ExpiredError("410"), ForbiddenError("403"), ApiError("cut")])
def test_watches_that_fail_each_time_are_an_attempt_a_minute(scene: Scene, error: ApiError) -> None:
    scene.fail(error, "watch")
    scene.publisher.want(cpus(4))
    scene.run(HOUR)
    assert scene.server.count()["watch"] <= 75
    assert scene.publisher.published
    assert len([line for line in scene.log if str(error) in line]) <= 1


@pytest.mark.parametrize("seconds", [0.0, 5.0, 29.0])
def test_watches_that_are_cut_off_are_an_attempt_a_minute(scene: Scene, seconds: float) -> None:
    scene.server.watch_seconds = seconds
    scene.publisher.want(cpus(4))
    scene.run(HOUR)
    assert scene.server.count()["watch"] <= 75
    assert scene.state == (True, None)


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
    assert "422" in scene.publisher.problem
    assert scene.server.count()["create"] <= 75


@pytest.mark.fault("A37")
@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_fault_of_our_own_is_told_once_and_tried_again(scene: Scene, verb: str) -> None:
    def fault(called: str, manifest: Manifest | None) -> None:
        if called == verb:
            raise KeyError("spec")

    scene.server.fault = fault
    scene.publisher.want(cpus(4))
    scene.time.at(HOUR, scene.heal)
    scene.run(2 * HOUR, look=(100,))
    assert "KeyError: 'spec'" in str(scene.seen[100][1])
    assert len([line for line in scene.log if line.startswith("the publisher failed")]) == 1
    assert scene.server.count()[verb] <= 80
    assert scene.state == (True, None)


def test_an_answer_without_a_spec_is_an_error(scene: Scene) -> None:
    def create(manifest: Manifest) -> Manifest:
        return {"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}, "spec": None}

    scene.server.create = create  # type: ignore[method-assign]
    scene.publisher.want(cpus(4))
    scene.run(10)
    assert "ResourceSlice n that has no spec" in str(scene.publisher.problem)


def test_a_slice_that_is_gone_before_it_is_deleted_is_no_trouble(scene: Scene) -> None:
    scene.publisher.want(cpus(4))

    def gone(verb: str, manifest: Manifest | None) -> None:
        if verb == "delete":
            raise NotFoundError("404")

    scene.time.at(10, lambda: setattr(scene.server, "fault", gone))
    scene.time.at(11, lambda: scene.publisher.want(()))
    scene.run(20)
    assert scene.state == (True, None)

"""Promises of the publisher: what is wanted is there whatever others do, and the server has its peace."""

from collections.abc import Callable, Iterator

import pytest

from dra.slices.api import ApiError, NodeInfo
from dra.slices.objects import Manifest, slices_of
from dra.slices.pace import Repairs
from dra.slices.publisher import _REPAIR, Publisher
from tests.unit.dra.publisher_scene import HOUR, NODE, Scene, cpus, made


@pytest.fixture
def scene() -> Iterator[Scene]:
    with made() as scene:
        yield scene


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


@pytest.mark.fault("R7")
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
    assert scene.server.count()["list"] <= 160
    assert scene.server.count(since=1800)["list"] <= 75
    assert not scene.publisher.published


@pytest.mark.fault("K9")
@pytest.mark.parametrize("ends", [30.0, 100.0, 600.0, 3000.0])
def test_who_is_left_alone_after_a_fight_has_its_way_in_half_a_minute(scene: Scene, ends: float) -> None:
    """A rolling update to another configuration: both instances mend what the other one does, by the same rules."""
    devices = cpus(5)
    older = Repairs(*_REPAIR, scene.time)
    due: list[float] = []

    def undo() -> None:
        if scene.time.now() <= ends:
            scene.server.change(scene.first(), lambda it: it["spec"].update(devices=it["spec"]["devices"][:4]))
        due.clear()

    def called(verb: str, manifest: Manifest | None) -> None:
        if verb == "update" and not due and scene.time.now() < ends:
            due.append(scene.time.now() + older.next())
            scene.time.at(due[0], undo)

    scene.server.fault = called
    scene.publisher.want(devices)
    scene.time.at(10, undo)
    scene.run(ends + 40, look=(ends + 30,))
    assert scene.seen == {ends + 30: (True, None)}
    assert scene.pools[0][2] == 5
    assert scene.server.count()["list"] <= 20 + ends / 24


def test_after_a_fight_the_next_harm_is_repaired_at_once(scene: Scene) -> None:
    scene.publisher.want(cpus(4))
    for moment in range(100, 400, 2):
        scene.time.at(moment, scene.server.remove if moment % 4 else scene.server.end_watches)
    scene.time.at(2000, scene.server.remove)
    scene.run(HOUR, look=(1999, 2002))
    assert set(scene.seen.values()) == {(True, None)}


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


def test_a_watch_that_led_to_a_repair_is_closed(scene: Scene) -> None:
    scene.publisher.want(cpus(4))
    watches: list[int] = []
    for moment in (100, 300, 500):
        scene.time.at(moment, scene.server.remove)
        scene.time.at(moment + 100, lambda: watches.append(scene.server.watches))
    scene.run(1000)
    assert watches == [1, 1, 1]


def test_slices_of_other_drivers_and_nodes_in_a_list_are_never_touched(scene: Scene) -> None:
    """A server, or something before it, that does not look at the selector."""
    (manifest,) = slices_of(cpus(3), NODE)
    others = [
        scene.server.put({**manifest, "spec": {**manifest["spec"], **other}})
        for other in ({"nodeName": "node-b"}, {"driver": "gpu.example"})
    ]
    scene.publisher.want(cpus(4))
    scene.time.at(100, lambda: scene.publisher.want(()))
    scene.run(200)
    assert [scene.server.objects[other["metadata"]["name"]] for other in others] == others
    assert len(scene.server.objects) == 2

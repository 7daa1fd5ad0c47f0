"""Promises of the publisher when calls fail: over hours of virtual time it tries again, and seldom."""

from collections.abc import Iterator

import pytest

from dra.slices.api import ApiError, ConflictError, ExpiredError, ForbiddenError, InvalidError, NodeInfo, NotFoundError
from dra.slices.objects import Manifest, slices_of
from tests.unit.dra.publisher_scene import HOUR, NODE, Scene, cpus, made


@pytest.fixture
def scene() -> Iterator[Scene]:
    with made() as scene:
        yield scene


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
    scene.time.at(1200, scene.heal)
    scene.run(1300, look=(1199, 1290))
    assert scene.server.count(since=12)["list"] <= 30
    assert scene.seen[1199] == (False, f"ResourceSlices are not published: {error}")
    assert scene.seen[1290] == (True, None)
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


def test_after_a_bad_hour_the_next_hiccup_is_over_in_seconds(scene: Scene) -> None:
    scene.fail(ApiError("refused"))
    scene.publisher.want(cpus(4))
    scene.time.at(HOUR, scene.heal)
    scene.time.at(2 * HOUR, lambda: scene.fail(ApiError("refused")))
    scene.time.at(2 * HOUR, lambda: scene.publisher.want(cpus(5)))
    scene.time.at(2 * HOUR + 0.2, scene.heal)
    scene.run(3 * HOUR, look=(2 * HOUR + 0.1, 2 * HOUR + 2))
    assert list(scene.seen.values()) == [(False, "ResourceSlices are not published: refused"), (True, None)]


def test_after_an_hour_of_watches_that_are_cut_off_one_more_is_renewed_in_seconds(scene: Scene) -> None:
    scene.server.watch_seconds = 0.0
    scene.publisher.want(cpus(4))
    scene.time.at(HOUR, lambda: setattr(scene.server, "watch_seconds", 900.0))
    for moment in (2 * HOUR, 2 * HOUR + 5):  # the second watch had not lasted
        scene.time.at(moment, scene.server.end_watches)
    watches: list[int] = []
    scene.time.at(2 * HOUR + 7, lambda: watches.append(scene.server.watches))
    scene.run(3 * HOUR)
    assert watches == [1]


def test_a_server_that_asks_to_wait_for_an_hour_is_asked_after_five_minutes(scene: Scene) -> None:
    scene.fail(ApiError("429", retry_after=HOUR))
    scene.publisher.want(cpus(4))
    scene.run(1000)
    assert [when for when, _ in scene.server.calls] == [0, 300, 600, 900]


def _lost_unseen(scene: Scene) -> None:
    """All slices, while no watch is there that tells of it."""
    scene.server.remove()
    scene.server.compact()
    scene.server.end_watches(ExpiredError("410"))


def test_slices_that_are_lost_and_can_not_be_written_again_are_not_published(scene: Scene) -> None:
    scene.publisher.want(cpus(130))

    def second_create(verb: str, manifest: Manifest | None) -> None:
        if verb == "create" and scene.server.objects:
            raise ApiError("half done")

    def lost() -> None:
        _lost_unseen(scene)
        scene.server.fault = second_create

    scene.time.at(1000, lost)
    scene.time.at(1100, scene.heal)
    scene.run(1200, look=(999, 1050, 1190))
    assert scene.seen[999] == scene.seen[1190] == (True, None)
    assert scene.seen[1050] == (False, "ResourceSlices are not published: half done")


def test_without_a_node_nothing_is_published_also_when_nobody_saw_the_slices_go(scene: Scene) -> None:
    scene.publisher.want(cpus(4))

    def gone() -> None:
        scene.server.node_info = None
        _lost_unseen(scene)

    scene.time.at(1000, gone)
    scene.run(1100, look=(999,))
    assert scene.seen == {999: (True, None)}
    assert scene.state == (False, "ResourceSlices are not published: GET node: 404")

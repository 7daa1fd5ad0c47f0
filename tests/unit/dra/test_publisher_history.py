"""A promise of the publisher for any course of events: it ends well, and with few requests."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from dra.slices.api import ApiError, ConflictError, ExpiredError, NodeInfo
from dra.slices.objects import slices_of
from tests.unit.dra.publisher_scene import NODE, Scene, cpus, grouped


def _change_first(scene: Scene) -> None:
    for name in sorted(scene.server.objects)[:1]:
        scene.server.change(name, lambda it: it.update(spec={"devices": None}))


_ACTIONS: dict[str, Callable[[Scene], object]] = {
    "fewer are wanted": lambda scene: scene.publisher.want(cpus(3)),
    "more are wanted": lambda scene: scene.publisher.want(cpus(130)),
    "nothing is wanted": lambda scene: scene.publisher.want(()),
    "registered": lambda scene: scene.publisher.poke(),
    "wiped": lambda scene: scene.server.remove(),
    "one deleted": lambda scene: scene.server.remove(*sorted(scene.server.objects)[:1]),
    "one changed": _change_first,
    "one made": lambda scene: scene.server.put(slices_of(cpus(1), NODE)[0]),
    "down": lambda scene: scene.fail(ApiError("down")),
    "up": lambda scene: scene.heal(),
    "no writes": lambda scene: scene.fail(ConflictError("409"), "create", "update", "delete"),
    "no watches": lambda scene: scene.fail(ExpiredError("410"), "watch"),
    "watches end": lambda scene: scene.server.end_watches(),
    "watches break": lambda scene: scene.server.end_watches(ExpiredError("410")),
    "compacted": lambda scene: scene.server.compact(),
    "node gone": lambda scene: setattr(scene.server, "node_info", None),
    "node back": lambda scene: setattr(scene.server, "node_info", NodeInfo(f"uid-{scene.time.now()}")),
    "gate off": lambda scene: scene.server.off.add("DRAConsumableCapacity"),
}


# Devices in each slice.
_WANTED = {"fewer are wanted": [3], "more are wanted": [128, 2], "nothing is wanted": []}


def _collect_garbage(scene: Scene) -> None:
    """Slices whose Node is no more go."""
    assert scene.server.node_info
    for name, found in sorted(scene.server.objects.items()):
        if [owner["uid"] for owner in found["metadata"].get("ownerReferences", [])] != [scene.server.node_info.uid]:
            scene.server.remove(name)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000), st.sampled_from(sorted(_ACTIONS))), max_size=12))
def test_whatever_happens_in_an_hour_it_ends_well_and_with_few_requests(history: list[tuple[int, str]]) -> None:
    """By itself, once the faults are over: nothing is wanted anew, and no kubelet registers."""
    scene = Scene()
    scene.publisher.want(grouped())
    for moment, action in history:
        scene.time.at(moment, lambda action=action: _ACTIONS[action](scene))  # type: ignore[misc]
    scene.time.at(3001, scene.heal)
    scene.time.at(3001, lambda: setattr(scene.server, "node_info", scene.server.node_info or NodeInfo("at last")))
    scene.time.at(3002, lambda: _collect_garbage(scene))
    scene.run(4000)
    wanted = [_WANTED[action] for _, action in sorted(history, key=lambda entry: entry[0]) if action in _WANTED]
    assert [devices for _, _, devices in scene.pools] == (wanted or [[len(grouped())]])[-1]
    assert len({(generation, count) for generation, count, _ in scene.pools}) <= 1
    assert scene.publisher.published
    if "gate off" not in {action for _, action in history}:
        assert scene.publisher.problem is None
    assert len(scene.server.calls) < 400

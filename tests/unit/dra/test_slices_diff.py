"""Promises of the writes that publish a pool: they suffice, they are no more than needed, and the pool stays whole."""

import copy
import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra.devices import Device, DeviceMode, devices_of
from dra.slices.api import NodeInfo
from dra.slices.diff import Deletion, Owner, Plan, is_own, plan, removal
from dra.slices.objects import Manifest, generate_name, slices_of
from tests.unit.dra.slice_server import SliceServer
from tests.unit.dra.virtual_time import VirtualTime
from tests.unit.topology.machines import machine

NODE = "node-a"
OWNER = Owner(NODE, "node-uid-1")


@functools.cache
def cpus(number: int) -> tuple[Device, ...]:
    topology = machine(cores=number)
    return devices_of(topology, topology.online, DeviceMode.INDIVIDUAL)


@functools.cache
def _desired(number: int, size: int) -> tuple[Manifest, ...]:
    """A pool of `number` slices of `size` devices: small ones, since what is large is only slow."""
    made = tuple(copy.deepcopy(slices_of(cpus(size), NODE)[0]) for _ in range(number))
    for at, manifest in enumerate(made):
        manifest["metadata"]["generateName"] = generate_name(NODE, at, number)
        for device in manifest["spec"]["devices"]:
            device["name"] += f"-{at}"
    return made


def desired(number: int, size: int = 2) -> tuple[Manifest, ...]:
    return copy.deepcopy(_desired(number, size))


class Server:
    """Slices on a server, to which plans are applied as the publisher does."""

    def __init__(self, *slices: Manifest) -> None:
        self.api = SliceServer(VirtualTime(), NodeInfo(OWNER.uid))
        for manifest in slices:
            self.api.put(manifest)

    def plan(self, wanted: tuple[Manifest, ...], owner: Owner = OWNER) -> Plan:
        return plan(self.api.list().items, wanted, owner)

    def publish(self, wanted: tuple[Manifest, ...], owner: Owner = OWNER) -> Plan:
        todo = self.plan(wanted, owner)
        for each in todo.delete:
            self.api.delete(each.name, each.uid, each.resource_version)
        for manifest in todo.update:
            self.api.update(manifest)
        for manifest in todo.create:
            self.api.create(manifest)
        return todo

    @property
    def names(self) -> list[str]:
        return sorted(self.api.objects)

    @property
    def generations(self) -> list[int]:
        return [spec["pool"]["generation"] for spec in self.api.specs]


def published(number: int) -> Server:
    server = Server()
    server.publish(desired(number))
    return server


def sizes(todo: Plan) -> tuple[int, int, int]:
    return len(todo.delete), len(todo.update), len(todo.create)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
GENERATIONS = st.integers(0, 5) | st.sampled_from([2**63 - 1, 2**63 - 2, -1, True, 1.0, "1", None])
FIELDS = [
    "devices",
    "pool",
    "nodeName",
    "driver",
    "allNodes",
    "nodeSelector",
    "sharedCounters",
    "perDeviceNodeSelection",
]


@st.composite
def slices(draw: st.DrawFn) -> Manifest:
    """A slice of any history: ours, of another version, of another size of the pool, or mangled."""
    count = draw(st.integers(1, 4))
    manifest = draw(st.sampled_from(desired(count)))
    spec, metadata = manifest["spec"], manifest["metadata"]
    if not draw(st.integers(0, 3)):
        metadata["generateName"] = draw(
            st.sampled_from([f"{NODE}-dra.cpu-", "000001-x-", "0-", "zzzzz-", "0000A-", "fffff-", "x", "-", "00000"])
        )
    spec["pool"]["generation"] = draw(GENERATIONS)
    metadata["ownerReferences"] = draw(
        st.sampled_from([[OWNER.reference], [OWNER.reference], [Owner(NODE, "other").reference], [], None]) | JSON
    )
    if draw(st.booleans()):
        spec[draw(st.sampled_from(FIELDS))] = draw(JSON)
    if not draw(st.integers(0, 4)):
        device = draw(st.sampled_from(desired(count)[0]["spec"]["devices"]))
        device[draw(st.sampled_from([*device, "capacity", "nodeAllocatableResources"]))] = draw(JSON)
        spec["devices"] = [device]
    if not draw(st.integers(0, 9)):
        manifest["spec"] = draw(JSON)
    return manifest


@settings(max_examples=200, deadline=None)
@given(st.lists(slices(), max_size=6), st.integers(0, 4))
def test_whatever_is_there_one_plan_makes_it_right(existing: list[Manifest], number: int) -> None:
    server, wanted = Server(*existing), desired(number)
    counted = list(map(_counted, server.api.specs))
    server.publish(wanted)
    assert not server.plan(wanted)
    assert [spec["devices"] for spec in server.api.specs] == [manifest["spec"]["devices"] for manifest in wanted]
    assert {spec["pool"]["resourceSliceCount"] for spec in server.api.specs} <= {number}
    assert len(set(server.generations)) <= 1
    assert [int(name.partition("-")[0], 16) for name in server.names] == list(range(number))
    assert all(made["metadata"]["ownerReferences"] == [OWNER.reference] for made in server.api.objects.values())
    assert not number or server.generations[0] <= max(counted, default=0) + 1


def _counted(spec: object) -> int:
    pool = spec.get("pool") if isinstance(spec, dict) else None
    generation = pool.get("generation") if isinstance(pool, dict) else None
    return max(generation, 0) if type(generation) is int else 0


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=6), st.data())
def test_no_consumer_ever_sees_a_pool_that_is_whole_and_wrong(counts: list[int], data: st.DataObject) -> None:
    """After each single write: the slices of the highest generation are either too few, or what was or is wanted."""
    server = Server()
    before: tuple[Manifest, ...] = ()
    for count in counts:
        wanted = desired(count, data.draw(st.integers(1, 3)))
        todo, good = server.plan(wanted), (_says(before), _says(wanted))
        for each in todo.delete:
            server.api.delete(each.name, each.uid, each.resource_version)
            assert _seen(server) in (None, *good)
        for manifest in todo.update:
            server.api.update(manifest)
            assert _seen(server) in (None, *good)
        for manifest in todo.create:
            server.api.create(manifest)
            assert _seen(server) in (None, *good)
        assert _seen(server) == good[1]
        before = wanted


def _says(wanted: tuple[Manifest, ...]) -> list[Any] | None:
    return [manifest["spec"]["devices"] for manifest in wanted] or None


def _seen(server: Server) -> list[Any] | None:
    """The devices that a scheduler allocates from; None where it waits (dynamic-resource-allocation, structured)."""
    newest = [spec for spec in server.api.specs if spec["pool"]["generation"] == max(server.generations)]
    if not newest or len(newest) != newest[0]["pool"]["resourceSliceCount"]:
        return None
    return [spec["devices"] for spec in newest]


def test_the_first_publication_has_generation_1() -> None:
    server = Server()
    assert sizes(server.publish(desired(3))) == (0, 0, 3)
    assert server.generations == [1, 1, 1]


def test_what_is_there_already_takes_no_write() -> None:
    server = published(3)
    assert not server.plan(desired(3))
    assert server.plan(desired(3)) == Plan()


def test_a_change_of_one_slice_is_one_write_and_keeps_the_generation() -> None:
    server, wanted = published(3), desired(3)
    wanted[1]["spec"]["devices"].pop()
    assert sizes(server.publish(wanted)) == (0, 1, 0)
    assert server.generations == [1, 1, 1]


def test_changes_of_two_slices_write_all_with_the_next_generation() -> None:
    server, wanted = published(3), desired(3)
    wanted[0]["spec"]["devices"].pop()
    wanted[1]["spec"]["devices"].pop()
    assert sizes(server.publish(wanted)) == (0, 3, 0)
    assert server.generations == [2, 2, 2]


def test_order_of_devices_counts() -> None:
    server, wanted = published(1), desired(1)
    wanted[0]["spec"]["devices"].reverse()
    assert sizes(server.plan(wanted)) == (0, 1, 0)


def test_a_pool_that_shrinks_loses_its_last_slices_first() -> None:
    server = published(3)
    names = server.names
    todo = server.publish(desired(2))
    assert [each.name for each in todo.delete] == names[2:]
    assert server.names == names[:2]
    assert server.generations == [2, 2]


def test_a_pool_that_grows_keeps_its_slices() -> None:
    server = published(2)
    names = server.names
    assert sizes(server.publish(desired(3))) == (0, 2, 1)
    assert server.names[:2] == names
    assert server.generations == [2, 2, 2]


@pytest.mark.fault("R9")
def test_nothing_wanted_leaves_nothing() -> None:
    server = published(2)
    assert sizes(server.publish(())) == (2, 0, 0)
    assert server.names == []
    assert removal(()) == Plan()


def test_a_slice_that_was_deleted_by_others_is_made_again_with_a_new_generation() -> None:
    server = published(3)
    server.api.remove(server.names[1])
    assert sizes(server.publish(desired(3))) == (0, 2, 1)
    assert server.generations == [2, 2, 2]


def test_slices_with_names_of_older_drivers_are_replaced() -> None:
    """Up to Kubernetes 1.35 the helper of the Go driver named them after node and driver, without an index."""
    (legacy,) = desired(1)
    legacy["metadata"] = {"generateName": f"{NODE}-dra.cpu-"}
    legacy["spec"]["pool"]["generation"] = 7
    server = Server(legacy)
    assert sizes(server.publish(desired(1))) == (1, 0, 1)
    assert server.generations == [8]


def test_indices_of_another_width_are_replaced() -> None:
    (wide,) = desired(1)
    wide["metadata"]["generateName"] = generate_name(NODE, 0, 0x100001)
    assert wide["metadata"]["generateName"].startswith("000000-dra.cpu-")
    assert sizes(Server(wide).publish(desired(1))) == (1, 0, 1)


def test_of_two_slices_with_one_index_one_goes() -> None:
    (one,) = desired(1)
    server = Server(one, one)
    assert sizes(server.publish(desired(1)))[::2] == (1, 0)
    assert len(server.names) == 1


def test_slices_of_an_older_generation_go() -> None:
    old, new = desired(2)
    new["spec"]["pool"]["generation"] = 4
    server = Server(old, new)
    todo = server.publish(desired(2))
    assert [each.name[:5] for each in todo.delete] == ["00000"]
    assert server.generations == [5, 5]


def test_a_generation_that_has_no_next_one_starts_again() -> None:
    server = Server()
    first, second = desired(2)
    for manifest in (first, second):
        manifest["spec"]["pool"]["generation"] = 2**63 - 1
        server.api.put(manifest)
    assert sizes(server.publish(desired(2))) == (2, 0, 2)
    assert server.generations == [1, 1]


def test_a_node_with_another_uid_owns_the_slices() -> None:
    server, second = published(2), Owner(NODE, "node-uid-2")
    assert sizes(server.publish(desired(2), second)) == (0, 2, 0)
    assert {made["metadata"]["ownerReferences"][0]["uid"] for made in server.api.objects.values()} == {"node-uid-2"}
    assert not server.plan(desired(2), second)


def test_deletions_name_the_object_as_it_was_seen() -> None:
    server = published(1)
    metadata = next(iter(server.api.objects.values()))["metadata"]
    assert removal(server.api.list().items).delete == (
        Deletion(metadata["name"], metadata["uid"], metadata["resourceVersion"]),
    )
    assert server.plan(()).delete == removal(server.api.list().items).delete


def test_updates_are_whole_objects_with_the_resource_version_that_was_seen() -> None:
    server = published(1)
    name = server.names[0]
    server.api.change(name, lambda it: it["metadata"].update(labels={"theirs": "1"}))
    server.api.change(name, lambda it: it["spec"].update(allNodes=True))
    (update,) = server.plan(desired(1)).update
    assert (update["apiVersion"], update["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
    assert update["metadata"]["resourceVersion"] == server.api.objects[name]["metadata"]["resourceVersion"]
    assert update["metadata"]["labels"] == {"theirs": "1"}
    assert "allNodes" not in update["spec"]


def test_a_plan_changes_nothing_that_it_is_given() -> None:
    server, wanted = published(2), desired(2)
    wanted[0]["spec"]["devices"].pop()
    existing = server.api.list().items
    before = copy.deepcopy((existing, wanted))
    assert plan(existing, wanted, Owner(NODE, "other"))
    assert (existing, wanted) == before


@pytest.mark.parametrize(
    ("spec", "own"),
    [
        ({"driver": "dra.cpu", "nodeName": NODE}, True),
        ({"driver": "gpu.example.com", "nodeName": NODE}, False),
        ({"driver": "dra.cpu", "nodeName": "node-b"}, False),
        ({"driver": None, "nodeName": 3}, True),
        ({}, True),
        (None, True),
        ([], True),
    ],
)
def test_only_what_says_another_driver_or_node_is_left_alone(spec: object, own: bool) -> None:
    assert is_own({"spec": spec}, NODE) is own


@pytest.mark.parametrize("count", [1.0, True])
def test_a_number_of_slices_that_is_no_whole_number_is_mended_though_python_takes_it_for_one(count: object) -> None:
    items = published(1).api.list().items
    items[0]["spec"]["pool"]["resourceSliceCount"] = count
    assert sizes(plan(items, desired(1), OWNER)) == (0, 1, 0)

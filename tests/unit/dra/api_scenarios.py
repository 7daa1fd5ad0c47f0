"""What an API server does for those who publish slices and read claims: the same on the fake one and on a real one."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra.claims import ClaimError, ClaimRef, parse_claim
from dra.devices import Device
from dra.kube import ApiServer
from dra.kube.client import Client
from dra.kube.kubeconfig import from_kubeconfig
from dra.kube.slices import NodeSlices, SliceWatch
from dra.slices.api import (
    ApiError,
    ConflictError,
    EventKind,
    ExpiredError,
    InvalidError,
    NotFoundError,
)
from dra.slices.publisher import Publisher
from hack.wait import wait_until
from nri_cpu.cpuset import CPUSet

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NODES = "/api/v1/nodes"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

Object = dict[str, Any]


@dataclass
class Ground:
    """An API server, by a kubeconfig of somebody who may do all, and the node's name that a scenario has to itself."""

    kubeconfig: Path
    directory: Path
    node: str = field(default_factory=lambda: f"node-{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.source = ApiServer(self.kubeconfig, "dra-cpu/test")
        self.client = Client(from_kubeconfig(self.kubeconfig), "administrator/test")

    @property
    def api(self) -> NodeSlices:
        return self.source.slices(self.node)

    def do(self, method: str, path: str, sent: Object | None = None) -> Object:
        answer = self.client.request(method, path, 30, None if sent is None else json.dumps(sent).encode())
        assert 200 <= answer.status < 300, answer
        found: Object = json.loads(answer.body)
        return found

    def create_node(self, name: str = "") -> Object:
        return self.do("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name or self.node}})

    def manifest(self, index: int = 0, devices: int = 1, driver: str = "dra.cpu", node: str = "") -> Object:
        node = node or self.node
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"generateName": f"{index:05x}-dra.cpu-{node}-"},
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 2},
                "devices": [{"name": f"cpu{number}", "attributes": {}} for number in range(devices)],
            },
        }

    def clean(self) -> None:
        for found in self.do("GET", SLICES)["items"]:
            if self.node in found["spec"].get("nodeName", ""):
                self.do("DELETE", f"{SLICES}/{found['metadata']['name']}", {})
        for found in self.do("GET", NODES)["items"]:
            if self.node in found["metadata"]["name"]:
                self.do("DELETE", f"{NODES}/{found['metadata']['name']}", {})


def problem(call: Callable[[], object]) -> ApiError:
    """The error of a call that must fail, in one line."""
    with pytest.raises(ApiError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value


def a_node_is_known_by_its_uid(ground: Ground) -> None:
    with pytest.raises(NotFoundError, match=f"no Node has the name {ground.node}; does --hostname-override"):
        ground.api.node()
    made = ground.create_node()
    assert ground.api.node().uid == made["metadata"]["uid"]
    ground.do("DELETE", f"{NODES}/{ground.node}", {})
    again = ground.create_node()
    assert ground.api.node().uid == again["metadata"]["uid"] != made["metadata"]["uid"]


def slices_of_this_node_and_driver_are_listed(ground: Ground) -> None:
    other = f"{ground.node}-other"
    made = [ground.api.create(ground.manifest(index)) for index in range(2)]
    ground.api.create(ground.manifest(driver="gpu.example.com"))
    ground.api.create(ground.manifest(node=other))
    found = ground.api.list()
    assert [each["metadata"]["name"] for each in found.items] == [each["metadata"]["name"] for each in made]
    assert made[0]["metadata"]["name"].startswith(f"00000-dra.cpu-{ground.node}-")
    assert found.items[0]["spec"]["devices"][0]["name"] == "cpu0"
    assert int(found.resource_version) > 0
    assert len(ground.source.slices(other).list().items) == 1


def an_update_needs_the_newest_version(ground: Ground) -> None:
    made = ground.api.create(ground.manifest())
    changed = {**made, "spec": {**made["spec"], "devices": []}}
    updated = ground.api.update(changed)
    assert updated["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    assert not ground.api.list().items[0]["spec"].get("devices")
    with pytest.raises(ConflictError, match=r"^PUT http.* answered 409 \(it was changed meanwhile.*\): .*modified"):
        ground.api.update(made)
    same = ground.api.update(updated)
    assert same["metadata"]["resourceVersion"] == updated["metadata"]["resourceVersion"], "nothing was changed"


def what_is_gone_is_not_made_by_an_update(ground: Ground) -> None:
    made = ground.api.create(ground.manifest())
    metadata = made["metadata"]
    ground.api.delete(metadata["name"], metadata["uid"], metadata["resourceVersion"])
    with pytest.raises((NotFoundError, ConflictError)):
        ground.api.update(made)
    assert ground.api.list().items == ()


def a_name_is_taken_once(ground: Ground) -> None:
    named = {**ground.manifest(), "metadata": {"name": f"{ground.node}-one"}}
    ground.api.create(named)
    with pytest.raises(ConflictError, match="already exists"):
        ground.api.create(named)


def a_slice_is_deleted_only_as_it_was_known(ground: Ground) -> None:
    made = ground.api.create(ground.manifest())
    name, identity, version = (made["metadata"][key] for key in ("name", "uid", "resourceVersion"))
    with pytest.raises(ConflictError):
        ground.api.delete(name, str(uuid.uuid4()), version)
    with pytest.raises(ConflictError):
        ground.api.delete(name, identity, "1")
    ground.api.delete(name, identity, version)
    with pytest.raises(NotFoundError, match=r"answered 404 \(it is gone already\)"):
        ground.api.delete(name, identity, version)


def what_is_invalid_is_refused_with_its_path(ground: Ground) -> None:
    manifest = ground.manifest()
    manifest["spec"]["devices"][0]["name"] = "CPU"
    with pytest.raises(InvalidError, match=r"validation refuses it\): .*spec\.devices\[0\]\.name"):
        ground.api.create(manifest)
    assert ground.api.list().items == ()


def a_watch_tells_what_happens_after_a_list(ground: Ground) -> None:
    before = ground.api.create(ground.manifest())
    watch = ground.api.watch(ground.api.list().resource_version)
    try:
        one = ground.api.create(ground.manifest(1))
        ground.api.create(ground.manifest(driver="gpu.example.com"))
        ground.api.update({**one, "spec": {**one["spec"], "devices": []}})
        ground.api.delete(*(before["metadata"][key] for key in ("name", "uid", "resourceVersion")))
        events = [(event := next(watch)).kind.value + " " + event.manifest["metadata"]["name"] for _ in range(3)]
    finally:
        watch.close()
    name = one["metadata"]["name"]
    assert events == [f"ADDED {name}", f"MODIFIED {name}", f"DELETED {before['metadata']['name']}"]


def a_watch_is_ended_by_another_thread(ground: Ground) -> None:
    watch = ground.api.watch(ground.api.list().resource_version)
    ground.api.create(ground.manifest())
    assert next(watch).kind is EventKind.ADDED
    left: list[object] = []
    waiting = threading.Thread(target=lambda: left.extend(watch))
    waiting.start()
    watch.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert all(event.kind is EventKind.BOOKMARK for event in left)  # type: ignore[attr-defined]
    assert list(watch) == []


def a_watch_ends_when_its_time_is_over(ground: Ground) -> None:
    version = ground.api.list().resource_version
    path = f"{SLICES}?watch=true&resourceVersion={version}&timeoutSeconds=1"
    assert {event.kind for event in SliceWatch(ground.client, path, 30)} <= {EventKind.ADDED, EventKind.DELETED}


def a_claim_is_read_as_it_is_now(ground: Ground) -> None:
    name = f"claim-{ground.node}"
    read = ground.source.reader(time.monotonic() + 60)
    with pytest.raises(ClaimError, match=r"answered 404 \(the claim does not exist any more\): .*not found"):
        read(ClaimRef("", "default", name))
    request = {"name": "cpus", "exactly": {"deviceClassName": "dra.cpu"}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    uids = []
    for _ in range(2):
        made = ground.do("POST", CLAIMS, claim)
        uids.append(made["metadata"]["uid"])
        with pytest.raises(ClaimError, match="not allocated"):
            parse_claim(read(ClaimRef(uids[-1], "default", name)), uids[-1])
        result = {"request": "cpus", "driver": "dra.cpu", "pool": ground.node, "device": "cpudev000"}
        made["status"] = {"allocation": {"devices": {"results": [result]}}}
        ground.do("PUT", f"{CLAIMS}/{name}/status", made)
        assert parse_claim(read(ClaimRef(uids[-1], "default", name)), uids[-1]).name == name
        ground.do("DELETE", f"{CLAIMS}/{name}", {})
    assert uids[0] != uids[1]


def who_is_nobody_is_told_so(ground: Ground) -> None:
    config = yaml.safe_load(ground.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "of-nobody"}
    path = ground.directory / "of-nobody"
    path.write_text(yaml.safe_dump(config))
    source = ApiServer(path, "dra-cpu/test")
    told = rf"answered 401 \(users\[\S+\]\.user of {path} is not accepted\)"
    with pytest.raises(ApiError, match=f"^GET http.*/resourceslices {told}"):
        source.slices(ground.node).list()
    with pytest.raises(ClaimError, match=told):
        source.reader(time.monotonic() + 30)(ClaimRef("", "default", "one"))


def a_publisher_keeps_what_is_wanted(ground: Ground) -> None:
    def devices() -> list[list[str]]:
        return [[device["name"] for device in each["spec"]["devices"]] for each in ground.api.list().items]

    node = ground.create_node()
    publisher = Publisher(ground.api, ground.node)
    publisher.want([Device("cpudev000", CPUSet.parse("0"), {"numaNode": 0}, {}, allow_multiple_allocations=False)])
    publisher.start()
    try:
        wait_until("the slice", lambda: devices() == [["cpudev000"]])
        (made,) = ground.api.list().items
        (owner,) = made["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])
        wait_until("the end of the round", lambda: publisher.published)
        ground.do("DELETE", f"{SLICES}/{made['metadata']['name']}", {})
        wait_until("the slice, which somebody deleted", lambda: devices() == [["cpudev000"]])
        publisher.want([])
        wait_until("no slice", lambda: devices() == [])
        assert publisher.problem is None
    finally:
        publisher.stop()
    assert all(thread.name != "publisher" for thread in threading.enumerate())


def a_watch_can_not_start_too_long_ago(ground: Ground) -> None:
    """Where the server does not remember version 1: a real one after it was started again."""
    watch = ground.api.watch("1")
    with pytest.raises(ExpiredError, match=r"\(watch\) answered 410 .*: too old resource version: 1"):
        next(watch)
    assert list(watch) == []


SCENARIOS: tuple[Callable[[Ground], None], ...] = (
    a_node_is_known_by_its_uid,
    slices_of_this_node_and_driver_are_listed,
    an_update_needs_the_newest_version,
    what_is_gone_is_not_made_by_an_update,
    a_name_is_taken_once,
    a_slice_is_deleted_only_as_it_was_known,
    what_is_invalid_is_refused_with_its_path,
    a_watch_tells_what_happens_after_a_list,
    a_watch_is_ended_by_another_thread,
    a_watch_ends_when_its_time_is_over,
    a_claim_is_read_as_it_is_now,
    who_is_nobody_is_told_so,
    a_publisher_keeps_what_is_wanted,
)

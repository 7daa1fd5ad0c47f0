"""ResourceSlices in memory, as an API server keeps them: the SliceApi of one driver and node, with faults.

As the real one does it: resourceVersions of all objects out of one counter, names made of generateName, optimistic
concurrency, deletion by preconditions, watches with bookmarks that end by themselves, 410 for what is compacted away,
quantities in canonical form, fields of features that are off dropped, no write where nothing changes.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from dra.claims import parse_quantity
from dra.slices.api import (
    ApiError,
    ConflictError,
    EventKind,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NodeInfo,
    NotFoundError,
    SliceList,
    WatchEvent,
)
from dra.slices.objects import Manifest
from dra.slices.pace import Clock

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # of generated names (apimachinery, util/rand)
_BOOKMARKS = 60.0
_IMMUTABLE = (("driver",), ("nodeName",), ("pool", "name"))


class SliceServer:
    """`fault`: looks at each request (verb, manifest or None) before it is served, and may raise. `off`: feature gates.

    `admits_mapping`: whether slices with node allocatable resources are taken. `watch_seconds`: when watches end.
    """

    def __init__(self, clock: Clock, node: NodeInfo | None = None) -> None:
        self.clock = clock
        self.node_info: NodeInfo | None = node or NodeInfo("node-uid-1")
        self.fault: Callable[[str, Manifest | None], None] = lambda verb, manifest: None
        self.off: set[str] = set()
        self.admits_mapping = True
        self.watch_seconds = 900.0
        self.calls: list[tuple[float, str]] = []
        self.objects: dict[str, Manifest] = {}
        self._lock = threading.RLock()
        self._version = itertools.count(1000)
        self._last = 999
        self._compacted = 0
        self._events: list[tuple[int, EventKind, Manifest]] = []
        self._watches: list[_Watch] = []

    # What is asked over the network.

    def node(self) -> NodeInfo:
        self._called("node")
        if self.node_info is None:
            raise NotFoundError("GET node: 404")
        return self.node_info

    def list(self) -> SliceList:
        self._called("list")
        with self._lock:
            items = [_copy(self.objects[name]) for name in sorted(self.objects)]
            for item in items:
                del item["apiVersion"], item["kind"]
            return SliceList(tuple(items), str(self._last))

    def watch(self, resource_version: str) -> _Watch:
        return _Watch(self, int(resource_version))

    def create(self, manifest: Manifest) -> Manifest:
        self._called("create", manifest)
        with self._lock:
            return self.put(self._taken(manifest))

    def update(self, manifest: Manifest) -> Manifest:
        self._called("update", manifest)
        with self._lock:
            metadata = manifest["metadata"]
            found = self._found(metadata["name"], metadata["uid"], metadata["resourceVersion"])
            for path in _IMMUTABLE:
                if _at(found["spec"], path) != _at(manifest["spec"], path):
                    raise InvalidError(f"PUT {metadata['name']}: 422 spec.{'.'.join(path)} is immutable")
            return self._change(metadata["name"], self._taken(manifest))

    def delete(self, name: str, uid: str, resource_version: str) -> None:
        self._called("delete")
        with self._lock:
            self._found(name, uid, resource_version)
            self.remove(name)

    # What others do, who may write anything, and what tests look at.

    def put(self, manifest: Manifest) -> Manifest:
        """A new object, by anybody."""
        with self._lock:
            made = _copy(manifest)
            metadata = made["metadata"]
            if "name" not in metadata:
                suffix = "".join(random.choices(_ALPHABET, k=5))
                metadata["name"] = metadata["generateName"][:58] + suffix
            if metadata["name"] in self.objects:
                raise ConflictError(f"POST {metadata['name']}: 409 already exists")
            metadata["uid"] = f"uid-{next(self._version)}"
            return self._store(EventKind.ADDED, made)

    def change(self, name: str, change: Callable[[Manifest], object]) -> None:
        """`change` alters the object that it is given."""
        with self._lock:
            changed = _copy(self.objects[name])
            change(changed)
            self._change(name, changed)

    def remove(self, *names: str) -> None:
        """All, where none is named."""
        with self._lock:
            for name in names or sorted(self.objects):
                gone = self.objects.pop(name)
                self._record(EventKind.DELETED, gone)

    def compact(self) -> None:
        with self._lock:
            self._last = next(self._version)
            self._compacted = self._last
            self._events.clear()

    def end_watches(self, error: ApiError | None = None) -> None:
        with self._lock:
            for watch in tuple(self._watches):
                watch.end(error)

    @property
    def specs(self) -> tuple[Manifest, ...]:
        """In the order of their names, which is that of the scheduler."""
        with self._lock:
            return tuple(self.objects[name]["spec"] for name in sorted(self.objects))

    @property
    def watches(self) -> int:
        """How many are open."""
        with self._lock:
            return len(self._watches)

    def count(self, since: float = 0.0) -> Counter[str]:
        return Counter(verb for when, verb in self.calls if when >= since)

    def _called(self, verb: str, manifest: Manifest | None = None) -> None:
        with self._lock:
            self.calls.append((self.clock.now(), verb))
            assert len(self.calls) < 20_000, "a hot loop"
        self.fault(verb, manifest)

    def _found(self, name: str, uid: str, resource_version: str) -> Manifest:
        if name not in self.objects:
            raise NotFoundError(f"{name}: 404")
        found = self.objects[name]
        metadata = found["metadata"]
        if (metadata["uid"], metadata["resourceVersion"]) != (uid, resource_version):
            raise ConflictError(f"{name}: 409 the object has been modified")
        return found

    def _change(self, name: str, changed: Manifest) -> Manifest:
        if changed == self.objects[name]:
            return _copy(changed)
        return self._store(EventKind.MODIFIED, changed)

    def _store(self, kind: EventKind, manifest: Manifest) -> Manifest:
        self._record(kind, manifest)
        self.objects[manifest["metadata"]["name"]] = manifest
        return _copy(manifest)

    def _record(self, kind: EventKind, manifest: Manifest) -> None:
        self._last = next(self._version)
        manifest["metadata"]["resourceVersion"] = str(self._last)
        self._events.append((self._last, kind, _copy(manifest)))
        for watch in self._watches:
            watch.news.set()

    def _taken(self, manifest: Manifest) -> Manifest:
        """A copy as the server takes it."""
        taken = _copy(manifest)
        for device in taken["spec"]["devices"]:
            if "DRANodeAllocatableResources" in self.off:
                device.pop("nodeAllocatableResources", None)
            elif "nodeAllocatableResources" in device and not self.admits_mapping:
                raise ForbiddenError("403 node does not support DRANodeAllocatableResources feature")
            if "DRAConsumableCapacity" in self.off:
                device.pop("allowMultipleAllocations", None)
            for attribute in device["attributes"].values():
                if "DRAListTypeAttributes" in self.off and attribute.pop("strings", None):
                    raise InvalidError("422 attributes: exactly one value must be specified")
            for capacity in device.get("capacity", {}).values():
                capacity["value"] = str(parse_quantity(capacity["value"]))
        return taken


class _Watch:
    def __init__(self, server: SliceServer, version: int) -> None:
        self.news = threading.Event()
        self._server = server
        self._version = version
        self._is_served = False
        self._ends = 0.0
        self._bookmark = 0.0
        self._closed = False
        self._error: ApiError | None = None

    def __iter__(self) -> _Watch:
        return self

    def __next__(self) -> WatchEvent:
        while True:
            with self._server._lock:
                self.news.clear()
                if self._closed:
                    raise self._error or StopIteration
                if event := self._next():
                    return event
            # Once it is served there is always an end to wait for.
            self._server.clock.wait(self.news, min(self._ends, self._bookmark) - self._server.clock.now())

    def _next(self) -> WatchEvent | None:
        """What there is to say now."""
        now = self._server.clock.now()
        if not self._is_served:
            self._open(now)
        for version, kind, manifest in self._server._events:
            if version > self._version:
                self._version = version
                return WatchEvent(kind, _copy(manifest))
        if now >= self._ends:
            self.close()
            raise StopIteration
        if now >= self._bookmark:
            self._bookmark = now + _BOOKMARKS
            self._version = self._server._last
            return WatchEvent(EventKind.BOOKMARK, {"metadata": {"resourceVersion": str(self._version)}})
        return None

    def _open(self, now: float) -> None:
        self._server._called("watch")
        if self._version < self._server._compacted:
            raise ExpiredError(f"410 too old resource version: {self._version}")
        self._is_served = True
        self._ends, self._bookmark = now + self._server.watch_seconds, now + _BOOKMARKS
        self._server._watches.append(self)

    def end(self, error: ApiError | None = None) -> None:
        self._error, self._closed = error, True
        self.news.set()
        with self._server._lock:
            if self in self._server._watches:
                self._server._watches.remove(self)

    def close(self) -> None:
        self.end()


def _copy(manifest: Manifest) -> Manifest:
    """As it comes over the wire."""
    copied: Manifest = json.loads(json.dumps(manifest))
    return copied


def _at(spec: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        spec = spec.get(part) if isinstance(spec, dict) else None
    return spec

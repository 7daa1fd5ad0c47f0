"""The SliceApi of dra/slices over HTTP: this driver's ResourceSlices on one node, and the Node."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from dra.devices import DRIVER
from dra.kube.answers import AnswerError, error_of, mapping, object_of, parsed, text
from dra.kube.client import RESPONSE_LIMIT, Client, TransportError, read_whole
from dra.kube.connection import Connection
from dra.slices.api import ApiError, EventKind, NodeInfo, SliceList, WatchEvent
from dra.slices.objects import Manifest

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
# Webhooks may hold a write for 30 s, by their own default 10 s.
REQUEST_TIMEOUT = 30.0
_SHORTEST_WATCH, _LONGEST_WATCH = 600, 1200
# How much longer than asked a watch may take.
_GRACE = 30
# The API server sends a bookmark about once a minute. After so many seconds of silence a watch is taken for broken.
IDLE_LIMIT = 300.0
_CHUNK = 1 << 16

_NO_API = "it has no resource.k8s.io/v1, which Kubernetes 1.34 and later have"


class NodeSlices:
    """A SliceApi for `node_name`."""

    def __init__(self, client: Client, node_name: str) -> None:
        self._client = client
        self._node_name = node_name
        self._selector = quote(f"spec.driver={DRIVER},spec.nodeName={node_name}", "")

    def node(self) -> NodeInfo:
        hints = {
            403: "the service account needs the verb get on nodes",
            404: f"no Node has the name {self._node_name}; does --hostname-override tell the kubelet's?",
        }
        path = f"/api/v1/nodes/{quote(self._node_name, '')}"
        what = f"GET {self._client.server}{path}"
        found = self._call("GET", path, None, hints)
        with _named(what):
            uid = text(mapping(found.get("metadata"), "metadata"), "uid", "metadata")
            status = found.get("status")
            features = mapping(status, "status").get("declaredFeatures") if status is not None else None
            if features is not None and not isinstance(features, list):
                raise AnswerError("status.declaredFeatures that is no list")
            return NodeInfo(uid, frozenset(each for each in features or () if isinstance(each, str)))

    def list(self) -> SliceList:
        what = f"GET {self._client.server}{_SLICES}"
        found = self._call("GET", f"{_SLICES}?fieldSelector={self._selector}", None, _hints("list"))
        with _named(what):
            items = found.get("items")
            if items is not None and not isinstance(items, list):
                raise AnswerError("items that are no list")
            version = text(mapping(found.get("metadata"), "metadata"), "resourceVersion", "metadata")
            return SliceList(tuple(object_of(each, f"items[{at}]") for at, each in enumerate(items or ())), version)

    def watch(self, resource_version: str) -> SliceWatch:
        seconds = random.randint(_SHORTEST_WATCH, _LONGEST_WATCH)  # noqa: S311  # so that drivers do not come together
        path = (
            f"{_SLICES}?watch=true&allowWatchBookmarks=true&fieldSelector={self._selector}"
            f"&resourceVersion={quote(resource_version, '')}&timeoutSeconds={seconds}"
        )
        return SliceWatch(self._client, path, seconds + _GRACE)

    def create(self, manifest: Manifest) -> Manifest:
        return self._written("POST", _SLICES, manifest, "create")

    def update(self, manifest: Manifest) -> Manifest:
        return self._written("PUT", f"{_SLICES}/{quote(manifest['metadata']['name'], '')}", manifest, "update")

    def delete(self, name: str, uid: str, resource_version: str) -> None:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        }
        hints = {**_hints("delete"), 404: "it is gone already"}
        self._call("DELETE", f"{_SLICES}/{quote(name, '')}", options, hints)

    def _written(self, method: str, path: str, manifest: Manifest, verb: str) -> Manifest:
        hints = _hints(verb) if verb == "create" else {**_hints(verb), 404: "it was deleted meanwhile"}
        found = self._call(method, path, manifest, hints)
        with _named(f"{method} {self._client.server}{path}"):
            return object_of(found, "an object")

    def _call(self, method: str, path: str, sent: Manifest | None, hints: Mapping[int, str]) -> Manifest:
        """The object of a good answer."""
        what = f"{method} {self._client.server}{path.partition('?')[0]}"
        body = None if sent is None else json.dumps(sent, separators=(",", ":")).encode()
        try:
            answer = self._client.request(method, path, REQUEST_TIMEOUT, body)
        except TransportError as error:
            raise ApiError(f"{what} failed: {error}") from error
        if not 200 <= answer.status < 300:
            hints = {**self._client.hints, **hints}
            raise error_of(what, answer.status, answer.body, answer.retry_after, hints)
        with _named(what):
            return mapping(parsed(answer.body), "JSON")


class SliceWatch(Iterator[WatchEvent]):
    """A Watch. Its connection is its own, since it takes as long as it takes."""

    def __init__(self, client: Client, path: str, seconds: float) -> None:
        self._client = client
        self._path = path
        self._what = f"GET {client.server}{_SLICES} (watch)"
        self._seconds = seconds
        self._ends = 0.0
        self._connection = Connection()
        self._response: http.client.HTTPResponse | None = None
        self._buffer = b""
        self._closed = False
        self._over = False
        self._using = threading.Lock()

    def __next__(self) -> WatchEvent:
        with self._using:
            line = None
            try:
                if not self._over:
                    line = self._line()
                    self._over = line is None
                    if line is not None:
                        return self._event(line)
            except BaseException:
                self._over = True
                raise
            finally:
                if self._over:
                    self._connection.close()
        raise StopIteration

    def close(self) -> None:
        self._closed = True
        self._connection.shut()
        # What reads sees the end; with nobody reading it is over here.
        if self._using.acquire(blocking=False):
            self._over = True
            self._connection.close()
            self._using.release()

    def _line(self) -> bytes | None:
        """The next line that is not empty; None at the end."""
        if self._response is None:
            self._response = self._open()
        while self._response is not None:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                if line.strip():
                    return line
            elif len(self._buffer) > RESPONSE_LIMIT:
                raise ApiError(f"{self._what} sent an event larger than {RESPONSE_LIMIT} bytes")
            else:
                part = self._more(self._response)
                if not part:
                    return None
                self._buffer += part
        return None

    def _open(self) -> http.client.HTTPResponse | None:
        try:
            response = self._client.open(self._connection, self._path, REQUEST_TIMEOUT)
            if response.status == 200:
                self._ends = time.monotonic() + self._seconds
                return response
            body = read_whole(response)
        except TransportError as error:
            if self._closed:
                return None
            raise ApiError(f"{self._what} failed: {error}") from error
        hints = {**self._client.hints, **_hints("watch")}
        raise error_of(self._what, response.status, body, response.headers.get("retry-after"), hints)

    def _more(self, response: http.client.HTTPResponse) -> bytes:
        """What has come; nothing at the end, whatever it is that ended it."""
        self._connection.ends = min(self._ends, time.monotonic() + IDLE_LIMIT)
        try:
            return response.read1(_CHUNK)
        except (OSError, http.client.HTTPException, ValueError):
            return b""

    def _event(self, line: bytes) -> WatchEvent:
        with _named(self._what):
            event = mapping(parsed(line), "an event")
            kind, found = event.get("type"), mapping(event.get("object"), "an event's object")
            if kind == "ERROR":
                code = found.get("code")
                raise error_of(self._what, code if isinstance(code, int) else 0, json.dumps(found).encode())
            if kind == EventKind.BOOKMARK:
                text(mapping(found.get("metadata"), "object.metadata"), "resourceVersion", "object.metadata")
                return WatchEvent(EventKind.BOOKMARK, found)
            if kind not in tuple(EventKind):
                raise AnswerError(f"an event of the unknown type {str(kind)[:60]!r}")
            return WatchEvent(EventKind(kind), object_of(found, "object"))


def _hints(verb: str) -> dict[int, str]:
    return {
        403: f"the service account needs the verb {verb} on resourceslices, or an admission rule refuses it",
        404: _NO_API,
    }


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    """What an AnswerError says becomes an ApiError."""
    try:
        yield
    except AnswerError as error:
        raise ApiError(f"{what} answered {error}") from None

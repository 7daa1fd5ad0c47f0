"""Promises of slices over HTTP: what the API server does comes through, what goes wrong is one error, in time."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dra.kube import slices
from dra.kube.slices import NodeSlices
from dra.slices.api import ApiError, EventKind, ForbiddenError, NodeInfo
from hack.wait import wait_until
from tests.unit.dra.api_scenarios import (
    SCENARIOS,
    SLICES,
    Ground,
    a_watch_can_not_start_too_long_ago,
    who_is_nobody_is_told_so,
)
from tests.unit.dra.apiserver import FakeApiServer, Fault, apiserver

PATH = "/resourceslices"


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with apiserver() as fake:
        yield fake


@pytest.fixture
def ground(server: FakeApiServer, tmp_path: Path) -> Ground:
    return Ground(server.kubeconfig(tmp_path), tmp_path)


@pytest.fixture
def api(ground: Ground) -> NodeSlices:
    return ground.api


def problem(call: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("scenario", [*SCENARIOS, a_watch_can_not_start_too_long_ago], ids=lambda each: each.__name__)
def test_the_fake_server_does_as_a_real_one(
    server: FakeApiServer, ground: Ground, scenario: Callable[[Ground], None]
) -> None:
    if scenario is who_is_nobody_is_told_so:
        server.tokens = {"secret"}
    scenario(ground)


def test_features_that_the_kubelet_declared_are_told(ground: Ground, api: NodeSlices) -> None:
    node = ground.create_node()
    assert api.node() == NodeInfo(node["metadata"]["uid"], frozenset())
    node["status"] = {"declaredFeatures": ["A", "DRANodeAllocatableResources", 3]}
    ground.do("PUT", f"/api/v1/nodes/{ground.node}", node)
    assert api.node().declared_features == {"A", "DRANodeAllocatableResources"}


def test_what_a_server_drops_is_missing_in_its_answer(server: FakeApiServer, ground: Ground, api: NodeSlices) -> None:
    server.objects.dropped = frozenset({"allowMultipleAllocations"})
    manifest = ground.manifest()
    manifest["spec"]["devices"][0]["allowMultipleAllocations"] = True
    assert "allowMultipleAllocations" not in api.create(manifest)["spec"]["devices"][0]


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after": "7"}, b"", 7),
        ({"retry-after": "999999"}, b"", 3600),
        ({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}, b"", None),
        ({"retry-after": "-1"}, b'{"details": {"retryAfterSeconds": 3}}', 3),
        ({}, b'{"details": {"retryAfterSeconds": "x"}, "message": 5}', None),
        ({}, b'{"details": []}', None),
    ],
)
def test_how_long_to_wait_is_told(
    server: FakeApiServer, api: NodeSlices, headers: dict[str, str], body: bytes, seconds: float | None
) -> None:
    server.faults = [Fault("GET", PATH, status=429, headers=headers, body=body)]
    error = problem(api.list)
    assert error.retry_after == seconds
    assert "answered 429 (the API server has too much to do)" in str(error)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, b'{"message": "no"}', "403 (the service account needs the verb list on resourceslices, or an admission"),
        (
            404,
            b"404 page not found",
            "404 (it has no resource.k8s.io/v1, which Kubernetes 1.34 and later have): 404 page",
        ),
        (301, b"", "301 (redirects are not followed): "),
        (500, b"\xff\n\x1b[31m", "500: \ufffd ?[31m"),
        (503, b'{"message": ["x"]}', "503 (the API server is not ready): "),
        (200, b"", "what is no JSON: b''"),
        (200, b"[]", "JSON that is a list, no object"),
        (200, b"{}", "metadata that is missing or null, no object"),
        (200, b'{"metadata": {"resourceVersion": 5}}', "metadata.resourceVersion that is a int, no string"),
        (200, b'{"metadata": {"resourceVersion": ""}}', "an empty metadata.resourceVersion"),
        (200, b'{"metadata": {"resourceVersion": "5"}, "items": {}}', "items that are no list"),
        (200, b'{"metadata": {"resourceVersion": "5"}, "items": [null]}', "items[0] that is missing or null"),
        (
            200,
            b'{"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "a", "uid": null}}]}',
            "items[0].metadata.uid that is missing or null, no string",
        ),
    ],
)
def test_any_other_answer_is_one_line(
    server: FakeApiServer, api: NodeSlices, status: int, body: bytes, words: str
) -> None:
    server.faults = [Fault("GET", PATH, status=status, body=body)]
    assert str(problem(api.list)).startswith(f"GET {server.url}{SLICES} answered {words}")


def test_a_list_without_items_is_empty(server: FakeApiServer, api: NodeSlices) -> None:
    server.faults = [Fault(status=200, body=b'{"metadata": {"resourceVersion": "5"}, "items": null}')]
    assert api.list().items == ()


@pytest.mark.parametrize(
    "node",
    [{}, {"metadata": None}, {"metadata": {"uid": 1}}, {"metadata": {"uid": "u"}, "status": {"declaredFeatures": 1}}],
)
def test_a_node_that_is_none_is_an_error(server: FakeApiServer, api: NodeSlices, node: dict[str, Any]) -> None:
    server.faults = [Fault(status=200, body=json.dumps(node).encode())]
    assert "/api/v1/nodes/node-" in str(problem(api.node))


def test_a_refusal_names_the_verb(server: FakeApiServer, ground: Ground, api: NodeSlices) -> None:
    made = api.create(ground.manifest())
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: api.create(ground.manifest()),
        "update": lambda: api.update(made),
        "delete": lambda: api.delete("a", "b", "c"),
        "watch": lambda: next(api.watch("200")),
    }
    for verb, call in calls.items():
        server.faults = [Fault(status=403, body=b'{"message": "denied by policy"}')]
        error = problem(call)
        assert isinstance(error, ForbiddenError)
        assert f"needs the verb {verb} on resourceslices, or an admission rule refuses it): denied" in str(error)


def test_a_change_is_never_sent_twice(server: FakeApiServer, ground: Ground, api: NodeSlices) -> None:
    api.list()  # a connection that is kept
    server.faults = [Fault("POST", raw=b"")]
    assert "POST" in str(problem(lambda: api.create(ground.manifest())))
    assert [each.method for each in server.requests] == ["GET", "POST"]


def test_a_read_is_sent_again_once_on_a_new_connection(server: FakeApiServer, api: NodeSlices) -> None:
    api.list()
    server.faults = [Fault("GET", PATH, raw=b"")]
    api.list()
    server.faults = [Fault("GET", PATH, raw=b"", lasting=True)]
    assert "failed: " in str(problem(api.list))
    assert len(server.requests) == 5


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{}",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 2",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x16\x03\x01\x00\x00",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_an_error(server: FakeApiServer, api: NodeSlices, raw: bytes) -> None:
    server.faults = [Fault("GET", PATH, raw=raw, lasting=True)]
    problem(api.list)
    with suppress(ApiError):  # or it is the end, after a beginning that is one
        assert list(api.watch("200")) == []


@pytest.mark.fault("K4")
def test_a_server_that_hangs_is_given_up(
    server: FakeApiServer, ground: Ground, api: NodeSlices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "REQUEST_TIMEOUT", 0.2)
    server.faults = [Fault(hang=True, lasting=True)]
    calls: tuple[Callable[[], object], ...] = (
        api.node,
        api.list,
        lambda: api.create(ground.manifest()),
        lambda: next(api.watch("200")),
    )
    for call in calls:
        assert str(problem(call)).endswith(" failed: the answer timed out")


def test_a_watch_asks_for_bookmarks_and_a_time_of_its_own(
    server: FakeApiServer, ground: Ground, api: NodeSlices
) -> None:
    watch = api.watch("100")
    assert server.requests == []
    server.objects.bookmark(SLICES)
    assert (event := next(watch)).kind is EventKind.BOOKMARK
    watch.close()
    query = server.requests[0].query
    assert 600 <= int(query.pop("timeoutSeconds")) <= 1200
    assert query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "100",
        "fieldSelector": f"spec.driver=dra.cpu,spec.nodeName={ground.node}",
    }
    assert event.manifest["metadata"] == {"resourceVersion": str(server.objects.version)}


def test_a_watch_that_breaks_after_its_beginning_is_an_end(
    server: FakeApiServer, ground: Ground, api: NodeSlices
) -> None:
    watch = api.watch(api.list().resource_version)
    api.create(ground.manifest())
    assert next(watch).kind is EventKind.ADDED
    server.cut.set()
    assert list(watch) == []


def test_a_watch_with_nothing_to_say_for_long_is_an_end(
    server: FakeApiServer, ground: Ground, api: NodeSlices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "IDLE_LIMIT", 0.1)
    watch = api.watch(api.list().resource_version)
    assert list(watch) == []
    wait_until("a request", lambda: server.requests[-1].query.get("watch"))


def test_a_watch_that_does_not_begin_is_an_error(server: FakeApiServer, api: NodeSlices) -> None:
    for fault in (Fault(raw=b""), Fault(status=500, body=b"x"), Fault(status=429, headers={"retry-after": "1"})):
        server.faults = [fault, fault]
        watch = api.watch("200")
        assert f"GET {server.url}{SLICES} (watch) " in str(problem(lambda watch=watch: next(watch)))  # type: ignore[misc]
        assert list(watch) == [], "after an error it is over"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (b"{\n", "what is no JSON: b'{'"),
        (b"5\n", "an event that is a int, no object"),
        ({"type": "ADDED"}, "an event's object that is missing or null"),
        ({"type": "MOVED", "object": {}}, "an event of the unknown type 'MOVED'"),
        ({"type": [], "object": {}}, "an event of the unknown type '[]'"),
        ({"type": "ADDED", "object": {"metadata": {"name": "a"}}}, "object.metadata.uid that is missing or null"),
        ({"type": "BOOKMARK", "object": {"metadata": []}}, "object.metadata that is a list, no object"),
        ({"type": "ERROR", "object": {"code": 500, "message": "etcd"}}, "500: etcd"),
        ({"type": "ERROR", "object": {"code": "x"}}, "0: "),
    ],
)
def test_an_event_that_is_none_is_an_error(
    server: FakeApiServer, ground: Ground, api: NodeSlices, event: Any, words: str
) -> None:
    server.faults = [Fault("GET", PATH, mangle=lambda _: event)]
    watch = api.watch("100")
    api.create(ground.manifest())
    assert f"(watch) answered {words}" in str(problem(lambda: next(watch)))
    assert list(watch) == []


def test_an_event_without_an_end_is_an_error(
    server: FakeApiServer, ground: Ground, api: NodeSlices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "RESPONSE_LIMIT", 10_000)
    server.faults = [Fault("GET", PATH, mangle=lambda _: b"x" * 20_000)]
    watch = api.watch("100")
    api.create(ground.manifest())
    assert "sent an event larger than 10000 bytes" in str(problem(lambda: next(watch)))


def test_events_in_pieces_and_several_at_once_are_the_same(
    server: FakeApiServer, ground: Ground, api: NodeSlices
) -> None:
    pieces: list[bytes] = []

    def cut(event: Any) -> bytes:
        line = json.dumps(event).encode() + b"\n\n"
        pieces.append(line)
        return line[:10] if len(pieces) == 1 else pieces[0][10:] + line + b'{"type": "BOOK'

    server.faults = [Fault("GET", PATH, mangle=cut)]
    watch = api.watch("100")
    names = [api.create(ground.manifest(index))["metadata"]["name"] for index in range(2)]
    assert [next(watch).manifest["metadata"]["name"] for _ in range(2)] == names
    server.cut.set()
    assert list(watch) == [], "half an event is none"


def closed_while(server: FakeApiServer, api: NodeSlices, waits: Callable[[], bool]) -> list[object]:
    """What came out of a watch that was closed when `waits`."""
    watch = api.watch("200")
    got: list[object] = []

    def use() -> None:
        try:
            got.extend(watch)
        except ApiError as error:
            got.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    wait_until("the watch waits", waits)
    watch.close()
    thread.join(10)
    assert not thread.is_alive()
    return got


def test_a_watch_is_closed_whatever_it_is_at(server: FakeApiServer, api: NodeSlices) -> None:
    assert closed_while(server, api, lambda: server.watches == 1) == []
    server.faults = [Fault(hang=True)]
    assert closed_while(server, api, lambda: len(server.requests) == 2) == []
    server.faults = [Fault(status=200, headers={"content-length": "x"})]
    closed = api.watch("200")
    closed.close()
    assert list(closed) == []
    assert len(server.requests) == 2, "nothing is asked after it"


def test_a_watch_that_was_closed_has_no_descriptors(server: FakeApiServer, ground: Ground, api: NodeSlices) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    api.create(ground.manifest())
    counts = []
    for _ in range(10):
        watch = api.watch("100")
        assert next(watch).kind is EventKind.ADDED
        watch.close()
        wait_until("the server sees it", lambda: not watches(server))
        counts.append(descriptors())
    assert counts[-1] <= counts[0]


def watches(server: FakeApiServer) -> int:
    """How many the server has under way; it notices that a client is gone when it has something to say."""
    server.objects.bookmark(SLICES)
    return server.watches

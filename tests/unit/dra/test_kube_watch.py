"""Promises of watches over HTTP: events as they come, a quiet end when they end, and an end at once when asked for."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra.kube import slices
from dra.kube.slices import NodeSlices
from dra.slices.api import (
    ApiError,
    EventKind,
)
from hack.wait import wait_until
from tests.unit.dra.api_scenarios import (
    SLICES,
    Ground,
    problem,
)
from tests.unit.dra.apiserver import FakeApiServer, Fault

PATH = "/resourceslices"


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


def test_a_watch_on_a_server_that_never_ends_one_ends_by_itself(
    server: FakeApiServer, api: NodeSlices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not silent: the server has something to say each time."""
    monkeypatch.setattr(slices, "_LONGEST_WATCH", slices._SHORTEST_WATCH)
    monkeypatch.setattr(slices, "_GRACE", 0.1 - slices._SHORTEST_WATCH)

    def answered(event: Any) -> Any:
        server.objects.bookmark(SLICES)  # so that the next one comes
        return event

    server.faults = [Fault("GET", PATH, mangle=answered)]
    watch = api.watch("100")
    server.objects.bookmark(SLICES)
    assert {event.kind for event in watch} <= {EventKind.BOOKMARK}

"""Promises of the API client: whatever bytes come, the outcome is an answer or one error of one line."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra.claims import ClaimError
from dra.kube import ApiServer
from dra.slices.api import ApiError, SliceList
from tests.unit.dra.apiserver import FakeApiServer, Fault, apiserver
from tests.unit.dra.kubeconfigs import read
from tests.unit.dra.virtual_time import VirtualTime

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
METADATA: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "", None, 5]),
        "uid": st.sampled_from(["a", "", None, {}]),
        "resourceVersion": st.sampled_from(["5", "", None, 5]),
    },
)
OBJECTS = st.fixed_dictionaries({}, optional={"metadata": METADATA | VALUES, "spec": VALUES, "code": VALUES})
LISTS = st.fixed_dictionaries(
    {}, optional={"metadata": METADATA | VALUES, "items": st.lists(OBJECTS | VALUES, max_size=3) | VALUES}
)
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "", None, 5]) | VALUES,
        "object": OBJECTS | VALUES,
    },
)
HEADS = st.lists(
    st.sampled_from(
        [
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.0 404 \r\n",
            b"HTTP/1.1 204 No Content\r\n",
            b"content-length: 5\r\n",
            b"content-length: -5\r\n",
            b"content-length: 99999999999999999999\r\n",
            b"transfer-encoding: chunked\r\n",
            b"connection: close\r\n",
            b"retry-after: 1e9\r\n",
            b" folded\r\n",
            b"\r\n",
            b"\n",
            b"5\r\n",
            b"-5\r\n",
            b"5;x=y\r\n{}   \r\n",
            b"0\r\n\r\n",
            b"{}",
            b"\xff\x00",
        ]
    ),
    max_size=8,
).map(b"".join)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeApiServer]:
    with apiserver() as fake:
        yield fake


@pytest.fixture(scope="module")
def source(server: FakeApiServer) -> ApiServer:
    with TemporaryDirectory() as directory:
        return ApiServer(server.kubeconfig(Path(directory)), "dra-cpu/test", VirtualTime())


def outcome(call: Any, *errors: type[Exception]) -> object:
    try:
        return call()
    except errors as error:
        words = str(error)
    assert words.isprintable()
    assert len(words) < 2000
    return None


@settings(deadline=None, max_examples=150)
@given(raw=HEADS | st.binary(max_size=100))
def test_bytes(server: FakeApiServer, source: ApiServer, raw: bytes) -> None:
    server.faults = [Fault(raw=raw, lasting=True)]
    api = source.slices("node-a")
    outcome(lambda: read(source), ClaimError)
    outcome(api.list, ApiError)
    outcome(api.node, ApiError)
    outcome(lambda: api.create({}), ApiError)
    outcome(lambda: api.delete("a", "b", "c"), ApiError)
    outcome(lambda: list(api.watch("200")), ApiError)


@settings(deadline=None, max_examples=100)
@given(status=st.integers(100, 999), answer=LISTS | OBJECTS | VALUES)
def test_answers(server: FakeApiServer, source: ApiServer, status: int, answer: Any) -> None:
    server.faults = [Fault(status=status if status >= 200 else 200, body=json.dumps(answer).encode(), lasting=True)]
    api = source.slices("node-a")
    found = outcome(api.list, ApiError)
    if isinstance(found, SliceList):
        assert all(each["metadata"][key] for each in found.items for key in ("name", "uid", "resourceVersion"))
    outcome(api.node, ApiError)
    outcome(lambda: api.create({}), ApiError)
    outcome(lambda: api.update({"metadata": {"name": "a"}}), ApiError)
    outcome(lambda: read(source), ClaimError)


@settings(deadline=None, max_examples=100)
@given(events=st.lists(EVENTS | VALUES, max_size=4))
def test_events(server: FakeApiServer, source: ApiServer, events: list[Any]) -> None:
    body = b"\n".join(json.dumps(event).encode() for event in [*events, {"type": "ERROR", "object": {"code": 410}}])
    server.faults = [Fault(status=200, body=body + b"\n")]
    watch = source.slices("node-a").watch("200")
    while event := outcome(lambda: next(watch), ApiError):
        assert event
    assert list(watch) == []

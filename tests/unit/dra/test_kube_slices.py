"""Promises of slices over HTTP: what the API server does comes through, what goes wrong is one error, in time."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from dra.kube import slices
from dra.kube.slices import NodeSlices
from dra.slices.api import (
    ApiError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NodeInfo,
    NotFoundError,
)
from tests.unit.dra.api_scenarios import (
    SCENARIOS,
    SLICES,
    Ground,
    a_watch_can_not_start_too_long_ago,
    problem,
    who_is_nobody_is_told_so,
)
from tests.unit.dra.apiserver import FakeApiServer, Fault

PATH = "/resourceslices"


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


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, ExpiredError),
        (422, InvalidError),
        (429, ApiError),
        (500, ApiError),
    ],
)
def test_statuses_are_errors_of_their_own(
    server: FakeApiServer, api: NodeSlices, status: int, kind: type[ApiError]
) -> None:
    server.faults = [Fault(status=status, body=b'{"message": "words"}', lasting=True)]
    calls: tuple[Callable[[], object], ...] = (
        api.node,
        api.list,
        lambda: api.create({}),
        lambda: api.update({"metadata": {"name": "a"}}),
        lambda: api.delete("a", "b", "c"),
        lambda: next(api.watch("200")),
    )
    for call in calls:
        error = problem(call)
        assert type(error) is kind
        assert f" answered {status}" in str(error)
        assert str(error).endswith(": words")
        assert str(problem(call)) == str(error), "the same trouble has the same words"


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

"""Promises of claims that can't be read just now: they are asked for again while the kubelet waits, and seldom."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dra.claims import ClaimError, ClaimRef
from dra.kube import ApiServer, claims
from dra.slices.api import ApiError
from hack.wait import wait_until
from tests.unit.dra.apiserver import FakeApiServer, Fault, apiserver
from tests.unit.dra.manifests import UID, manifest
from tests.unit.dra.virtual_time import VirtualTime

REF = ClaimRef(UID, "default", "one")
# The kubelet's 45 s, less what is left for the answer.
DEADLINE = 44.0


@pytest.fixture
def clock() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def source(server: FakeApiServer, tmp_path: Path, clock: VirtualTime) -> ApiServer:
    server.put(manifest())
    return ApiServer(server.kubeconfig(tmp_path), "dra-cpu/test", clock)


def refusal(source: ApiServer, deadline: float = DEADLINE) -> str:
    with pytest.raises(ClaimError) as caught:
        source.reader(deadline)(REF)
    return str(caught.value)


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault(status=status, body=b"{}") for status in (429, 500, 502, 503, 504)),
        Fault(raw=b""),
        Fault(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}"),
        Fault(raw=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{}"),
    ],
    ids=lambda fault: str(fault.status or fault.raw),
)
def test_trouble_that_passes_refuses_no_claim(
    server: FakeApiServer, source: ApiServer, clock: VirtualTime, fault: Fault
) -> None:
    server.faults = [fault, fault]
    assert source.reader(DEADLINE)(REF) == manifest()
    assert len(server.requests) == 3
    assert clock.now() == 0.75


def test_a_server_that_is_started_meanwhile_is_asked(tmp_path: Path, clock: VirtualTime) -> None:
    with apiserver() as before:
        pass
    source = ApiServer(before.kubeconfig(tmp_path), "dra-cpu/test", clock)
    with ExitStack() as stack:

        def start() -> None:
            stack.enter_context(apiserver(port=urlsplit(before.url).port or 0)).put(manifest())

        clock.at(20, start)
        assert source.reader(DEADLINE)(REF) == manifest()
        assert clock.now() < 30


def test_a_server_that_asks_to_wait_is_left_alone_so_long(
    server: FakeApiServer, source: ApiServer, clock: VirtualTime
) -> None:
    server.faults = [Fault(status=429, headers={"retry-after": "7"})]
    assert source.reader(DEADLINE)(REF) == manifest()
    assert clock.now() == 7


def test_a_server_that_asks_for_more_than_there_is_is_not_waited_for(
    server: FakeApiServer, source: ApiServer, clock: VirtualTime
) -> None:
    server.faults = [Fault(status=429, headers={"retry-after": "44"}, body=b"busy")]
    assert refusal(source).endswith("answered 429 (the API server has too much to do): busy")
    assert clock.now() == 0


def test_trouble_that_does_not_pass_is_told_in_time_after_few_attempts(
    server: FakeApiServer, source: ApiServer, clock: VirtualTime
) -> None:
    server.faults = [Fault(status=503, body=b"etcd", lasting=True)]
    assert refusal(source).endswith(
        f"answered 503 (the API server is not ready): etcd; asked {len(server.requests)} times"
    )
    assert 30 < clock.now() < DEADLINE
    assert len(server.requests) <= 12


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 409, 422])
def test_what_waiting_does_not_help_is_told_at_once(
    server: FakeApiServer, source: ApiServer, clock: VirtualTime, status: int
) -> None:
    server.faults = [Fault(status=status)]
    assert f"answered {status}" in refusal(source)
    assert len(server.requests) == 1
    assert clock.now() == 0


@pytest.mark.fault("K4")
def test_a_server_that_took_all_its_time_gets_no_other_call_into_its_queue(
    server: FakeApiServer, source: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "GET_TIMEOUT", 0.2)
    server.faults = [Fault(hang=True)]
    assert refusal(source).endswith("can't be read: the answer timed out")
    assert len(server.requests) == 1


@pytest.mark.parametrize("fault", [Fault(hang=True, lasting=True), Fault(status=503, headers={"retry-after": "30"})])
def test_the_end_waits_for_no_read(server: FakeApiServer, tmp_path: Path, fault: Fault) -> None:
    server.put(manifest())
    server.faults = [fault]
    source = ApiServer(server.kubeconfig(tmp_path), "dra-cpu/test")
    deadline = source._clock.now() + 3600
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(refusal(source, deadline)))
    thread.start()
    wait_until("the request", lambda: server.requests)
    source.close()
    thread.join(8)  # less than a request may take
    assert not thread.is_alive()
    assert told
    assert "the end has come" in refusal(source, deadline)
    assert len(server.requests) == 1
    assert source.slices("node-a")._client is not source.client, "what publishes ends by itself"


@pytest.mark.parametrize("call", ["close", "read"])
def test_the_end_may_come_twice_and_before_the_first_read(source: ApiServer, call: str) -> None:
    calls: dict[str, Callable[[], object]] = {"close": source.close, "read": lambda: refusal(source)}
    source.close()
    calls[call]()


def test_an_answer_that_ends_before_its_length_is_none_whatever_it_says(
    server: FakeApiServer, source: ApiServer
) -> None:
    whole = b'{"metadata": {"uid": "u"}}'
    server.faults = [Fault(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + whole, lasting=True)]
    with pytest.raises(ApiError, match="the answer ended too early"):
        source.slices("node-a").node()

"""Promises of connections: each address of a name gets its time, and no resolver takes more than there is."""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dra.kube.bounded import Bounded
from dra.kube.connection import Connection
from dra.kube.slices import NodeSlices
from hack.wait import wait_until
from tests.unit.dra.api_scenarios import Ground, problem
from tests.unit.dra.apiserver import FakeApiServer, Fault

NAME = "api.example"
LOOK_UP = socket.getaddrinfo
# Of addresses that no kernel knows.
NO_FAMILY = 127


def address(port: int, family: int = socket.AF_INET) -> tuple[Any, ...]:
    return family, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)


def resolve(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], list[tuple[Any, ...]]]) -> None:
    """What the system's resolver says of NAME."""

    def getaddrinfo(host: str, *args: Any, **kwargs: Any) -> Any:
        if host != NAME or kwargs.get("flags", 0) & socket.AI_NUMERICHOST:
            return LOOK_UP(host, *args, **kwargs)
        return answer()

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made.getsockname()[1]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that answers nobody: its queue is full."""
    with ExitStack() as stack:
        made = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(made.getsockname())
        yield made.getsockname()[1]


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    made.ends = time.monotonic() + 10
    yield made
    made.close()


def test_an_address_of_a_kind_that_the_kernel_has_not_is_passed_over(
    connection: Connection, listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where version 6 is switched off."""
    resolve(monkeypatch, lambda: [address(listening, NO_FAMILY), address(listening)])
    connection.connect(NAME, listening)
    assert connection.connected


def test_an_address_that_does_not_answer_leaves_time_for_the_next_one(
    connection: Connection, silent: int, listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, lambda: [address(silent), address(listening)])
    connection.ends = time.monotonic() + 1
    connection.connect(NAME, listening)
    assert connection.connected


@pytest.mark.parametrize("number", [0, 1, 3])
def test_what_no_address_takes_is_one_error(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    resolve(monkeypatch, lambda: [address(1, NO_FAMILY), address(1), address(1)][:number])
    with pytest.raises(OSError, match=r"has no address|not supported|refused") as caught:
        connection.connect(NAME, 1)
    assert caught.value.errno == {0: None, 1: errno.EAFNOSUPPORT, 3: errno.ECONNREFUSED}[number]


def test_of_an_address_nobody_is_asked(connection: Connection, listening: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bounded, "call", None)
    connection.connect("127.0.0.1", listening)
    assert connection.connected


def test_a_name_that_is_none_is_told_by_the_resolver(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> list[tuple[Any, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    resolve(monkeypatch, answer)
    with pytest.raises(socket.gaierror, match="not known"):
        connection.connect(NAME, 1)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A resolver that does not answer; set when it is asked."""
    asked, end = threading.Event(), threading.Event()

    def answer() -> list[tuple[Any, ...]]:
        asked.set()
        end.wait(30)
        return []

    resolve(monkeypatch, answer)
    yield asked
    end.set()


@pytest.mark.fault("K4")
def test_a_resolver_that_hangs_is_given_up_in_time(connection: Connection, hanging: threading.Event) -> None:
    connection.ends = time.monotonic() + 0.1
    with pytest.raises(TimeoutError):
        connection.connect(NAME, 1)
    assert hanging.is_set()


def test_a_watch_is_closed_while_the_resolver_hangs(ground: Ground, api: NodeSlices, hanging: threading.Event) -> None:
    api._client._host = NAME
    watch = api.watch("200")
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.extend(watch))
    thread.start()
    assert hanging.wait(10)
    watch.close()
    thread.join(10)
    assert not thread.is_alive()
    assert got == []


def test_a_connection_that_was_shut_looks_nothing_up(connection: Connection, hanging: threading.Event) -> None:
    connection.shut()
    with pytest.raises(OSError, match="the connection was ended"):
        connection.connect(NAME, 1)
    with pytest.raises(OSError, match="the connection was ended"):
        Connection.connect(connection, "127.0.0.1", 1)


def test_a_connection_that_is_new_is_not_tried_twice(server: FakeApiServer, api: NodeSlices) -> None:
    server.faults = [Fault("GET", raw=b"", lasting=True)]
    assert "failed: " in str(problem(api.list))
    wait_until("the request", lambda: len(server.requests) == 1)


def test_a_peer_that_is_gone_without_a_word_is_noticed(connection: Connection, listening: int) -> None:
    connection.connect("127.0.0.1", listening)
    made = connection._socket
    assert made
    assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle, between, probes = (
        made.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert idle + between * probes <= 60


def test_connections_that_nobody_used_for_long_are_not_kept(
    server: FakeApiServer, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ground.api._client
    server.hold = threading.Event()
    threads = [threading.Thread(target=client.request, args=("GET", "/", 10)) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until("three requests at once", lambda: len(server.requests) == 3)
    server.hold.set()
    for thread in threads:
        thread.join(10)
    assert len(client._kept) == 3
    monkeypatch.setattr("dra.kube.client._KEEP_SECONDS", 0)
    client.request("GET", "/", 10)
    assert len(client._kept) == 1
    assert server.connections == 3

"""Promises of the server on our socket: what it replaces, what it leaves alone, and how it ends."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra.kubelet.server import ServerError, UnixServer, refuse_served
from hack.wait import wait_until
from tests.protocol.fake_kubelet import call

ECHO = "/test.Service/Echo"


def echo(before: Callable[[], object] = lambda: None) -> list[grpc.GenericRpcHandler]:
    """A service whose one method gives back what it gets, after `before`."""

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        before()
        return request

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)
    return [grpc.method_handlers_generic_handler("test.Service", {"Echo": handler})]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dra/dra.sock"


@contextlib.contextmanager
def serving(path: Path, before: Callable[[], object] = lambda: None, workers: int = 4) -> Iterator[UnixServer]:
    server = UnixServer(path, echo(before), workers)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def answers(path: Path) -> bool:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        return call(channel, ECHO, b"there?", 30) == b"there?"


@pytest.mark.fault("K7")
def test_a_stale_socket_is_replaced_and_ours_is_removed_at_the_end(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with serving(path):
        assert answers(path)
    assert not path.exists()


@pytest.mark.fault("K7")
def test_a_socket_that_somebody_serves_is_left_alone(path: Path) -> None:
    with serving(path):
        for ask in (UnixServer(path, []).start, lambda: refuse_served(path)):
            with pytest.raises(ServerError, match=r"another process serves .*dra.sock: end it first"):
                ask()
        assert answers(path)


@pytest.mark.fault("K8")
def test_a_kubelet_that_keeps_its_connection_finds_the_next_instance(path: Path) -> None:
    with grpc.insecure_channel(f"unix:{path}", [("grpc.min_reconnect_backoff_ms", 100)]) as kept:
        raw: Any = kept.unary_unary(ECHO)
        for number in (b"1", b"2"):
            with serving(path):
                assert raw(number, timeout=30, wait_for_ready=True) == number


@pytest.mark.fault("A25", "A36")
def test_at_its_end_a_call_under_way_is_answered_and_no_other_is_taken(path: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go.wait(30)

    server = UnixServer(path, echo(wait))
    server.start()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        raw: Any = channel.unary_unary(ECHO)
        under_way = raw.future(b"first", timeout=30)
        assert begun.wait(30)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        wait_until("no connection is taken", lambda: not path.exists())
        go.set()
        assert under_way.result() == b"first"
        stopping.join(30)
        with pytest.raises(grpc.RpcError):
            raw(b"second", timeout=1)


def test_calls_beyond_the_workers_wait_for_their_turn(path: Path) -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        begun.release()
        assert go.wait(30)

    with serving(path, wait, workers=2), grpc.insecure_channel(f"unix:{path}") as channel:
        raw: Any = channel.unary_unary(ECHO)
        calls = [raw.future(b"%d" % number, timeout=30) for number in range(5)]
        assert begun.acquire(timeout=30)
        assert begun.acquire(timeout=30)
        assert not begun.acquire(blocking=False)
        go.set()
        assert [each.result() for each in calls] == [b"%d" % number for number in range(5)]


@pytest.mark.fault("K7")
def test_asking_whether_somebody_serves_changes_nothing(path: Path) -> None:
    refuse_served(path)
    assert not path.parent.exists()
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    refuse_served(path)
    assert path.is_socket()


def test_a_socket_that_takes_no_more_connections_is_not_taken_for_a_stale_one(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(path))
        busy.listen(0)
        first.connect(str(path))
        with pytest.raises(ServerError, match=r"whether a process serves .*dra.sock is unknown: "):
            refuse_served(path)
    assert path.is_socket()


@pytest.mark.fault("K7", "K9")
def test_a_socket_that_another_instance_made_meanwhile_is_left_alone(path: Path) -> None:
    with serving(path) as first:
        assert first.is_there()
        path.unlink()
        with serving(path) as second:
            assert second.is_there()
            assert not first.is_there()
            with pytest.raises(ServerError, match=r"another process serves .*dra.sock: end it first"):
                first.start()
            first.stop()
            assert answers(path)


@pytest.mark.fault("K7")
@pytest.mark.parametrize("directory", [False, True], ids=["socket", "directory"])
def test_a_socket_that_somebody_removes_is_served_again_and_no_call_is_lost(path: Path, directory: bool) -> None:
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go.wait(30)

    with serving(path, wait) as server, grpc.insecure_channel(f"unix:{path}") as channel:
        raw: Any = channel.unary_unary(ECHO)
        under_way = raw.future(b"first", timeout=30)
        assert begun.wait(30)
        path.unlink()
        if directory:
            path.parent.rmdir()
        assert not server.is_there()
        server.start()
        assert server.is_there()
        go.set()
        assert under_way.result() == b"first"
        assert answers(path)
        assert raw(b"second", timeout=30, wait_for_ready=True) == b"second"
        assert [each.name for each in path.parent.iterdir()] == ["dra.sock"]
    assert list(path.parent.iterdir()) == []


@pytest.mark.fault("A31")
def test_a_path_that_is_too_long_is_told_in_bytes() -> None:
    root = Path("/" + "ä" * 36)  # 73 bytes: what is left for the root beside the longest socket
    UnixServer(root / "plugins_registry/dra.cpu-reg.sock", [])
    with pytest.raises(ServerError, match=r"has 108 bytes, 1 more than a socket's may have: give .* --root-dir"):
        UnixServer(Path(f"{root}x") / "plugins_registry/dra.cpu-reg.sock", [])


@pytest.mark.fault("A31")
def test_the_longest_path_that_a_socket_may_have_is_served() -> None:
    with tempfile.TemporaryDirectory(prefix="k") as short:
        path = Path(short) / ("r" * (107 - len(f"{short}//dra.cpu-reg.sock"))) / "dra.cpu-reg.sock"
        assert len(str(path)) == 107
        with serving(path), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))


@pytest.mark.parametrize("name", ["with blank", "100%41", "ä", "a#b?c"])
def test_any_name_of_a_directory_will_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "dra.sock"
    with serving(path), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
    assert list(path.parent.iterdir()) == []


def test_what_is_no_socket_is_not_removed(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(ServerError, match=r"dra.sock is no socket: remove it"):
        UnixServer(path, []).start()
    assert path.read_text() == "mine"


@pytest.mark.fault("A36")
def test_a_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerError, match=r"file/plugins/dra.sock can't be made: Not a directory"):
        UnixServer(tmp_path / "file/plugins/dra.sock", []).start()

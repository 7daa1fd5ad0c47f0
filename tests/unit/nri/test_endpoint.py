"""Ways to a runtime, good and bad: each bad one has a line that names it and the way out."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nri_cpu.nri.endpoint import InheritedFd, SocketPath, open_socket
from nri_cpu.nri.errors import EndpointError, UnreachableError


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes what tests open."""
    with ExitStack() as stack:
        yield stack


def listening(path: Path, opened: ExitStack, backlog: int = 1) -> socket.socket:
    listener = opened.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(path))
    listener.listen(backlog)
    return listener


def test_a_listening_socket_is_connected_to(tmp_path: Path, opened: ExitStack) -> None:
    listener = listening(tmp_path / "nri.sock", opened)
    ours = opened.enter_context(open_socket(SocketPath(str(tmp_path / "nri.sock"))))
    theirs = opened.enter_context(listener.accept()[0])
    theirs.sendall(b"hello")
    assert ours.recv(9) == b"hello"


def _nothing(path: Path, opened: ExitStack) -> None: ...


def _directory_missing(path: Path, opened: ExitStack) -> None:
    path.parent.rmdir()


def _not_a_directory(path: Path, opened: ExitStack) -> None:
    path.parent.rmdir()
    path.parent.touch()


def _regular_file(path: Path, opened: ExitStack) -> None:
    path.write_text("not a socket")


def _directory(path: Path, opened: ExitStack) -> None:
    path.mkdir()


def _left_over(path: Path, opened: ExitStack) -> None:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))


def _datagrams(path: Path, opened: ExitStack) -> None:
    opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(str(path))


def _loop(path: Path, opened: ExitStack) -> None:
    path.symlink_to(path)


def _queue_full(path: Path, opened: ExitStack) -> None:
    listening(path, opened, backlog=0)
    opened.enter_context(open_socket(SocketPath(str(path))))


@pytest.mark.fault("R6", "N7")
@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (_nothing, "no socket at {}: is the runtime running, and NRI enabled"),
        (_directory_missing, "no socket at {}: is the runtime running"),
        (_not_a_directory, "cannot connect to {}: Not a directory"),
        (_regular_file, "{} is not a socket: name the runtime's NRI socket"),
        (_directory, "{} is not a socket: name the runtime's NRI socket"),
        (_left_over, "nobody listens at {}: the runtime is down"),
        (_datagrams, "cannot connect to {}: Protocol wrong type for socket"),
        (_loop, "cannot connect to {}: Too many levels of symbolic links"),
        (_queue_full, "the runtime does not accept connections at {} now"),
    ],
)
def test_no_connection_now_has_a_reason_and_may_have_one_later(
    tmp_path: Path, opened: ExitStack, prepare: Callable[[Path, ExitStack], None], text: str
) -> None:
    path = tmp_path / "nri" / "nri.sock"
    path.parent.mkdir()
    prepare(path, opened)
    with pytest.raises(UnreachableError) as raised:
        open_socket(SocketPath(str(path)))
    assert text.format(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root is refused nothing, so do as somebody else for a moment."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_lack_of_permission_is_named(tmp_path: Path, opened: ExitStack) -> None:
    path = tmp_path / "nri.sock"
    listening(path, opened)
    path.chmod(0)
    with unprivileged(), pytest.raises(UnreachableError, match=f"no permission to connect to {path}"):
        open_socket(SocketPath(str(path)))


@pytest.mark.parametrize(
    ("path", "text"),
    [("", "not the path of a socket"), ("a\0b", "not the path of a socket"), ("/" + "x" * 107, "has 108 bytes")],
)
def test_what_can_be_no_path_of_a_socket_is_refused_at_once(path: str, text: str) -> None:
    with pytest.raises(EndpointError, match=text):
        SocketPath(path)


def test_the_longest_path_is_taken() -> None:
    SocketPath("/" + "x" * 106)


def test_an_inherited_connection_is_taken_over_and_not_passed_on() -> None:
    theirs, ours = socket.socketpair()
    os.set_inheritable(ours.fileno(), True)
    with theirs, open_socket(InheritedFd(ours.detach())) as inherited:
        assert not inherited.get_inheritable()
        theirs.sendall(b"hello")
        assert inherited.recv(9) == b"hello"


@pytest.mark.parametrize("fd", [-1, 987654, 2**31, 2**70])
def test_a_descriptor_that_is_not_open_is_refused(fd: int) -> None:
    with pytest.raises(EndpointError, match=f"file descriptor {fd} is no open socket.*NRI_PLUGIN_SOCKET"):
        open_socket(InheritedFd(fd))


@pytest.mark.parametrize(
    "make",
    [
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    ],
    ids=["not connected", "datagrams", "internet"],
)
def test_a_socket_that_is_no_connection_to_a_runtime_is_refused_and_left_open(
    make: Callable[[], socket.socket],
) -> None:
    with make() as wrong:
        with pytest.raises(EndpointError, match=f"file descriptor {wrong.fileno()} .*unset it"):
            open_socket(InheritedFd(wrong.fileno()))
        os.fstat(wrong.fileno())


def test_a_file_is_no_socket_and_left_open() -> None:
    with Path("/dev/null").open("rb") as file:
        with pytest.raises(EndpointError, match="no open socket"):
            open_socket(InheritedFd(file.fileno()))
        os.fstat(file.fileno())

"""The gRPC server on our unix socket: a stale one is removed, one that somebody serves is left alone (fault K7)."""

from __future__ import annotations

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote
from zlib import crc32

import grpc

from dra.devices import DRIVER

# sockaddr_un.sun_path has 108 bytes with its NUL (unix(7)).
SOCKET_PATH_LIMIT = 107
# More than a node has pods, whose Prepares may all wait for the API server: Unprepare does without it, and must not
# wait behind them (fault K4). Streams of health need some too. Threads are made when they are needed.
_WORKERS = 256
# How names begin that sockets have until they take calls; seven hexadecimal digits follow.
MADE = f".{DRIVER}-"
# What calls under way may still take when the server stops.
_GRACE = 10.0


class ServerError(Exception):
    """The socket can't be served; the message names it and the way out."""


class UnixServer:
    """A gRPC server at `path`, whose directory is made if need be (mode 0750, as the kubelet makes its own).

    `workers`: how many calls are answered at once; further ones wait.
    """

    def __init__(self, path: Path, handlers: list[grpc.GenericRpcHandler], workers: int = _WORKERS) -> None:
        """Raises ServerError for a path that no socket can have."""
        check_length(path)
        self._path = path
        self._handlers = handlers
        # No options: the kubelet keeps one idle connection for ever, and must not be cut off (fault K8).
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="kubelet")
        self._server: grpc.Server | None = None
        self._bound: tuple[int, int] | None = None

    @property
    def path(self) -> Path:
        return self._path

    def start(self) -> None:
        """Serve; the socket takes calls when this returns. Raises ServerError.

        Again, when the socket has gone: a new one is served, and calls under way on the old one have their time to end.
        """
        # gRPC removes what has the name that it was given, at its end too: this one nobody else has. It is no longer
        # than the kubelet's for us, which passes over hidden files.
        made = self._path.with_name(f"{MADE}{crc32(os.fsencode(self._path.name)) >> 4:07x}")
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            is_stale(self._path)  # one that is served is left alone, another one replaced
            server = grpc.server(self._workers, self._handlers)
            # gRPC decodes the address as a URI.
            server.add_insecure_port(f"unix:{quote(os.fspath(made))}")
            server.start()
            bound = _identity(made)
            made.rename(self._path)
        except OSError as error:
            raise ServerError(f"the socket {self._path} can't be made: {error.strerror}") from error
        except RuntimeError as error:
            raise ServerError(f"the socket {self._path} can't be made: check the directory's mode and mount") from error
        if self._server:
            self._server.stop(_GRACE)
        self._server, self._bound = server, bound

    def is_there(self) -> bool:
        """Whether the socket is where it was made; without it nobody who comes later finds us."""
        try:
            return _identity(self._path) == self._bound
        except OSError:
            return False

    def stop(self) -> None:
        """Take no more calls, let those under way end, remove the socket."""
        if self.is_there():
            self._path.unlink(missing_ok=True)
        if self._server:
            self._server.stop(_GRACE).wait()
        self._workers.shutdown(wait=False)


def check_length(path: Path) -> None:
    """Raises ServerError, with the numbers, when `path` has more bytes than a socket's may have (fault A31)."""
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_LIMIT:
        raise ServerError(
            f"the socket path {path} has {length} bytes, {length - SOCKET_PATH_LIMIT} more than a socket's may have: "
            "give the kubelet a shorter --root-dir"
        )


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def refuse_served(path: Path) -> None:
    """Raises ServerError when another process serves the socket at `path`, or when it is none; changes nothing."""
    is_stale(path)


def is_stale(path: Path) -> bool:
    """Whether a socket is at `path` that nobody serves; raises as `refuse_served`."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ServerError(f"the socket {path} can't be looked at: {error.strerror}; check its directory") from error
    if not stat.S_ISSOCK(mode):
        raise ServerError(f"{path} is no socket: remove it")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ServerError(
                f"whether a process serves {path} is unknown: {error.strerror or error}; end it, or remove the socket"
            ) from error
    raise ServerError(f"another process serves {path}: end it first")

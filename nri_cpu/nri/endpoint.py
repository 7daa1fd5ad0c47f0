"""The two ways to a runtime: its socket in the file system, and a descriptor that a plugin started by it inherits."""

from __future__ import annotations

import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nri_cpu.nri.errors import EndpointError, UnreachableError

# sockaddr_un has 108 bytes, the last of them zero (unix(7)).
_LONGEST_PATH: Final = 107


@dataclass(frozen=True, slots=True)
class SocketPath:
    """The runtime's socket, by default /var/run/nri/nri.sock. Raises EndpointError for what can be no path of one."""

    path: str

    def __post_init__(self) -> None:
        raw = os.fsencode(self.path)
        if not raw or b"\0" in raw:
            raise EndpointError(f"{self.path!r} is not the path of a socket: name the runtime's NRI socket")
        if len(raw) > _LONGEST_PATH:
            raise EndpointError(f"{self.path!r} has {len(raw)} bytes, a socket's path at most {_LONGEST_PATH}")


@dataclass(frozen=True, slots=True)
class InheritedFd:
    """A connected stream socket, open in this process: what NRI_PLUGIN_SOCKET tells a plugin started by the runtime."""

    fd: int


Endpoint = SocketPath | InheritedFd


def open_socket(endpoint: Endpoint) -> socket.socket:
    """A connected socket; never waits. An inherited one is taken over, and can be opened once.

    Raises UnreachableError when another try may help, EndpointError when none can.
    """
    return _connect(endpoint.path) if isinstance(endpoint, SocketPath) else _inherit(endpoint.fd)


def _connect(path: str) -> socket.socket:
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Connecting to a local socket is done at once or not at all, so this needs no event loop: when the runtime's
    # queue is full it fails (EAGAIN).
    connecting.setblocking(False)
    try:
        connecting.connect(path)
    except OSError as error:
        connecting.close()
        raise UnreachableError(_why(path, error)) from error
    return connecting


def _why(path: str, error: OSError) -> str:
    match error.errno:
        case errno.ENOENT:
            return f"no socket at {path}: is the runtime running, and NRI enabled in its configuration?"
        case errno.ECONNREFUSED if not _is_socket(path):
            return f"{path} is not a socket: name the runtime's NRI socket"
        case errno.ECONNREFUSED:
            return f"nobody listens at {path}: the runtime is down, or the file is left over from an earlier one"
        case errno.EACCES | errno.EPERM:
            return f"no permission to connect to {path}: the runtime's socket is root's"
        case errno.EAGAIN:
            return f"the runtime does not accept connections at {path} now: too many are waiting"
    return f"cannot connect to {path}: {error.strerror or error}"


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return True  # gone in between, or out of sight: nothing is known against it


def _inherit(fd: int) -> socket.socket:
    wanted = "the runtime sets NRI_PLUGIN_SOCKET for plugins that it starts; unset it to connect to a socket's path"
    try:
        inherited = socket.socket(fileno=fd)
    except (OSError, ValueError, OverflowError) as error:
        raise EndpointError(f"file descriptor {fd} is no open socket ({error}): {wanted}") from error
    if (inherited.family, inherited.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
        inherited.detach()  # not ours to close
        raise EndpointError(f"file descriptor {fd} is not a local stream socket: {wanted}")
    try:
        inherited.getpeername()
    except OSError as error:
        inherited.detach()
        raise EndpointError(f"file descriptor {fd} is not a connected socket ({error.strerror}): {wanted}") from error
    inherited.set_inheritable(False)
    return inherited

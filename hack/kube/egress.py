"""The API server's way to kubelets, for logs and exec: an HTTP CONNECT proxy at a unix socket, into the boxes.

Boxes have the same address, so that names tell them apart: the API server asks for <node's name>:<port>.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from hack.node.errors import ChannelError
from hack.node.relay import Relay

_HEAD_LIMIT = 1 << 14
_END = b"\r\n\r\n"

Connect = Callable[[str, int], socket.socket]
"""Connects to a TCP port of a node by name; raises ChannelError."""


class Egress(Relay):
    """Context manager: inside it the proxy takes connections at `path`."""

    def __init__(self, path: Path, connect: Connect) -> None:
        super().__init__(path, self._refuse)
        self._reach = connect

    def _refuse(self) -> socket.socket:
        raise ChannelError("a proxy connects to what it is asked for")

    def _join(self, client: socket.socket) -> socket.socket:
        host, port = _target(client)
        server = self._reach(host, port)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        return server


def _target(client: socket.socket) -> tuple[str, int]:
    """Host and port of the CONNECT request; raises ChannelError."""
    head = b""
    while not head.endswith(_END):  # one by one: what follows is the client's
        byte = client.recv(1)
        if not byte or len(head) > _HEAD_LIMIT:
            raise ChannelError(f"no CONNECT request: {head[:100]!r}")
        head += byte
    method, _, rest = head.decode(errors="replace").partition(" ")
    host, _, port = rest.split(" ", 1)[0].rpartition(":")
    if method != "CONNECT" or not port.isdecimal():
        raise ChannelError(f"no CONNECT request: {head[:100]!r}")
    return host, int(port)

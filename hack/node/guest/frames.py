"""The box's command channel: what goes over one of its connections. One file for the guest's agent and the host.

A connection begins with a request, a REQUEST frame whose data is JSON, and serves that alone:

    {"hello": {"time": seconds, "seed": hex}}  ANSWER {"boot": id}; time and seed are optional: set the clock, stir
                                               the random numbers, as a copy of a frozen machine must
    {"run": [argv], "env": {}, "cwd": "/"}     STDIN frames in (an empty one is the end), STDOUT and STDERR frames
                                               out, then ANSWER {"code": n}; -n when signal n ended it. When the
                                               connection breaks before, the command's process group is killed
    {"connect": "/path/of.sock"}               ANSWER {}, then raw bytes both ways; a number is a TCP port

An ANSWER {"error": text} says why a request can't be served.
A frame is one byte of kind, four of length (big endian), data.
"""

from __future__ import annotations

import json
import socket
import struct
from contextlib import suppress
from typing import Any

REQUEST, STDIN, STDOUT, STDERR, ANSWER = range(5)

# The port that the agent listens on inside the box.
PORT = 7000

CHUNK = 1 << 16
_HEAD = struct.Struct(">BI")
_LIMIT = 1 << 20


class BrokenChannelError(Exception):
    """The other end closed in the middle, or sent what is no frame."""


def send(connection: socket.socket, kind: int, data: bytes) -> None:
    connection.sendall(_HEAD.pack(kind, len(data)) + data)


def send_json(connection: socket.socket, kind: int, value: object) -> None:
    send(connection, kind, json.dumps(value).encode())


def receive(connection: socket.socket) -> tuple[int, bytes]:
    """The next frame: kind and data; raises BrokenChannelError."""
    kind, length = _HEAD.unpack(_exactly(connection, _HEAD.size))
    if kind > ANSWER or length > _LIMIT:
        raise BrokenChannelError(f"no frame: kind {kind}, {length} bytes")
    return kind, _exactly(connection, length)


def receive_json(connection: socket.socket, kind: int) -> dict[str, Any]:
    """The next frame, which must be of `kind` and hold a JSON object; raises BrokenChannelError."""
    seen, data = receive(connection)
    if seen != kind:
        raise BrokenChannelError(f"expected a frame of kind {kind}, got {seen}: {data[:100]!r}")
    return decode(data)


def decode(data: bytes) -> dict[str, Any]:
    """The JSON object of a frame; raises BrokenChannelError."""
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BrokenChannelError(f"no JSON object: {data[:100]!r}")
    return value


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), CHUNK))
        if not part:
            raise BrokenChannelError("the other end closed the connection")
        data += part
    return bytes(data)


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until `source` ends, then end `target`'s direction; errors end it likewise."""
    with suppress(OSError):
        while part := source.recv(CHUNK):
            target.sendall(part)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)

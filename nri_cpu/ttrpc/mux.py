"""The multiplexer below ttrpc: several byte streams, called connections, over one transport.

A mux frame is a header of eight bytes, big-endian: connection id and payload length (four each), then the payload, an
arbitrary slice of that connection's stream (containerd/nri, pkg/net/multiplex). Opening and closing a connection is
not on the wire.
"""

from __future__ import annotations

import struct

from nri_cpu.ttrpc.errors import LocalError, ProtocolError
from nri_cpu.ttrpc.frames import HEADER_SIZE, MAX_DATA

_HEADER = struct.Struct(">II")
MUX_SIZE = _HEADER.size

# The most that any known sender puts into one frame (ttrpcMessageMax before NRI 0.7: 1 << 24; since then 4 MiB + 10).
MAX_RECEIVED = 1 << 24
# A Go peer's read buffer: the first frame of a message must fit into it, or the connection is dead.
MAX_FIRST = 4096
# The longest ttrpc message, and so the most that we put into one frame.
MAX_MESSAGE = HEADER_SIZE + MAX_DATA


class MuxReader:
    """Cuts the transport's bytes into slices of the connections' streams, wherever it is split.

    Payload is handed on as it comes, so that no more than an unfinished header is ever held.
    """

    __slots__ = ("_broken", "_connection", "_held", "_left")

    def __init__(self) -> None:
        self._held = b""  # an unfinished header
        self._connection = 0  # whose payload is under way
        self._left = 0  # how many bytes of it are still to come
        self._broken = ""  # why nothing can be read any more

    @property
    def buffered(self) -> int:
        """How many bytes of an unfinished header are held."""
        return len(self._held)

    @property
    def idle(self) -> bool:
        """Whether the next byte begins a frame."""
        return not self._held and not self._left and not self._broken

    def feed(self, data: bytes | memoryview) -> list[tuple[int, memoryview]]:
        """What `data` holds, in order: connection id and a slice, never empty, of that connection's stream. Slices are
        views of `data`, so that a long message is copied only where it is put together.

        Raises ProtocolError, now and ever after, for a frame of more than MAX_RECEIVED bytes.
        """
        if self._broken:
            raise ProtocolError(self._broken)
        found: list[tuple[int, memoryview]] = []
        connection, left, at = self._connection, self._left, 0
        if self._held:
            data = self._held + data
            self._held = b""
        view = memoryview(data)
        end = len(view)
        while True:
            if left:
                stop = min(at + left, end)
                if stop > at:
                    found.append((connection, view[at:stop]))
                left -= stop - at
                at = stop
            if end - at < _HEADER.size:
                break
            connection, left = _HEADER.unpack_from(view, at)
            at += _HEADER.size
            if left > MAX_RECEIVED:
                self._broken = f"mux frame of {left} bytes on connection {connection}, the most is {MAX_RECEIVED}"
                raise ProtocolError(self._broken)
        self._connection, self._left = connection, left
        self._held = bytes(view[at:])
        return found


def encode(connection: int, message: bytes) -> bytes:
    """The mux frames of one whole ttrpc message, cut so that a Go peer can read them.

    Up to MAX_FIRST bytes are one frame. More are two, the ttrpc header and the data: a Go peer offers its small buffer
    for the first and one that fits for the second, and drops the transport when more than 256 frames wait.
    Raises LocalError for more than MAX_MESSAGE bytes.
    """
    size = len(message)
    if size <= MAX_FIRST:
        return _HEADER.pack(connection, size) + message
    if size > MAX_MESSAGE:
        raise LocalError(f"a message of {size} bytes is longer than any that ttrpc has: {MAX_MESSAGE}")
    return b"".join(
        (
            _HEADER.pack(connection, HEADER_SIZE),
            message[:HEADER_SIZE],
            _HEADER.pack(connection, size - HEADER_SIZE),
            memoryview(message)[HEADER_SIZE:],
        )
    )

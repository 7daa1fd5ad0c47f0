"""ttrpc frames: a stream of bytes cut into frames, and a frame made bytes.

A frame is a header of ten bytes, big-endian: data length, stream id (four each), kind, flags (one each), then the data
(containerd/ttrpc, channel.go and PROTOCOL.md).
"""

from __future__ import annotations

import struct
from typing import NamedTuple, cast

from nri_cpu.ttrpc.errors import LocalError

HEADER = struct.Struct(">IIBB")
HEADER_SIZE = HEADER.size

# The most data of one frame (messageLengthMax of containerd/ttrpc, channel.go).
MAX_DATA = 4 << 20
# Stream ids have 32 bits.
MAX_STREAM = 0xFFFF_FFFF

REQUEST = 1
RESPONSE = 2
DATA = 3  # of streaming calls, which nothing here makes: never send one, servers before ttrpc 1.2.8 panic


# Named tuples, since each message makes one: a frozen dataclass takes three times as long.
class Frame(NamedTuple):
    """One frame. `kind` is REQUEST, RESPONSE, DATA or any other byte; `flags` mean nothing where nothing streams."""

    stream: int
    kind: int
    flags: int
    data: bytes


class Oversize(NamedTuple):
    """A frame that announced `length` > MAX_DATA bytes, all of which have come and been thrown away."""

    stream: int
    kind: int
    length: int


class FrameReader:
    """Cuts a stream of bytes into frames, wherever the stream is split.

    Holds at most one unfinished frame of HEADER_SIZE + MAX_DATA bytes, and nothing of one that is larger.
    """

    __slots__ = ("_held", "_oversize", "_skip")

    def __init__(self) -> None:
        self._held = bytearray()  # an unfinished frame from its first byte on
        self._oversize: Oversize | None = None  # the frame that is being thrown away
        self._skip = 0  # how many bytes of it are still to come

    @property
    def buffered(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return len(self._held)

    @property
    def idle(self) -> bool:
        """Whether the next byte begins a frame."""
        return not self._held and not self._skip

    def feed(self, data: bytes | memoryview) -> list[Frame | Oversize]:
        """The frames that `data` completes, in the order of their last bytes."""
        found: list[Frame | Oversize] = []
        at = self._resume(data, found) if self._held or self._skip else 0
        end = len(data)
        while end - at >= HEADER_SIZE:
            length, stream, kind, flags = HEADER.unpack_from(data, at)
            body = at + HEADER_SIZE
            if length > MAX_DATA:
                at = self._discard(Oversize(stream, kind, length), length, data, body, found)
                continue
            stop = body + length
            if stop > end:
                break
            found.append(Frame(stream, kind, flags, bytes(data[body:stop])))
            at = stop
        if at < end:
            self._held += data[at:]
        return found

    def _resume(self, data: bytes | memoryview, found: list[Frame | Oversize]) -> int:
        """Go on with what the last feed left unfinished; returns how many bytes of `data` that took."""
        if self._oversize is not None:
            return self._discard(self._oversize, self._skip, data, 0, found)
        held = self._held
        at = 0
        if len(held) < HEADER_SIZE:
            at = HEADER_SIZE - len(held)
            held += data[:at]
            if len(held) < HEADER_SIZE:
                return len(data)
        length, stream, kind, flags = HEADER.unpack_from(held)
        if length > MAX_DATA:
            held.clear()
            return self._discard(Oversize(stream, kind, length), length, data, at, found)
        stop: int = at + HEADER_SIZE + length - len(held)
        held += data[at:stop]
        if len(held) < HEADER_SIZE + length:
            return len(data)
        del held[:HEADER_SIZE]
        # Not copied: a Synchronize has megabytes, and whoever reads data takes any buffer.
        found.append(Frame(stream, kind, flags, cast("bytes", held)))
        self._held = bytearray()
        return stop

    def _discard(
        self, frame: Oversize, left: int, data: bytes | memoryview, at: int, found: list[Frame | Oversize]
    ) -> int:
        """Throw away up to `left` bytes of `data` from `at` on; returns where the next frame starts."""
        have = len(data) - at
        if have < left:
            self._oversize, self._skip = frame, left - have
            return len(data)
        self._oversize, self._skip = None, 0
        found.append(frame)
        return at + left


def encode(frame: Frame) -> bytes:
    """The frame's bytes. Raises LocalError when its data is more than MAX_DATA: a peer would throw it away."""
    size = len(frame.data)
    if size > MAX_DATA:
        raise LocalError(f"a message of {size} bytes cannot be sent, the most is {MAX_DATA}: split it")
    return HEADER.pack(size, frame.stream, frame.kind, frame.flags) + frame.data

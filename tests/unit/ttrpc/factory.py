"""Makes bytes of the wire, legal and illegal, and takes them apart, without the code that is tested."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from nri_cpu.ttrpc.ttrpc_pb2 import KeyValue, Request, Response, Status

REQUEST, RESPONSE, DATA = 1, 2, 3
LIMIT = 4 << 20

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME = "nri.pkg.api.v1alpha1.Runtime"


def frame(stream: int, kind: int, data: bytes = b"", *, flags: int = 0, length: int | None = None) -> bytes:
    """A ttrpc frame; `length` is what the header says where that is not the truth."""
    return struct.pack(">IIBB", len(data) if length is None else length, stream, kind, flags) + data


def request(
    stream: int,
    method: str = "CreateContainer",
    payload: bytes = b"",
    *,
    service: str = PLUGIN,
    timeout_nano: int = 0,
    metadata: Sequence[tuple[str, str]] = (),
    flags: int = 0,
) -> bytes:
    """A frame with a ttrpc.Request."""
    pairs = [KeyValue(key=key, value=value) for key, value in metadata]
    body = Request(service=service, method=method, payload=payload, timeout_nano=timeout_nano, metadata=pairs)
    return frame(stream, REQUEST, body.SerializeToString(), flags=flags)


def response(stream: int, payload: bytes = b"", *, code: int | None = None, text: str = "", flags: int = 0) -> bytes:
    """A frame with a ttrpc.Response; without a code it has no status."""
    status = None if code is None else Status(code=code, message=text)
    return frame(stream, RESPONSE, Response(status=status, payload=payload).SerializeToString(), flags=flags)


def mux(connection: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """A mux frame; `length` is what the header says where that is not the truth."""
    return struct.pack(">II", connection, len(payload) if length is None else length) + payload


def oversize(stream: int, kind: int = REQUEST) -> bytes:
    """A frame with one byte more than is legal."""
    return frame(stream, kind, bytes(LIMIT + 1))


def split(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """`data` cut at the given places, which may be in any order, repeat, and lie outside."""
    places = sorted({cut for cut in cuts if 0 < cut < len(data)})
    return [data[start:stop] for start, stop in zip([0, *places], [*places, len(data)], strict=True)]


def mux_frames(data: bytes) -> list[tuple[int, bytes]]:
    """Connection id and payload of each mux frame; fails when the last one is not complete."""
    frames = []
    while data:
        connection, length = struct.unpack_from(">II", data)
        assert len(data) >= 8 + length, "the last mux frame is cut short"
        frames.append((connection, data[8 : 8 + length]))
        data = data[8 + length :]
    return frames


def ttrpc_frames(stream_of_bytes: bytes) -> list[tuple[int, int, int, bytes]]:
    """Stream id, kind, flags and data of each ttrpc frame; fails when the last one is not complete."""
    frames = []
    while stream_of_bytes:
        length, stream, kind, flags = struct.unpack_from(">IIBB", stream_of_bytes)
        assert len(stream_of_bytes) >= 10 + length, "the last ttrpc frame is cut short"
        frames.append((stream, kind, flags, stream_of_bytes[10 : 10 + length]))
        stream_of_bytes = stream_of_bytes[10 + length :]
    return frames


def messages(data: bytes) -> list[tuple[int, int, int, int, bytes]]:
    """Connection, stream, kind, flags and data of each message in a transport's bytes; connections one by one."""
    streams: dict[int, bytes] = {}
    for connection, payload in mux_frames(data):
        streams[connection] = streams.get(connection, b"") + payload
    return [(connection, *found) for connection, whole in streams.items() for found in ttrpc_frames(whole)]


def statuses(sent: Iterable[bytes]) -> list[tuple[int, int]]:
    """Stream id and status code of messages that are answers (ttrpc frames, no mux around)."""
    found = []
    for stream, kind, flags, data in ttrpc_frames(b"".join(sent)):
        assert (kind, flags) == (RESPONSE, 0)
        found.append((stream, Response.FromString(data).status.code))
    return found

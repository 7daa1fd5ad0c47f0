"""The server's side of one ttrpc connection: frames in, calls out; answers in, frames out."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from nri_cpu.ttrpc.codes import Code
from nri_cpu.ttrpc.errors import LocalError
from nri_cpu.ttrpc.frames import HEADER, MAX_DATA, REQUEST, RESPONSE, Frame, FrameReader, Oversize, encode
from nri_cpu.ttrpc.ttrpc_pb2 import Request, Response, Status
from nri_cpu.ttrpc.varint import varint

# The most characters of a status's text: it ends up in one line of a log or one event, and is not to fill a frame.
MAX_TEXT = 4096

# What precedes the length of the payload in ttrpc.Response: field 2, bytes.
PAYLOAD_TAG = 2 << 3 | 2

# google.rpc.Status has an int32.
_MAX_CODE = 0x7FFF_FFFF


class Call(NamedTuple):
    """A call that waits for its answer. `timeout`: the seconds that its caller had left; None when that never ends."""

    stream: int
    service: str
    method: str
    payload: bytes
    timeout: float | None


class ServerConnection:
    """Reads calls and makes the bytes of their answers, in whatever order; refuses illegal calls by itself.

    As a Go server does it (containerd/ttrpc, server.go): flags are ignored, and so is each frame that is no request.
    An id must be odd and higher than each one before it, whatever became of those.
    """

    __slots__ = ("_last", "_open", "_reader", "_refusals")

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._last = 0  # the highest id so far
        self._open: set[int] = set()  # calls without an answer
        self._refusals: list[bytes] = []

    @property
    def buffered(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return self._reader.buffered

    @property
    def idle(self) -> bool:
        """Whether the next byte begins a frame."""
        return self._reader.idle

    def receive(self, data: bytes | memoryview) -> list[Call]:
        """The calls that `data` completes. What it has of illegal ones is owed an answer: see take_refusals()."""
        calls: list[Call] = []
        for frame in self._reader.feed(data):
            if frame.kind != REQUEST:
                continue
            if isinstance(frame, Oversize):
                self._oversize(frame)
            elif (call := self.request(frame.stream, frame.data)) is not None:
                calls.append(call)
        return calls

    def take_refusals(self) -> list[bytes]:
        """The answers to illegal calls, each a whole message, in the order of those calls; each is given once."""
        if not self._refusals:
            return []
        refusals, self._refusals = self._refusals, []
        return refusals

    def answer(self, stream: int, payload: bytes) -> bytes:
        """The message that ends a call with success. Where it is too long, one with RESOURCE_EXHAUSTED in its stead.

        Raises LocalError when no such call waits for an answer.
        """
        self.finish(stream)
        head = varint(PAYLOAD_TAG) + varint(len(payload)) if payload else b""
        size = len(head) + len(payload)
        if size > MAX_DATA:
            return _status(stream, Code.RESOURCE_EXHAUSTED, f"the answer has {size} bytes, the most is {MAX_DATA}")
        return b"".join((HEADER.pack(size, stream, RESPONSE, 0), head, payload))

    def refuse(self, stream: int, code: int, message: str) -> bytes:
        """The message that ends a call with a status; its text is cut after MAX_TEXT characters.

        Raises LocalError when no such call waits for an answer, and when the code is OK or no positive int32.
        """
        if not Code.OK < code <= _MAX_CODE:
            raise LocalError(f"stream {stream} cannot be refused with code {code}: that is no error's")
        self.finish(stream)
        return _status(stream, code, message)

    def finish(self, stream: int) -> None:
        """Take the call as answered. Raises LocalError when no such call waits for an answer."""
        try:
            self._open.remove(stream)
        except KeyError:
            raise LocalError(f"stream {stream} waits for no answer: it has had one, or was never a call") from None

    def request(self, stream: int, data: bytes) -> Call | None:
        """The call in the data of one whole request frame; None for an illegal one, which is refused as in receive().

        For who has cut the frame out himself; the connection must be idle.
        """
        if not stream & 1:
            self._owe(stream, Code.INVALID_ARGUMENT, f"stream id {stream} is even: a client's are odd")
            return None
        if stream <= self._last:
            self._owe(stream, Code.INVALID_ARGUMENT, f"stream id {stream} is not above the last, {self._last}")
            return None
        self._last = stream
        try:
            request = Request.FromString(data)
        except DecodeError as error:
            self._owe(stream, Code.INVALID_ARGUMENT, f"the request is no ttrpc.Request: {error}")
            return None
        self._open.add(stream)
        left = request.timeout_nano
        timeout = left / 1e9 if left > 0 else None
        # As Call() does it, less a function call.
        return tuple.__new__(Call, (stream, request.service, request.method, request.payload, timeout))

    def _oversize(self, frame: Oversize) -> None:
        if frame.stream & 1:
            self._last = max(self._last, frame.stream)
        text = f"the request has {frame.length} bytes, the most is {MAX_DATA}"
        self._owe(frame.stream, Code.RESOURCE_EXHAUSTED, text)

    def _owe(self, stream: int, code: Code, text: str) -> None:
        self._refusals.append(_status(stream, code, text))


def _status(stream: int, code: int, text: str) -> bytes:
    # Text of an exception may hold half a surrogate pair, which protobuf refuses to encode.
    clean = text[:MAX_TEXT].encode(errors="replace").decode()
    return encode(Frame(stream, RESPONSE, 0, Response(status=Status(code=code, message=clean)).SerializeToString()))

"""The client's side of one ttrpc connection: calls in, frames out; frames in, answers out."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from nri_cpu.ttrpc.codes import Code
from nri_cpu.ttrpc.errors import LocalError, StatusError
from nri_cpu.ttrpc.frames import MAX_DATA, MAX_STREAM, REQUEST, RESPONSE, Frame, FrameReader, Oversize, encode
from nri_cpu.ttrpc.ttrpc_pb2 import Request, Response

# Seconds; some 272 years, and still an int64 of nanoseconds.
MAX_TIMEOUT = 1 << 33


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of the call on `stream`: `payload` when `error` is None."""

    stream: int
    payload: bytes
    error: StatusError | None


class ClientConnection:
    """Makes the bytes of calls, and matches answers, in whatever order, to them by stream id.

    A frame that answers no waiting call is dropped, as a Go client does (containerd/ttrpc, client.go).
    """

    __slots__ = ("_next", "_reader", "_waiting")

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._next = 1
        self._waiting: set[int] = set()

    @property
    def buffered(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return self._reader.buffered

    def call(self, service: str, method: str, payload: bytes, timeout: float | None = None) -> tuple[int, bytes]:
        """The stream id and the message of a new call. Messages must be written in the order of their ids.

        `service` is the full name, `method` the bare one; `timeout` the seconds until the caller's deadline, None for
        no deadline: it only tells the server, see forget(). Raises LocalError for a call that cannot be sent: too
        long, a timeout that is not between 0 and MAX_TIMEOUT, names that are no text, no id left. No id is used then.
        """
        stream = self._next
        if stream > MAX_STREAM:
            raise LocalError("every stream id of this connection has been used: open a new one")
        try:
            request = Request(service=service, method=method, payload=payload, timeout_nano=_nanoseconds(timeout))
        except UnicodeEncodeError as error:
            raise LocalError(f"the name of a service or method cannot be sent: {error}") from error
        message = encode(Frame(stream, REQUEST, 0, request.SerializeToString()))
        self._next = stream + 2
        self._waiting.add(stream)
        return stream, message

    def receive(self, data: bytes | memoryview) -> list[Answer]:
        """The answers that `data` completes.

        An answer that cannot be read, or was too long, ends its call alone, as if the peer had sent such a status:
        INTERNAL and RESOURCE_EXHAUSTED.
        """
        answers: list[Answer] = []
        for frame in self._reader.feed(data):
            if frame.kind == RESPONSE and frame.stream in self._waiting:
                self._waiting.remove(frame.stream)
                answers.append(_answer(frame))
        return answers

    def forget(self, stream: int) -> None:
        """The caller waits no longer: a late answer is dropped. Nothing happens when the answer has come already."""
        self._waiting.discard(stream)


def _answer(frame: Frame | Oversize) -> Answer:
    if isinstance(frame, Oversize):
        text = f"the answer has {frame.length} bytes, the most is {MAX_DATA}"
        return Answer(frame.stream, b"", StatusError(Code.RESOURCE_EXHAUSTED, text))
    try:
        response = Response.FromString(frame.data)
    except DecodeError as error:
        return Answer(frame.stream, b"", StatusError(Code.INTERNAL, f"the answer is no ttrpc.Response: {error}"))
    if response.status.code != Code.OK:
        return Answer(frame.stream, b"", StatusError(response.status.code, response.status.message))
    return Answer(frame.stream, response.payload, None)


def _nanoseconds(timeout: float | None) -> int:
    if timeout is None:
        return 0
    if not 0 < timeout <= MAX_TIMEOUT:
        raise LocalError(f"a timeout of {timeout} seconds cannot be sent: give more than 0, and at most {MAX_TIMEOUT}")
    return max(1, round(timeout * 1e9))  # 0 would be no deadline

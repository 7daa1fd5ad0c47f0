"""The trunk: both ttrpc connections of a plugin and its runtime over one multiplexer, seen from either side."""

from __future__ import annotations

import struct

from nri_cpu.ttrpc import mux
from nri_cpu.ttrpc.client import Answer, ClientConnection
from nri_cpu.ttrpc.errors import LocalError
from nri_cpu.ttrpc.frames import HEADER_SIZE, MAX_DATA, REQUEST, RESPONSE
from nri_cpu.ttrpc.server import PAYLOAD_TAG, Call, ServerConnection

# Nearly every read is one whole request, and nearly every answer is short. The headers of such a message, the mux's and
# ttrpc's, are read and written at once: the same as by way of mux, frames and protobuf, in a third of the time.
_HEADERS = struct.Struct(">IIIIBB")
# The same with tag and length of the payload in ttrpc.Response, as long as the latter has one byte.
_ANSWER_HEADERS = struct.Struct(">IIIIBBBB")
_SHORT = 0x7F


class Trunk:
    """Serves calls on one connection and makes calls on another.

    `server_id` is the mux connection where we serve, `client_id` the one where we call; a plugin's are 1 and 2, a
    runtime's 2 and 1. Payload for any other connection is dropped. Raises LocalError for ids that are no two numbers
    above 0, which is reserved.

    Errors of receive() are the peer's, and all others ours. Whatever was called, data_to_send() then has what the
    transport is to write.
    """

    __slots__ = ("_client", "_client_id", "_idle", "_mux", "_out", "_server", "_server_id")

    def __init__(self, server_id: int, client_id: int) -> None:
        if server_id == client_id or not 0 < min(server_id, client_id) <= max(server_id, client_id) <= 0xFFFF_FFFF:
            raise LocalError(f"connections {server_id} and {client_id} must be two numbers between 1 and {0xFFFF_FFFF}")
        self._server_id, self._client_id = server_id, client_id
        self._mux = mux.MuxReader()
        self._server = ServerConnection()
        self._client = ClientConnection()
        self._idle = True  # the next byte begins a mux frame, and where we serve a ttrpc frame
        self._out: list[bytes] = []

    @property
    def buffered(self) -> int:
        """How many received bytes are held: at most a mux header and, for each connection, one unfinished frame."""
        return self._mux.buffered + self._server.buffered + self._client.buffered

    def receive(self, data: bytes | memoryview) -> list[Call | Answer]:
        """What the transport read: the calls and answers that it completes, in order.

        Illegal calls are refused without being seen. Raises ProtocolError when the transport must be closed; what
        came before the fault in `data` is lost with it. Nothing of `data` itself is kept: it may be a buffer that is
        read into again.
        """
        if self._idle and len(data) >= _HEADERS.size:
            connection, size, length, stream, kind, _ = _HEADERS.unpack_from(data)
            if (
                size == len(data) - mux.MUX_SIZE == length + HEADER_SIZE
                and connection == self._server_id
                and kind == REQUEST
                and length <= MAX_DATA
            ):
                call = self._server.request(stream, bytes(data[_HEADERS.size :]))
                if call is not None:
                    return [call]
                self._refuse_illegal()
                return []
        return self._receive(data)

    def _receive(self, data: bytes | memoryview) -> list[Call | Answer]:
        self._idle = False
        events: list[Call | Answer] = []
        for connection, part in self._mux.feed(data):
            if connection == self._server_id:
                events += self._server.receive(part)
                self._refuse_illegal()
            elif connection == self._client_id:
                events += self._client.receive(part)
        self._idle = self._mux.idle and self._server.idle
        return events

    def _refuse_illegal(self) -> None:
        for refusal in self._server.take_refusals():
            self._out.append(mux.encode(self._server_id, refusal))

    def call(self, service: str, method: str, payload: bytes, timeout: float | None = None) -> int:
        """Make a call; returns the stream that its answer will name. As ClientConnection.call."""
        stream, message = self._client.call(service, method, payload, timeout)
        self._out.append(mux.encode(self._client_id, message))
        return stream

    def forget(self, stream: int) -> None:
        """Drop the answer to a call of ours, should it still come."""
        self._client.forget(stream)

    def answer(self, stream: int, payload: bytes) -> None:
        """End a call of the peer's with success. As ServerConnection.answer."""
        size = len(payload)
        if size > _SHORT:
            message = mux.encode(self._server_id, self._server.answer(stream, payload))
        else:
            self._server.finish(stream)
            if size:
                headers = self._server_id, size + 12, size + 2, stream, RESPONSE, 0, PAYLOAD_TAG, size
                message = _ANSWER_HEADERS.pack(*headers) + payload
            else:
                message = _HEADERS.pack(self._server_id, HEADER_SIZE, 0, stream, RESPONSE, 0)
        self._out.append(message)

    def refuse(self, stream: int, code: int, message: str) -> None:
        """End a call of the peer's with a status. As ServerConnection.refuse."""
        self._out.append(mux.encode(self._server_id, self._server.refuse(stream, code, message)))

    def data_to_send(self) -> bytes:
        """All that is owed to the transport since the last time, to be written at once."""
        out = self._out
        if len(out) == 1:  # as with nearly every call: nothing to copy
            return out.pop()
        data = b"".join(out)
        out.clear()
        return data

"""The trunk: both ttrpc connections of a plugin and its runtime over one multiplexer, seen from either side."""

from __future__ import annotations

from nri_cpu.ttrpc import mux
from nri_cpu.ttrpc.client import Answer, ClientConnection
from nri_cpu.ttrpc.errors import LocalError
from nri_cpu.ttrpc.server import Call, ServerConnection


class Trunk:
    """Serves calls on one connection and makes calls on another.

    `server_id` is the mux connection where we serve, `client_id` the one where we call; a plugin's are 1 and 2, a
    runtime's 2 and 1. Payload for any other connection is dropped. Raises LocalError for ids that are no two numbers
    above 0, which is reserved.

    Errors of receive() are the peer's, and all others ours. Whatever was called, data_to_send() then has what the
    transport is to write.
    """

    __slots__ = ("_client", "_client_id", "_mux", "_out", "_server", "_server_id")

    def __init__(self, server_id: int, client_id: int) -> None:
        if server_id == client_id or not 0 < min(server_id, client_id) <= max(server_id, client_id) <= 0xFFFF_FFFF:
            raise LocalError(f"connections {server_id} and {client_id} must be two numbers between 1 and {0xFFFF_FFFF}")
        self._server_id, self._client_id = server_id, client_id
        self._mux = mux.MuxReader()
        self._server = ServerConnection()
        self._client = ClientConnection()
        self._out: list[bytes] = []

    @property
    def buffered(self) -> int:
        """How many received bytes are held: at most a mux header and, for each connection, one unfinished frame."""
        return self._mux.buffered + self._server.buffered + self._client.buffered

    def receive(self, data: bytes) -> list[Call | Answer]:
        """What the transport read: the calls and answers that it completes, in order.

        Illegal calls are refused without being seen. Raises ProtocolError when the transport must be closed; what
        came before the fault in `data` is lost with it.
        """
        events: list[Call | Answer] = []
        for connection, part in self._mux.feed(data):
            if connection == self._server_id:
                events += self._server.receive(part)
                for refusal in self._server.take_refusals():
                    self._out.append(mux.encode(connection, refusal))
            elif connection == self._client_id:
                events += self._client.receive(part)
        return events

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
        self._out.append(mux.encode(self._server_id, self._server.answer(stream, payload)))

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

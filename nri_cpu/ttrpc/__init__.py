"""ttrpc: remote calls over a byte stream, and the multiplexer that NRI runs them on.

Bytes in, events out: this package never reads a socket or a clock, sleeps, logs or starts a thread, and it knows no
service. Who uses it owns the transport, hands what it read to Trunk.receive(), and writes what Trunk.data_to_send()
gives. Deadlines are the user's too: a Call says how long its caller waits, and Trunk.forget() drops a late Answer.

    errors, codes     what can go wrong, and the numbers of a status
    frames            the stream of one connection cut into frames
    mux               the transport cut into the streams of connections
    server, client    the two roles on one connection
    trunk             both roles over one transport
    varint            protobuf's numbers, where protobuf itself would be a detour

Calls that stream are not spoken: NRI has none. Sizes of all that is held are bounded by the constants beside the code.
"""

from __future__ import annotations

from nri_cpu.ttrpc.client import Answer, ClientConnection
from nri_cpu.ttrpc.codes import Code
from nri_cpu.ttrpc.errors import LocalError, ProtocolError, StatusError, TtrpcError
from nri_cpu.ttrpc.server import Call, ServerConnection
from nri_cpu.ttrpc.trunk import Trunk

__all__ = [
    "Trunk",
    "Call",
    "Answer",
    "ServerConnection",
    "ClientConnection",
    "Code",
    "TtrpcError",
    "ProtocolError",
    "LocalError",
    "StatusError",
]

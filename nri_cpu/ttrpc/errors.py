"""What can go wrong on ttrpc.

TtrpcError
├── ProtocolError   the peer broke the rules of the wire: close the transport
├── LocalError      our side asked for something illegal; nothing was sent and nothing has changed
└── StatusError     the peer answered a call with a status; the connection is as good as before
"""

from __future__ import annotations

from nri_cpu.ttrpc.codes import Code


class TtrpcError(Exception):
    """Any error of this package."""


class ProtocolError(TtrpcError):
    """The peer broke a rule after which its bytes make no sense any more: close the transport."""


class LocalError(TtrpcError):
    """Our side asked for something illegal; nothing was sent and nothing has changed."""


class StatusError(TtrpcError):
    """The peer answered a call with a status other than OK: its number, known to Code or not, and its text."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        try:
            return f"status {self.code} {Code(self.code).name}: {self.message}"
        except ValueError:
            return f"status {self.code}: {self.message}"

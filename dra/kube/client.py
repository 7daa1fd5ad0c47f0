"""HTTP requests to one API server, over connections that are kept, and the answers to them.

On the standard library's client, without the layers that others put on it: a claim is read with less than half the
work, and imports take a third of the memory. Nothing is repeated, but a GET whose kept connection the server had ended.
"""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from urllib.parse import urlsplit

from dra.claims import printable
from dra.kube.connection import Connection
from dra.kube.credentials import Credentials, CredentialsError

# etcd takes no object above 1.5 MiB, and a node has few slices.
RESPONSE_LIMIT = 8 << 20
# The API server closes what nobody used for 90 s (IdleTimeout of its HTTP server).
_KEEP_SECONDS = 60.0
_KEEP = 32
_CHUNK = 1 << 16

# What passes by itself, as an API server that is started again, or a network that is not up yet.
_CUT_OFF = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)  # http.client.RemoteDisconnected is one
_PASSING = (*_CUT_OFF, http.client.IncompleteRead)
_PASSING_NUMBERS = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, socket.EAI_AGAIN}


class TransportError(Exception):
    """No answer, or no whole one; the message is the reason in one line.

    `passing`: nobody took the request, or its connection broke: worth another attempt. Not so what took all its time.
    """

    def __init__(self, message: str, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class _ClosedEarlyError(TransportError):
    """The connection ended before the first byte of an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`retry_after`: what the header of this name says, None without."""

    status: int
    body: bytes
    retry_after: str | None = None


class Client:
    """May be used by several threads at once. Raises TransportError, and nothing else."""

    def __init__(self, credentials: Credentials, user_agent: str) -> None:
        parts = urlsplit(credentials.server)
        self.server = credentials.server
        self._authorization = credentials.authorization
        # By status: what to do about it, where these credentials are the reason.
        self.hints = {401: f"{credentials.origin} is not accepted"}
        self._proxy = urlsplit(credentials.proxy) if credentials.proxy else None
        self._path = parts.path
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = credentials.tls
        self._headers = {
            "Host": parts.netloc.rpartition("@")[2],
            "Accept": "application/json",
            "User-Agent": user_agent,
        }
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Connection]] = deque()  # the one used last at the end
        self._used: set[Connection] = set()
        self._closed = False
        weakref.finalize(self, _close_all, self._kept)

    def request(self, method: str, path: str, seconds: float, body: bytes | None = None) -> Answer:
        """The whole answer, whatever its status, within `seconds`, for names and tokens to be looked up included."""
        ends = time.monotonic() + seconds
        kept = self._take()
        try:
            return self._exchange(kept or Connection(), method, path, ends, body)
        except _ClosedEarlyError:
            # The server may have ended it in the moment of its use. What changes something is not sent twice.
            if not kept or method != "GET":
                raise
            return self._exchange(Connection(), method, path, ends, body)

    def open(self, connection: Connection, path: str, seconds: float) -> http.client.HTTPResponse:
        """The answer to GET, of which nothing is read yet, on `connection`, which is new. It begins within `seconds`;
        what is read of it has the time that the connection is given then."""
        connection.ends = time.monotonic() + seconds
        return self._sent(connection, "GET", path, None)

    def close(self) -> None:
        """Ends the requests under way, at once, and refuses those that come; what `open` gave has a `shut` of its own.
        For any thread; never blocks."""
        with self._lock:
            self._closed = True
            used = tuple(self._used)
        for connection in used:
            connection.shut()

    def _take(self) -> Connection | None:
        """A connection that was kept, and made with the certificates that are there now."""
        context = self._tls.context() if self._tls else None
        while True:
            with self._lock:
                if not self._kept:
                    return None
                _, connection = self._kept.pop()
            if connection.context is context and not connection.stale():
                return connection
            connection.close()

    def _keep(self, connection: Connection) -> None:
        now = time.monotonic()
        old = []
        with self._lock:
            self._kept.append((now, connection))
            while len(self._kept) > _KEEP or now - self._kept[0][0] > _KEEP_SECONDS:
                old.append(self._kept.popleft()[1])
        for each in old:
            each.close()

    def _exchange(self, connection: Connection, method: str, path: str, ends: float, body: bytes | None) -> Answer:
        connection.ends = ends
        whole = False
        try:
            with self._lock:
                if self._closed:
                    raise TransportError("no more requests are made: the end has come")
                self._used.add(connection)
            response = self._sent(connection, method, path, body)
            content = read_whole(response)
            whole = not response.will_close
        finally:
            with self._lock:
                self._used.discard(connection)
            if whole:
                self._keep(connection)
            else:
                connection.close()  # what is left unread must not be taken for the next answer
        return Answer(response.status, content, response.headers.get("retry-after"))

    def _sent(self, connection: Connection, method: str, path: str, body: bytes | None) -> http.client.HTTPResponse:
        """The beginning of the answer."""
        try:
            headers = self._headers
            if authorization := self._authorization(connection.waited):
                headers = {**headers, "Authorization": authorization}
            if body is not None:
                headers = {**headers, "Content-Type": "application/json"}
            if not connection.connected:
                self._connect(connection)
            try:
                connection.http.request(method, self._path + path, body, headers)
                return connection.http.getresponse()
            except _CUT_OFF as error:
                raise _ClosedEarlyError(reason(error), passing=True) from error
        except (OSError, http.client.HTTPException, ValueError, CredentialsError) as error:
            raise _failure(error) from error

    def _connect(self, connection: Connection) -> None:
        if self._proxy:
            connection.connect(self._proxy.hostname or "", self._proxy.port or 80)
            connection.tunnel(self._host, self._port, self._proxy)
        else:
            connection.connect(self._host, self._port)
        if self._tls:
            connection.secure(self._tls.context(), self._tls.server_name or self._host)


def read_whole(response: http.client.HTTPResponse) -> bytes:
    """Raises TransportError."""
    parts: list[bytes] = []
    size = 0
    try:
        while part := response.read1(_CHUNK):  # which gives no more, whatever length a chunk claims to have
            parts.append(part)
            size += len(part)
            if size > RESPONSE_LIMIT:
                raise TransportError(f"the answer is larger than {RESPONSE_LIMIT} bytes")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failure(error) from error
    if response.length:
        raise TransportError("the answer ended too early", passing=True)
    response.close()  # else the connection takes no further request
    return b"".join(parts)


def _failure(error: BaseException) -> TransportError:
    passing = isinstance(error, _PASSING) or getattr(error, "errno", None) in _PASSING_NUMBERS
    return TransportError(reason(error), passing)


def reason(error: BaseException) -> str:
    """What happened, in one line, which is the same for the same trouble."""
    if isinstance(error, TimeoutError):
        return "the answer timed out"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        text = f"the answer is no HTTP: {type(error).__name__} {text}"
    return printable(" ".join(str(text).split()), 300)


def _close_all(kept: deque[tuple[float, Connection]]) -> None:
    for _, connection in kept:
        connection.close()

"""One HTTP connection whose every wait ends when the request must: name, connecting, TLS, sending, each read.

Below it is the standard library's client, whose own time limit would start anew with each byte that comes.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult

from dra.kube.bounded import Bounded
from dra.kube.credentials import proxy_authorization

T = TypeVar("T")

# What socket.getaddrinfo gives.
_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]

# A peer that is gone without a word is noticed within a minute: 30 s at rest, then 3 probes.
_OPTIONS = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3, socket.TCP_NODELAY: 1}
_ENDED = "the connection was ended"


class Connection:
    """`ends` (time.monotonic): when what it does is given up, by TimeoutError. `http`: the client on it. `context`: of
    its TLS, None without.

    `shut` may be called by another thread; all else belongs to the one that uses it. Methods raise OSError.
    """

    def __init__(self) -> None:
        self.ends = 0.0
        self.context: ssl.SSLContext | None = None
        self.http = http.client.HTTPConnection("")  # told the host with each request
        self.http.auto_open = 0
        self._socket: socket.socket | None = None
        self._calls = Bounded[Any]()
        self._lock = threading.Lock()
        self._shut = False

    @property
    def connected(self) -> bool:
        return self.http.sock is not None

    def connect(self, host: str, port: int) -> None:
        """To the first address of `host` that takes it; none of them may use up the time of those after it."""
        problem = OSError(f"{host} has no address")
        found = self._addresses(host, port)
        for at, address in enumerate(found):
            try:
                self._connect(address, self._left() / (len(found) - at))
            except OSError as error:  # of the kernel too, which may know no addresses of version 6
                problem = error
                continue
            self.http.sock = _Timed(self)
            return
        raise problem

    def _addresses(self, host: str, port: int) -> Sequence[_Address]:
        def look_up(flags: int = 0) -> Sequence[_Address]:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)

        with contextlib.suppress(socket.gaierror):
            return look_up(socket.AI_NUMERICHOST)  # nobody is asked for what is an address already
        return self.waited(look_up)

    def waited(self, call: Callable[[], T]) -> T:
        """What `call` gives, which has no time limit of its own."""
        found: T = self._calls.call(call, self._left())
        return found

    def _connect(self, found: _Address, seconds: float) -> None:
        family, kind, protocol, _, address = found
        made = socket.socket(family, kind, protocol)
        self._take(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _OPTIONS.items():
            made.setsockopt(socket.IPPROTO_TCP, option, value)
        made.settimeout(seconds)
        made.connect(address)

    def secure(self, context: ssl.SSLContext, server_name: str) -> None:
        """TLS over what is connected."""
        secured = context.wrap_socket(self._timed(), server_hostname=server_name, do_handshake_on_connect=False)
        self._take(secured)  # the descriptor is its own now
        secured.do_handshake()
        self.context = context

    def tunnel(self, host: str, port: int, proxy: SplitResult) -> None:
        """CONNECT, to a proxy: after it, the server is spoken to."""
        target = f"{f'[{host}]' if ':' in host else host}:{port}"
        headers = {"Host": target}
        if authorization := proxy_authorization(proxy):
            headers["Proxy-Authorization"] = authorization
        self.http.request("CONNECT", target, headers=headers)
        status = self.http.getresponse().status
        self.http.close()
        if status != 200:
            raise OSError(f"the proxy {proxy.hostname} answered {status}")
        self.http.sock = _Timed(self)

    def stale(self) -> bool:
        """Whether it is ended, or says what nobody asked for: between two answers there is nothing to read."""
        if self._socket is None:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def shut(self) -> None:
        """Ends all that waits for it, at once, and what comes after. Never blocks or raises."""
        self._calls.cut_off(OSError(_ENDED))
        with self._lock:
            self._shut = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # the peer may have ended it
                    # Not the method of TLS, which takes the object apart that another thread reads from.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self.http.close()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def read_into(self, buffer: Any) -> int:
        return self._timed().recv_into(buffer)

    def send_all(self, data: Any) -> None:
        self._timed().sendall(data)

    def _take(self, made: socket.socket) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = made
            if self._shut:
                raise OSError(_ENDED)

    def _timed(self) -> socket.socket:
        """The socket, with the time that is left."""
        left = self._left()
        if self._socket is None:
            raise OSError("the connection is closed")
        self._socket.settimeout(left)
        return self._socket

    def _left(self) -> float:
        """Seconds, more than none."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Timed:
    """What the standard library's client takes for a socket."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def sendall(self, data: Any) -> None:
        self._connection.send_all(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._connection))

    def close(self) -> None:
        """The connection does that: the client lets go before an answer without a length is read."""


class _Reader(io.RawIOBase):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return self._connection.read_into(buffer)

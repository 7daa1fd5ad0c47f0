"""A unix socket of the box, served on the host: a client here talks to a server there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from hack.node.errors import NodeError
from hack.node.guest.frames import pump


class Relay:
    """Context manager: inside it `path` is a socket, each connection to it is one that `connect` makes.

    Where the box refuses, the client's connection is closed at once. All threads and connections end with the context.
    """

    def __init__(self, path: Path, connect: Callable[[], socket.socket]) -> None:
        self.path = path
        self._connect = connect
        self._listener = socket.socket(socket.AF_UNIX)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def __enter__(self) -> Self:
        self.path.unlink(missing_ok=True)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
            for connection in (self._listener, *self._open):
                with suppress(OSError):  # wakes whoever waits on it
                    connection.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name=f"relay {self.path.name}")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._spawn(self._serve, client)

    def _join(self, client: socket.socket) -> socket.socket:
        """The connection that this client's is joined to; raises NodeError."""
        return self._connect()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                server = self._join(client)
            except (NodeError, OSError):
                return
            with server:
                with self._lock:
                    if self._closed:
                        return
                    self._open |= {client, server}
                back = threading.Thread(target=pump, args=(server, client), name="relay back")
                back.start()
                pump(client, server)
                back.join()
                with self._lock:
                    self._open -= {client, server}

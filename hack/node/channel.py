"""The host's end of the box's command channel (guest/frames.py): commands, and connections to the box's sockets.

One TCP port of the loopback, forwarded by QEMU to the box's agent. QEMU accepts before the box listens, so that only an
answer proves that somebody is there.
"""

from __future__ import annotations

import os
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from hack.node.errors import ChannelError, CommandFailedError
from hack.node.guest import frames

Sink = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended; `code` is -n when signal n ended it."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output without the blanks around it."""
        return self.stdout.decode(errors="replace").strip()


class Channel:
    """Connections to the agent of one box. Threads may use it at the same time: each request has its own connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    def hello(self, *, resume: bool = False, timeout: float = 2) -> str:
        """The box's boot id. With `resume` its clock is set and its random numbers are stirred. Raises ChannelError."""
        facts = {"time": time.time(), "seed": os.urandom(32).hex()} if resume else {}
        with self._request({"hello": facts}, timeout) as connection:
            return str(_answer(connection)["boot"])

    def connect(self, where: str | int, timeout: float = 10) -> socket.socket:
        """A connection to a unix socket of the box, or to a TCP port of its loopback; raises ChannelError when the box
        can't connect to it."""
        connection = self._open({"connect": where}, timeout)
        try:
            _answer(connection)
        except BaseException:
            connection.close()
            raise
        connection.settimeout(None)
        return connection

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "/root",
        check: bool = True,
        timeout: float = 60,
        stdout: Sink | None = None,
        stderr: Sink | None = None,
    ) -> Result:
        """Run a command in the box: a string is a shell line, a sequence an argv.

        What it says is collected, or given to the sinks as it comes. Raises CommandFailedError when `check` and its
        code is not 0, ChannelError when it has not ended after `timeout` seconds (it is killed then).
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        deadline = time.monotonic() + timeout
        outs: list[bytes] = []
        errs: list[bytes] = []
        sinks: dict[int, Sink] = {frames.STDOUT: stdout or outs.append, frames.STDERR: stderr or errs.append}
        what = command if isinstance(command, str) else shlex.join(command)
        with self._request({"run": argv, "env": dict(env or {}), "cwd": cwd}, timeout) as connection:
            feeder = threading.Thread(target=_feed, args=(connection, stdin), name="box-stdin")
            feeder.start()
            try:
                code = _collect(connection, sinks, deadline)
            except TimeoutError:
                raise ChannelError(f"in the box, {what!r} had not ended after {timeout:g} s, and was killed") from None
            finally:
                _shut(connection)
                feeder.join()
        result = Result(code, b"".join(outs), b"".join(errs))
        if check and code:
            raise CommandFailedError(what, code, result.stdout, result.stderr)
        return result

    def _open(self, request: Mapping[str, Any], timeout: float) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            frames.send_json(connection, frames.REQUEST, request)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _request(self, request: Mapping[str, Any], timeout: float) -> Iterator[socket.socket]:
        try:
            with self._open(request, timeout) as connection:
                yield connection
        except (OSError, frames.BrokenChannelError) as error:
            raise ChannelError(f"the box's command channel broke: {error}") from error


def _answer(connection: socket.socket) -> dict[str, Any]:
    return _checked(frames.receive_json(connection, frames.ANSWER))


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise ChannelError(f"the box refused: {answer['error']}")
    return answer


def _collect(connection: socket.socket, sinks: Mapping[int, Sink], deadline: float) -> int:
    """Read a command's output until its code comes; raises TimeoutError at the deadline."""
    while True:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        kind, data = frames.receive(connection)
        if kind == frames.ANSWER:
            return int(_checked(frames.decode(data))["code"])
        sinks[kind](data)


def _feed(connection: socket.socket, stdin: bytes) -> None:
    try:
        for start in range(0, len(stdin), frames.CHUNK):
            frames.send(connection, frames.STDIN, stdin[start : start + frames.CHUNK])
        frames.send(connection, frames.STDIN, b"")
    except OSError:
        pass  # the command ended without reading all of it


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)

"""The box's end of the command channel (frames.py): runs commands and connects to unix sockets for the host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, Any

import frames  # type: ignore[import-not-found]

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin",
    "HOME": "/root",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
}

# linux/random.h: _IOW('R', 3, int[2]) and _IO('R', 7).
RNDADDENTROPY, RNDRESEEDCRNG = 0x40085203, 0x5207


def hello(connection: socket.socket, facts: dict[str, Any]) -> None:
    if "time" in facts:
        time.clock_settime(time.CLOCK_REALTIME, facts["time"])
    if "seed" in facts:
        seed = bytes.fromhex(facts["seed"])
        with Path("/dev/urandom").open("wb") as random:
            fcntl.ioctl(random, RNDADDENTROPY, struct.pack("ii", len(seed) * 8, len(seed)) + seed)
            fcntl.ioctl(random, RNDRESEEDCRNG)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    frames.send_json(connection, frames.ANSWER, {"boot": boot})


def connect(connection: socket.socket, where: str | int) -> None:
    with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as target:
        target.connect(where if isinstance(where, str) else ("127.0.0.1", where))
        frames.send_json(connection, frames.ANSWER, {})
        other = threading.Thread(target=frames.pump, args=(connection, target))
        other.start()
        frames.pump(target, connection)
        other.join()


def run(connection: socket.socket, request: dict[str, Any]) -> None:
    process = subprocess.Popen(
        request["run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=request.get("cwd", "/root"),
        env={**ENVIRONMENT, **request.get("env", {})},
        start_new_session=True,
    )
    lock = threading.Lock()

    def forward(stream: IO[bytes], kind: int) -> None:
        while part := stream.read(frames.CHUNK):
            with lock:
                try:
                    frames.send(connection, kind, part)
                except OSError:
                    return

    outputs = [
        threading.Thread(target=forward, args=(process.stdout, frames.STDOUT)),
        threading.Thread(target=forward, args=(process.stderr, frames.STDERR)),
    ]
    for thread in outputs:
        thread.start()
    ended = threading.Event()
    feeder = threading.Thread(target=feed, args=(connection, process, ended), daemon=True)
    feeder.start()
    for thread in outputs:
        thread.join()
    code = process.wait()
    ended.set()
    frames.send_json(connection, frames.ANSWER, {"code": code})
    # Closing with input unread would reset the connection, and the answer might be lost.
    connection.shutdown(socket.SHUT_WR)
    feeder.join(10)
    connection.shutdown(socket.SHUT_RDWR)


def feed(connection: socket.socket, process: subprocess.Popen[bytes], ended: threading.Event) -> None:
    """Give the command its input; kill its process group when the host goes away before its output has ended."""
    stdin: IO[bytes] | None = process.stdin
    try:
        while True:
            _kind, data = frames.receive(connection)
            try:
                if stdin and data:
                    view = memoryview(data)
                    while view:
                        view = view[stdin.write(view) :]
                elif stdin:
                    stdin.close()
                    stdin = None
            except BrokenPipeError:
                stdin = None
    except (frames.BrokenChannelError, OSError):
        if not ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def serve(connection: socket.socket) -> None:
    with connection:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = frames.receive_json(connection, frames.REQUEST)
            try:
                if "hello" in request:
                    hello(connection, request["hello"])
                elif "connect" in request:
                    connect(connection, request["connect"])
                else:
                    run(connection, request)
            except (OSError, ValueError, KeyError, TypeError) as error:
                frames.send_json(connection, frames.ANSWER, {"error": f"{type(error).__name__}: {error}"})
        except (frames.BrokenChannelError, OSError):
            pass


def main() -> None:
    listener = socket.create_server(("0.0.0.0", frames.PORT), backlog=128)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


main()

"""A session on a transport: one write a batch, bounded buffers, garbage, and an end that is told once."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from nri_cpu.cpuset import CPUSet
from nri_cpu.nri import connection as connection_module
from nri_cpu.nri import memory
from nri_cpu.nri.connection import LINGER, READ_SIZE, Connection
from nri_cpu.nri.methods import PLUGIN_SERVICE
from nri_cpu.nri.session import Session
from nri_cpu.ttrpc.trunk import Trunk
from tests.protocol.memory_runtime import CONFIGURE, RecordingHooks, synchronize
from tests.protocol.socket_runtime import CREATE, RuntimeConnection, SocketRuntime, take_in
from tests.protocol.test_life_cycle_reconnect import plugin
from tests.protocol.virtual_time import run, until


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Writes and settlements, in order."""
    events: list[str] = []
    monkeypatch.setattr(memory, "settle", lambda: events.append("settle"))
    return events


@pytest.fixture
def errors() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lines.append, level="ERROR", diagnose=False)
    yield lines
    logger.remove(sink)


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events
        self.written = b""

    def write(self, data: Any) -> None:
        self.events.append("write")
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def close(self) -> None:
        self.events.append("close")

    def abort(self) -> None:
        self.events.append("abort")


class Wired:
    """A connection on such a transport, and the runtime that feeds it."""

    def __init__(self, events: list[str]) -> None:
        self.hooks = RecordingHooks()
        self.connection = Connection(Session(self.hooks, "nri-cpu", "10"))
        self.wire = Wire(events)
        self.trunk = Trunk(server_id=2, client_id=1)
        self.connection.connection_made(self.wire)

    def ask(self, method: str, payload: bytes) -> None:
        self.trunk.call(PLUGIN_SERVICE, method, payload, 2.0)

    def deliver(self) -> None:
        self.hand(self.trunk.data_to_send())

    def hand(self, data: bytes) -> None:
        """As asyncio does with what a socket has."""
        while data:
            buffer = self.connection.get_buffer(-1)
            part = data[: len(buffer)]
            buffer[: len(part)] = part
            self.connection.buffer_updated(len(part))
            data = data[len(part) :]


def test_what_comes_together_is_answered_in_one_write(happened: list[str]) -> None:
    async def main() -> None:
        wired = Wired(happened)
        assert happened == ["write"]  # RegisterPlugin
        wired.ask("Configure", CONFIGURE.SerializeToString())
        wired.ask("Synchronize", b"")
        wired.ask("CreateContainer", CREATE.SerializeToString())
        wired.ask("Frobnicate", b"")
        wired.deliver()
        assert happened == ["write", "write"]
        assert len(wired.trunk.receive(wired.wire.written)) == 5
        wired.connection.connection_lost(None)

    run(main())


def test_what_is_no_whole_message_yet_is_answered_with_no_write(happened: list[str]) -> None:
    async def main() -> None:
        wired = Wired(happened)
        wired.ask("Configure", CONFIGURE.SerializeToString())
        data = wired.trunk.data_to_send()
        for at in range(len(data) - 1):
            wired.hand(data[at : at + 1])
        assert happened == ["write"]
        wired.hand(data[-1:])
        assert happened == ["write", "write"]
        wired.connection.connection_lost(None)

    run(main())


def test_no_garbage_is_collected_while_a_runtime_waits_to_be_answered_for_the_first_time(happened: list[str]) -> None:
    async def main() -> None:
        wired = Wired(happened)
        assert not gc.isenabled()
        wired.connection.connection_lost(None)
        assert gc.isenabled()

    run(main())


def test_a_message_longer_than_any_read_is_put_together(happened: list[str]) -> None:
    async def main() -> None:
        wired = Wired(happened)
        wired.ask("Configure", CONFIGURE.SerializeToString())
        containers = [f"{number:064}" for number in range(3 * READ_SIZE // 64)]
        wired.ask("Synchronize", synchronize([], containers).SerializeToString())
        wired.deliver()
        assert wired.hooks.named("synchronize") == [("synchronize", [], containers)]
        wired.connection.connection_lost(None)

    run(main())


@pytest.mark.fault("N3", "N4")
def test_memory_is_settled_once_the_answer_to_synchronize_is_out(happened: list[str]) -> None:
    async def main() -> None:
        wired = Wired(happened)
        wired.ask("Configure", CONFIGURE.SerializeToString())
        wired.ask("Synchronize", synchronize(["p"], ["c"], more=True).SerializeToString())
        wired.deliver()
        wired.ask("Synchronize", b"")
        wired.deliver()
        assert happened == ["write"] * 3
        await asyncio.sleep(0)
        assert happened == ["write"] * 3 + ["settle"]
        wired.ask("CreateContainer", CREATE.SerializeToString())
        wired.deliver()
        await asyncio.sleep(0)
        assert happened == ["write"] * 3 + ["settle", "write"]
        wired.connection.connection_lost(None)

    run(main())


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the runtime broke the protocol: mux frame of 791752241 bytes"),
        (b"\xff" * 8, "the runtime broke the protocol: mux frame of 4294967295 bytes"),
    ],
)
def test_garbage_on_the_socket_ends_the_connection_and_not_the_plugin(
    tmp_path: Path, happened: list[str], garbage: bytes, reason: str
) -> None:
    async def speak_otherwise(connection: RuntimeConnection) -> None:
        connection.transport.write(garbage)

    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock", speak_otherwise)
        await runtime.start()
        async with plugin(runtime.path) as ours:
            await until(lambda: len(runtime.connections) > 3)
            assert all(connection.lost for connection in runtime.connections[:-1])
            runtime.behave = take_in
            await until(runtime.synchronized)
            runtime.last.transport.write(garbage)
            await until(lambda: ours.hooks.asked[-1][0] == "disconnected")
            assert reason in ours.hooks.asked[-1][1]
            await until(runtime.synchronized)
        runtime.stop()

    run(main())


def test_a_mistake_of_ours_in_handling_a_message_ends_the_connection_and_not_the_plugin(
    tmp_path: Path, happened: list[str], errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock")
        await runtime.start()
        async with plugin(runtime.path) as ours:
            await until(runtime.synchronized)
            with monkeypatch.context() as patched:
                patched.setattr(Session, "_event", lambda self, call, method: 1 // 0)
                with pytest.raises(asyncio.CancelledError):
                    await runtime.last.ask("CreateContainer", CREATE)
            assert ours.hooks.asked[-1] == ("disconnected", "internal error (ZeroDivisionError)")
            await until(runtime.synchronized)
        runtime.stop()

    run(main())
    assert len(errors) == 1
    assert "ZeroDivisionError" in errors[0]


async def _taken_in(theirs: socket.socket, ours: socket.socket, hooks: RecordingHooks) -> tuple[Connection, Trunk]:
    """A connection, and the trunk of a runtime at a plain socket that writes a whole handshake and reads nothing."""
    _, connection = await asyncio.get_running_loop().create_unix_connection(
        lambda: Connection(Session(hooks, "nri-cpu", "10")), sock=ours
    )
    trunk = Trunk(server_id=2, client_id=1)
    trunk.call(PLUGIN_SERVICE, "Configure", CONFIGURE.SerializeToString(), 2.0)
    trunk.call(PLUGIN_SERVICE, "Synchronize", b"", 2.0)
    theirs.sendall(trunk.data_to_send())
    await until(lambda: bool(hooks.named("synchronized")))
    return connection, trunk


MEGABYTE = [(CPUSet([1]), [f"{number:064}" for number in range(12_000)])]


def test_answers_to_a_runtime_that_does_not_read_are_bounded(
    happened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "MAX_UNWRITTEN", 5_000_000)

    async def main() -> None:
        theirs, ours = socket.socketpair()
        hooks = RecordingHooks()
        connection, trunk = await _taken_in(theirs, ours, hooks)
        hooks.answers["stop_container"] = MEGABYTE
        for _ in range(10):
            trunk.call(PLUGIN_SERVICE, "StopContainer", b"", 2.0)
        theirs.sendall(trunk.data_to_send())
        assert "the runtime does not read" in await connection.ended
        assert hooks.asked[-1][0] == "disconnected"
        theirs.close()

    run(main())


@pytest.mark.fault("A24")
def test_closing_waits_for_a_runtime_that_does_not_read_no_longer_than_a_moment(happened: list[str]) -> None:
    async def main() -> None:
        theirs, ours = socket.socketpair()
        hooks = RecordingHooks()
        hooks.answers["synchronize"] = MEGABYTE
        connection, _ = await _taken_in(theirs, ours, hooks)
        connection.close("enough")
        before = asyncio.get_running_loop().time()
        assert hooks.asked[-1] == ("disconnected", "enough")
        assert await connection.ended == "enough"
        assert asyncio.get_running_loop().time() - before == pytest.approx(LINGER)
        theirs.close()

    run(main())


def test_the_last_answer_is_written_before_the_end(happened: list[str]) -> None:
    """A hook that fails in Synchronize is answered, and only then is the connection closed."""

    async def main() -> None:
        wired = Wired(happened)
        wired.hooks.answers["synchronize"] = RuntimeError("oops")
        wired.ask("Configure", CONFIGURE.SerializeToString())
        wired.ask("Synchronize", b"")
        wired.ask("CreateContainer", CREATE.SerializeToString())  # too late
        wired.deliver()
        assert happened == ["write", "write", "close"]
        assert len(wired.trunk.receive(wired.wire.written)) == 3
        wired.deliver()
        assert happened == ["write", "write", "close"]
        wired.connection.connection_lost(None)
        assert await wired.connection.ended == "Synchronize failed: RuntimeError"

    run(main())


@pytest.mark.parametrize(
    ("error", "reason"),
    [(None, "the runtime closed the connection"), (BrokenPipeError(32, "Broken pipe"), "Broken pipe")],
)
def test_an_end_is_told_once_with_its_reason(happened: list[str], error: Exception | None, reason: str) -> None:
    async def main() -> None:
        wired = Wired(happened)
        wired.ask("Configure", CONFIGURE.SerializeToString())
        wired.deliver()
        wired.connection.connection_lost(error)
        wired.connection.close("later")
        wired.connection.abort("still later")
        assert reason in await wired.connection.ended
        assert [asked[0] for asked in wired.hooks.asked] == ["configure", "disconnected"]

    run(main())

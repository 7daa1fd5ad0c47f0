"""serve(): for ever, through missing sockets, restarts and refusals, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from loguru import logger

from nri_cpu.nri import memory
from nri_cpu.nri.endpoint import InheritedFd, SocketPath
from nri_cpu.nri.errors import EndpointError, IdentityError
from nri_cpu.nri.hooks import HookError
from nri_cpu.nri.runner import LONGEST_UNREACHED, serve
from tests.protocol.memory_runtime import RecordingHooks
from tests.protocol.socket_runtime import (
    CREATE,
    Behaviour,
    RuntimeConnection,
    SocketRuntime,
    hang_up,
    only_configure,
    only_register,
    refuse,
    stay_silent,
    stop_between_parts,
    take_in,
)
from tests.protocol.virtual_time import now, run, until


@pytest.fixture(autouse=True)
def _no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole test run is on the heap, and a collection of it takes its time."""
    monkeypatch.setattr(memory, "settle", lambda: None)


@pytest.fixture
def logs() -> Iterator[list[str]]:
    """Warnings and above, as text."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="WARNING")
    yield lines
    logger.remove(sink)


class Plugin:
    """A plugin that is being served."""

    def __init__(self, path: Path) -> None:
        self.hooks = RecordingHooks()
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(
            serve(self.hooks, SocketPath(str(path)), name="nri-cpu", index="10", stop=self.stop)
        )

    async def stopped(self) -> float:
        """Tell it to stop; how many seconds that took."""
        before = now()
        self.stop.set()
        await self.task
        return now() - before


@asynccontextmanager
async def plugin(path: Path) -> AsyncIterator[Plugin]:
    running = Plugin(path)
    yield running
    assert await running.stopped() <= 1
    await asyncio.sleep(1)  # for the runtime to see the end


@pytest.mark.fault("R6")
def test_a_plugin_waits_out_twenty_seconds_without_a_socket(tmp_path: Path, logs: list[str]) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock")
        async with plugin(runtime.path) as ours:
            await asyncio.sleep(20)
            assert not ours.task.done()
            await runtime.start()
            await until(runtime.synchronized, limit=30)
        runtime.stop()

    run(main())
    assert len([line for line in logs if "no socket at" in line]) == 1


@pytest.mark.fault("R6", "N7", "N8")
def test_six_restarts_with_working_sessions_between_are_followed_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock")
        await runtime.start()
        async with plugin(runtime.path) as ours:
            for restart in range(7):
                await until(runtime.synchronized, limit=1)
                assert (await runtime.last.ask("CreateContainer", CREATE)).error is None
                assert len(ours.hooks.named("synchronize")) == restart + 1
                assert len(ours.hooks.named("disconnected")) == restart
                runtime.stop()
                await runtime.start()
            await until(runtime.synchronized, limit=1)
        runtime.stop()

    run(main())


@pytest.mark.fault("R6", "N7")
def test_a_runtime_that_is_away_for_a_while_finds_its_plugin_again(tmp_path: Path, logs: list[str]) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock")
        await runtime.start()
        async with plugin(runtime.path):
            await until(runtime.synchronized)
            runtime.stop()
            await asyncio.sleep(300)
            await runtime.start()
            # However long it was away: while it has no plugin, containers are created without one.
            await until(runtime.synchronized, limit=LONGEST_UNREACHED + 0.1)
        runtime.stop()

    run(main())
    assert [line.split(";")[0].split(": the")[0] for line in logs] == [
        "the runtime closed the connection",
        f"nobody listens at {tmp_path / 'nri.sock'}",
    ]


@pytest.mark.fault("R7")
def test_hooks_know_at_once_that_the_runtime_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock")
        await runtime.start()
        async with plugin(runtime.path) as ours:
            await until(runtime.synchronized)
            await until(lambda: ours.hooks.asked[-1] == ("synchronized",), limit=1)
            runtime.stop()
            await until(lambda: ours.hooks.asked[-1] == ("disconnected", "the runtime closed the connection"), limit=1)

    run(main())


@pytest.mark.fault("N5", "N7")
def test_parts_of_a_broken_synchronize_are_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock", stop_between_parts)
        await runtime.start()
        async with plugin(runtime.path) as ours:
            await until(lambda: bool(ours.hooks.named("configure")))
            await asyncio.sleep(1)
            runtime.behave = take_in
            runtime.last.transport.close()
            await until(runtime.synchronized)
            assert ours.hooks.named("synchronize") == [("synchronize", ["p0"], ["c0"])]
        runtime.stop()

    run(main())


@pytest.mark.fault("R6", "N6")
@pytest.mark.parametrize(
    ("behave", "reason", "tries"),
    [
        (refuse, "the runtime refuses plugin 10-nri-cpu: status 2 UNKNOWN: invalid plugin name", (25, 60)),
        (hang_up, "the runtime closed the connection", (25, 60)),
        (stay_silent, "the runtime has not configured this plugin within 30 s", (13, 22)),
        (only_register, "the runtime has not configured this plugin within 30 s", (13, 22)),
    ],
)
def test_a_runtime_that_does_not_take_us_in_is_asked_again_with_growing_pauses_and_one_log_line(
    tmp_path: Path, logs: list[str], behave: Behaviour, reason: str, tries: tuple[int, int]
) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock", behave)
        await runtime.start()
        async with plugin(runtime.path):
            await asyncio.sleep(800)
            assert tries[0] <= len(runtime.connections) <= tries[1]
            runtime.behave = take_in
            await until(runtime.synchronized)
        runtime.stop()

    run(main())
    assert [line.split("; trying again")[0] for line in logs] == [reason]


@pytest.mark.fault("N6")
def test_a_runtime_may_take_half_a_minute_before_it_takes_us_in(tmp_path: Path) -> None:
    async def late(connection: RuntimeConnection) -> None:
        await asyncio.sleep(29)
        await take_in(connection)

    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock", late)
        await runtime.start()
        async with plugin(runtime.path):
            await until(runtime.synchronized, limit=30)
            assert len(runtime.connections) == 1
        runtime.stop()

    run(main())


@pytest.mark.fault("N4")
def test_a_runtime_may_take_minutes_to_synchronize_a_plugin_that_it_has_configured(tmp_path: Path) -> None:
    """Its lock may be held as long, by a container that does not die (cri-o#10352)."""

    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock", only_configure)
        await runtime.start()
        async with plugin(runtime.path) as ours:
            await asyncio.sleep(240)
            assert len(runtime.connections) == 1
            assert ours.hooks.asked == [("configure", "containerd v2.1.4 (NRI 0.8.0)", "")]
        runtime.stop()

    run(main())


@pytest.mark.fault("N4")
def test_a_runtime_that_never_synchronizes_is_asked_anew(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock", only_configure)
        await runtime.start()
        async with plugin(runtime.path):
            await until(lambda: bool(runtime.connections))
            runtime.behave = take_in
            await until(runtime.synchronized, limit=400)
            await asyncio.sleep(3600)
            assert len(runtime.connections) == 2
        runtime.stop()

    run(main())


@pytest.mark.fault("R6")
def test_a_failing_synchronize_is_tried_again_with_growing_pauses(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock")
        await runtime.start()
        async with plugin(runtime.path) as ours:
            ours.hooks.answers["synchronize"] = HookError("not now")
            await asyncio.sleep(300)
            assert 10 <= len(runtime.connections) <= 30
            assert ours.hooks.named("synchronized") == []
            del ours.hooks.answers["synchronize"]
            await until(runtime.synchronized)
        runtime.stop()

    run(main())


@pytest.mark.fault("A24")
@pytest.mark.parametrize(
    "behave", [stay_silent, only_register, only_configure, stop_between_parts, take_in, refuse, hang_up, None]
)
@pytest.mark.parametrize("after", [0.0, 0.001, 0.2, 5.0, 77.7])
def test_a_stop_ends_it_quickly_and_quietly_in_whatever_state(
    tmp_path: Path, logs: list[str], behave: Behaviour | None, after: float
) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock", behave or take_in)
        if behave is not None:
            await runtime.start()
        ours = Plugin(runtime.path)
        await asyncio.sleep(after)
        before = len(logs)
        assert await ours.stopped() <= 1
        assert len(logs) == before
        await asyncio.sleep(0.1)
        assert all(connection.lost for connection in runtime.connections)
        assert len(ours.hooks.named("disconnected")) == len(ours.hooks.named("configure"))
        if behave is not None:
            runtime.stop()

    run(main())


@pytest.mark.fault("A24")
def test_a_stop_that_was_set_before_makes_no_connection(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock")
        await runtime.start()
        ours = Plugin(runtime.path)
        ours.stop.set()
        await ours.task
        await asyncio.sleep(1)
        assert all(connection.registration is None for connection in runtime.connections)
        runtime.stop()

    run(main())


@pytest.mark.fault("A24")
@pytest.mark.parametrize("behave", [stay_silent, only_configure, take_in, None])
def test_a_cancellation_closes_the_connection_and_is_passed_on(tmp_path: Path, behave: Behaviour | None) -> None:
    async def main() -> None:
        runtime = SocketRuntime(tmp_path / "nri.sock", behave or take_in)
        if behave is not None:
            await runtime.start()
        ours = Plugin(runtime.path)
        await asyncio.sleep(3)
        ours.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ours.task
        assert len(ours.hooks.named("disconnected")) == len(ours.hooks.named("configure"))
        await asyncio.sleep(0.1)
        assert all(connection.lost for connection in runtime.connections)
        if behave is not None:
            runtime.stop()

    run(main())


def test_a_bad_name_is_refused_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(IdentityError):
            await serve(RecordingHooks(), SocketPath(str(tmp_path)), name="", index="10", stop=asyncio.Event())

    run(main())


@pytest.mark.parametrize("stop", [False, True])
def test_an_inherited_connection_is_served_until_its_end(logs: list[str], stop: bool) -> None:
    async def main() -> None:
        theirs, ours = socket.socketpair()
        hooks, stopped = RecordingHooks(), asyncio.Event()
        served = asyncio.create_task(serve(hooks, InheritedFd(ours.detach()), name="nri-cpu", index="10", stop=stopped))
        _, runtime = await asyncio.get_running_loop().create_unix_connection(
            lambda: RuntimeConnection(take_in), sock=theirs
        )
        await until(lambda: runtime.synchronized)
        assert (await runtime.ask("CreateContainer", CREATE)).error is None
        if stop:
            stopped.set()
        else:
            runtime.transport.close()
        before = now()
        await served
        assert now() - before <= 1
        assert len(hooks.named("disconnected")) == 1
        await asyncio.sleep(0.1)
        assert runtime.lost

    run(main())
    assert len(logs) == (0 if stop else 1)


@pytest.mark.fault("N4")
def test_an_inherited_connection_is_not_given_up_while_the_runtime_takes_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        theirs, ours = socket.socketpair()
        stopped = asyncio.Event()
        served = asyncio.create_task(
            serve(RecordingHooks(), InheritedFd(ours.detach()), name="nri-cpu", index="10", stop=stopped)
        )
        _, runtime = await asyncio.get_running_loop().create_unix_connection(
            lambda: RuntimeConnection(only_configure), sock=theirs
        )
        await asyncio.sleep(3600)
        assert not served.done()
        assert not runtime.lost
        stopped.set()
        await served

    run(main())


def test_a_descriptor_that_is_no_connection_is_refused_at_once() -> None:
    async def main() -> None:
        fd = os.open("/dev/null", os.O_RDONLY)
        try:
            with pytest.raises(EndpointError, match=f"file descriptor {fd}"):
                await serve(RecordingHooks(), InheritedFd(fd), name="nri-cpu", index="10", stop=asyncio.Event())
        finally:
            os.close(fd)

    run(main())

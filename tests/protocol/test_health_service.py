"""Promises of the health service as a kubelet sees it: real gRPC over a real socket, literal method paths and bytes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from loguru import logger

from dra.health import DeviceHealth
from dra.kubelet import health_service
from dra.kubelet.health_service import LEASE, MAX_STREAMS, RESEND, HealthBoard
from dra.kubelet.server import UnixServer
from hack.wait import wait_until
from tests.protocol.fake_kubelet import HEALTH
from tests.protocol.wire import field, fields, texts

FINE = DeviceHealth("node-a", "cpudevnuma000", healthy=True)
ILL = DeviceHealth("node-a", "cpudevnuma001", healthy=False, message="off line: CPU 3 of claim default/c1")
# Longer than a test: no report but those that something caused.
NEVER = 3600.0
LIMIT = 60


class Serving:
    """A board on a socket."""

    def __init__(self, path: Path, resend: float = NEVER, workers: int = MAX_STREAMS + 4) -> None:
        self.path = path
        self.age = 0.0  # seconds since somebody looked
        self.board = HealthBoard(lambda: time.monotonic() - self.age, resend)
        self.server = UnixServer(path, self.board.handlers(), workers)

    @contextlib.contextmanager
    def running(self) -> Iterator[Serving]:
        self.server.start()
        try:
            yield self
        finally:
            self.board.close()
            self.server.stop()

    @contextlib.contextmanager
    def watch(self, version: str = "v1.DRAResourceHealth", **options: Any) -> Iterator[Stream]:
        """A stream of reports, over a connection of its own."""
        with grpc.insecure_channel(f"unix:{self.path}", list(options.items())) as channel:
            raw: Any = channel.unary_stream(HEALTH[version])
            yield Stream(raw(b"", timeout=LIMIT, wait_for_ready=True))

    def counts(self, streams: int) -> None:
        wait_until(f"{streams} streams", lambda: self.board.streams == streams)


class Stream:
    """`lease`: for how many seconds the last report holds."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.lease = 0

    def report(self) -> list[tuple[str, str, int, str]]:
        """Pool, device, health and message of each device of the next report."""
        devices = []
        for each in fields(next(self.call)).get(1, []):
            device = fields(cast("bytes", each))
            self.lease = cast("int", device[4][0])
            pool, name = (texts(fields(cast("bytes", device[1][0]))[number])[0] for number in (1, 2))
            devices.append((pool, name, cast("int", device[2][0]), texts(device.get(5, [b""]))[0]))
        return devices

    def end(self) -> grpc.StatusCode:
        """How the stream ends, when it does; reports before are read."""
        with pytest.raises(grpc.RpcError):
            for _ in self.call:
                pass
        code: grpc.StatusCode = self.call.code()
        return code


def told(*devices: DeviceHealth) -> list[tuple[str, str, int, str]]:
    return [(device.pool, device.device, 1 if device.healthy else 2, device.message) for device in devices]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path / "dra.sock").running() as serving:
        serving.board.set((FINE, ILL))
        yield serving


@pytest.mark.parametrize("version", HEALTH)
def test_the_bytes_are_those_that_a_kubelet_reads(serving: Serving, version: str) -> None:
    with serving.watch(version) as stream:
        before = int(time.time())
        raw = next(stream.call)
        stamp = cast("int", fields(cast("bytes", fields(raw)[1][0]))[3][0])
        assert before - 60 <= stamp <= before + 60
        after = field(3, stamp) + field(4, 20)
        fine = field(1, field(1, "node-a") + field(2, "cpudevnuma000")) + field(2, 1) + after
        ill = field(1, field(1, "node-a") + field(2, "cpudevnuma001")) + field(2, 2) + after
        assert raw == field(1, fine) + field(1, ill + field(5, "off line: CPU 3 of claim default/c1"))


@pytest.mark.fault("B10")
def test_a_stream_has_all_devices_at_its_start_and_at_each_change(serving: Serving) -> None:
    with serving.watch() as stream:
        assert stream.report() == told(FINE, ILL)
        serving.board.set((FINE,))
        assert stream.report() == told(FINE)
        serving.board.set(())
        assert stream.report() == []


def test_what_is_no_news_is_not_told_again(serving: Serving) -> None:
    with serving.watch() as stream:
        assert stream.report() == told(FINE, ILL)
        serving.board.set((FINE, ILL))
        serving.board.set((FINE,))
        assert stream.report() == told(FINE)


@pytest.mark.fault("B10")
def test_a_report_is_sent_again_before_a_kubelet_forgets(tmp_path: Path) -> None:
    assert RESEND < LEASE < 30
    with Serving(tmp_path / "dra.sock", resend=0.05).running() as serving, serving.watch() as stream:
        serving.board.set((ILL,))
        for _ in range(5):
            assert stream.report() == told(ILL)
            assert stream.lease == LEASE


@pytest.mark.fault("B10")
def test_what_nobody_looks_at_any_more_is_not_sent_again_as_news(tmp_path: Path) -> None:
    with Serving(tmp_path / "dra.sock", resend=0.01).running() as serving, serving.watch() as stream:
        serving.board.set((FINE,))
        assert stream.report() == told(FINE)
        serving.age = 5.5
        while stream.report() and stream.lease == LEASE:
            pass
        assert stream.lease == LEASE - 5
        stamp = fields(cast("bytes", fields(next(stream.call))[1][0]))[3][0]
        assert time.time() - 60 <= cast("int", stamp) <= time.time() - 5
        serving.age = LEASE + 0.5
        reports = Reports(stream)
        wait_until("no more reports", reports.are_over)
        serving.board.set((ILL,))  # claims have changed, and nobody knows about their CPUs
        with serving.watch() as late:
            serving.counts(2)
            wait_until("still none", reports.are_over)
            serving.age = 0
            assert late.report() == told(ILL)
        wait_until("reports again", lambda: not reports.are_over())
        stream.call.cancel()
        reports.join()


class Reports(threading.Thread):
    """Counts the reports of a stream."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream
        self.count = 0
        self.start()

    def run(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            while self.stream.report() or True:
                self.count += 1

    def are_over(self) -> bool:
        """Whether none comes in many times the time between two."""
        before = self.count
        self.join(0.2)
        return self.count == before


@pytest.mark.parametrize("resend", [NEVER, 0.01])
def test_before_anything_is_known_nothing_is_told(tmp_path: Path, resend: float) -> None:
    with Serving(tmp_path / "dra.sock", resend).running() as serving, serving.watch() as stream:
        serving.counts(1)
        serving.board.set((FINE,))
        assert stream.report() == told(FINE)


@pytest.mark.fault("B10")
def test_all_streams_of_both_versions_are_told_and_know_nothing_of_each_other(serving: Serving) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(serving.watch(version)) for version in [*HEALTH] * 3]
        for stream in streams:
            assert stream.report() == told(FINE, ILL)
        streams.pop().call.cancel()
        serving.board.set((ILL,))
        for stream in streams:
            assert stream.report() == told(ILL)


def test_a_stream_ends_with_its_caller(serving: Serving) -> None:
    with serving.watch() as stream:
        stream.report()
        serving.counts(1)
        stream.call.cancel()
        serving.counts(0)
    with serving.watch() as stream:
        stream.report()
        serving.counts(1)
    serving.counts(0)  # the connection is gone


@pytest.mark.fault("B10")
def test_a_stream_that_is_not_read_holds_up_nobody_and_finds_the_newest_report(serving: Serving) -> None:
    many = tuple(DeviceHealth("node-a", f"cpudev{number:04}", False, "x" * 1000) for number in range(500))
    last = (DeviceHealth("node-a", "last", healthy=True),)
    with serving.watch() as slow, serving.watch() as quick:
        slow.report()
        quick.report()
        for number in range(40):  # half a MiB each, much more than a connection holds
            serving.board.set((*many, DeviceHealth("node-a", f"n{number}", healthy=True)))
            assert len(quick.report()) == 501
        serving.board.set(last)
        assert quick.report() == told(*last)
        reports = 0
        while slow.report() != told(*last):
            reports += 1
        assert reports < 40


@pytest.mark.fault("B10")
def test_one_stream_too_many_ends_the_oldest(serving: Serving) -> None:
    with ExitStack() as stack:
        streams = []
        for _ in range(MAX_STREAMS + 2):
            streams.append(stack.enter_context(serving.watch()))
            assert streams[-1].report() == told(FINE, ILL)
        assert [stream.end() for stream in streams[:2]] == [grpc.StatusCode.CANCELLED] * 2
        serving.board.set((ILL,))
        for stream in streams[2:]:
            assert stream.report() == told(ILL)


@pytest.mark.fault("B10", "K4")
def test_a_hundred_streams_leave_threads_for_other_calls(tmp_path: Path) -> None:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        return request

    echo: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)
    serving = Serving(tmp_path / "dra.sock")
    other = grpc.method_handlers_generic_handler("test.Service", {"Echo": echo})
    serving.server = UnixServer(serving.path, [*serving.board.handlers(), other], MAX_STREAMS + 1)
    with serving.running(), ExitStack() as stack:
        big = tuple(DeviceHealth("node-a", f"cpudev{number:04}", False, "x" * 1000) for number in range(500))
        serving.board.set(big)
        cut_off: list[object] = []
        stack.callback(logger.remove, logger.add(cut_off.append, filter=lambda record: "cut off" in record["message"]))
        streams = [stack.enter_context(serving.watch(number=number)) for number in range(100)]  # none is read
        wait_until("all but the latest are cut off", lambda: len(cut_off) == len(streams) - MAX_STREAMS)
        with grpc.insecure_channel(f"unix:{serving.path}") as channel:
            raw: Any = channel.unary_unary("/test.Service/Echo")
            assert raw(b"there?", timeout=LIMIT, wait_for_ready=True) == b"there?"
        with serving.watch() as latest:
            assert len(latest.report()) == 500


@pytest.mark.fault("A25")
def test_at_the_end_all_streams_end_at_once_also_those_that_are_not_read(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "dra.sock")
    serving.server.start()
    serving.board.set(tuple(DeviceHealth("node-a", f"cpudev{number:04}", False, "x" * 1000) for number in range(1000)))
    with serving.watch() as read, serving.watch() as unread:
        read.report()
        serving.counts(2)
        serving.board.close()
        serving.counts(0)
        serving.board.close()
        with serving.watch() as late:
            assert late.end() is grpc.StatusCode.UNAVAILABLE
        serving.server.stop()
        assert read.end() is grpc.StatusCode.CANCELLED
        assert unread.end() is grpc.StatusCode.CANCELLED
    wait_until(
        "their threads are free",
        lambda: not [each for each in threading.enumerate() if each.name.startswith("kubelet")],
    )


@pytest.mark.parametrize("request_", [b"\xff\xff", field(9, "newer"), b"x" * 1000], ids=["broken", "newer", "long"])
def test_what_stands_in_a_request_that_should_be_empty_does_no_harm(serving: Serving, request_: bytes) -> None:
    with grpc.insecure_channel(f"unix:{serving.path}") as channel:
        raw: Any = channel.unary_stream(HEALTH["v1.DRAResourceHealth"])
        assert Stream(raw(request_, timeout=LIMIT)).report() == told(FINE, ILL)


def test_a_message_in_any_alphabet_arrives(serving: Serving) -> None:
    strange = DeviceHealth("node-a", "cpudevnuma000", healthy=False, message="ä\u4e16\U0001f600\n\0")
    with serving.watch() as stream:
        stream.report()
        serving.board.set((strange,))
        assert stream.report() == told(strange)


def test_the_services_are_those_that_the_registration_names() -> None:
    assert list(health_service.SERVICES) == list(HEALTH)


def test_a_call_that_is_over_before_it_began_leaves_no_stream() -> None:
    class Over:
        def add_callback(self, callback: object) -> bool:
            return False

    board = HealthBoard(time.monotonic, NEVER)
    board.set((FINE,))
    assert list(board._watch(b"", cast("grpc.ServicerContext", Over()))) == []
    assert board.streams == 0

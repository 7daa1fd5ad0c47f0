"""Promises of the registration as a kubelet sees it: real gRPC over real sockets, literal method paths and bytes."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from loguru import logger

from dra.kubelet import registration
from dra.kubelet.registration import Registration, RegistrationState, RegistrationStatus
from dra.kubelet.server import ServerError, UnixServer
from dra.kubelet.service import DRAService
from dra.kubelet.sockets import Sockets, remove_stale, sockets
from hack.wait import wait_until
from tests.protocol.fake_kubelet import DRA, GET_INFO, NOTIFY, FakeKubelet, call, get_info
from tests.protocol.wire import field
from tests.unit.dra.rig import Rig
from tests.unit.dra.virtual_time import VirtualTime

UIDS = ("11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555")
SERVICES = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]


class Instance:
    """A dra-cpu, as far as it is registered: its two servers."""

    def __init__(self, paths: Sockets, handlers: list[grpc.GenericRpcHandler] | None = None) -> None:
        self.sockets = paths
        self.times = 0
        self.registration = Registration(paths.dra, paths.registration.parent, self._registered)
        self.dra = UnixServer(paths.dra, handlers or [], workers=32)
        self.server = UnixServer(paths.registration, [self.registration.handler()], registration.WORKERS)

    def _registered(self) -> None:
        self.times += 1

    def start(self) -> None:
        self.dra.start()
        self.server.start()

    def stop(self) -> None:
        self.server.stop()
        self.dra.stop()

    def reaches(self, state: RegistrationState) -> RegistrationStatus:
        wait_until(f"{state}", lambda: self.registration.status.state is state)
        return self.registration.status


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet's root, short enough for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="k") as directory:
        yield Path(directory)


@pytest.fixture
def kubelet(root: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(root).running() as kubelet:
        yield kubelet


@pytest.fixture
def instance(root: Path) -> Iterator[Instance]:
    instance = Instance(sockets(root, None))
    instance.start()
    yield instance
    instance.stop()


@pytest.fixture
def channel(instance: Instance) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{instance.sockets.registration}") as channel:
        yield channel


@pytest.fixture
def log() -> Iterator[list[str]]:
    """What is said, a line each: level and message."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message).rstrip()), format="{level} {message}", level="INFO")
    yield lines
    logger.remove(sink)


def refused(channel: grpc.Channel, request: bytes) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, NOTIFY, request, 30)
    error: Any = caught.value
    return f"{error.code().name}: {error.details()}"


def test_the_bytes_are_those_that_a_kubelet_reads(instance: Instance, channel: grpc.Channel) -> None:
    assert call(channel, GET_INFO, b"", 30) == (
        field(1, "DRAPlugin")
        + field(2, "dra.cpu")
        + field(3, str(instance.sockets.dra))
        + b"".join(field(4, service) for service in SERVICES)
    )
    assert call(channel, NOTIFY, field(1, 1), 30) == b""


def test_a_kubelet_that_watches_takes_us(kubelet: FakeKubelet, instance: Instance) -> None:
    plugin = kubelet.plugin("dra.cpu")
    assert (plugin.type, plugin.endpoint) == ("DRAPlugin", str(instance.sockets.dra))
    assert kubelet.service(plugin) == "v1.DRAPlugin"
    assert instance.reaches(RegistrationState.REGISTERED) == RegistrationStatus(RegistrationState.REGISTERED)
    wait_until("publishing is told", lambda: instance.times)
    assert instance.registration.overdue_message() is None


def test_a_kubelet_that_starts_later_takes_us_too(root: Path, instance: Instance) -> None:
    with FakeKubelet(root).running() as kubelet:
        assert kubelet.plugin("dra.cpu").socket == instance.sockets.registration


def test_an_older_kubelet_takes_the_version_that_it_knows(root: Path, instance: Instance) -> None:
    with FakeKubelet(root, understands=["v1beta1.DRAPlugin"]).running() as kubelet:
        assert kubelet.service(kubelet.plugin("dra.cpu")) == "v1beta1.DRAPlugin"


@pytest.mark.fault("K10")
def test_each_kubelet_that_takes_us_has_publishing_told(root: Path, instance: Instance, log: list[str]) -> None:
    kubelet = FakeKubelet(root)
    for times in (1, 2):  # at its start a kubelet deletes the slices of its node
        with kubelet.running():
            wait_until("publishing is told", lambda: instance.times == times)  # noqa: B023
    assert [line for line in log if "registered" in line] == ["INFO the kubelet has registered dra.cpu"]


@pytest.mark.fault("A32")
def test_a_refusal_is_kept_with_its_reason_until_the_kubelet_changes_its_mind(
    root: Path, instance: Instance, log: list[str]
) -> None:
    kubelet = FakeKubelet(root, refusal="version 7 is needed")
    with kubelet.running():
        assert instance.reaches(RegistrationState.REFUSED).reason == "version 7 is needed"
        assert instance.registration.overdue_message() == "the kubelet refuses dra.cpu: version 7 is needed"
        wait_until("it is refused again and again", lambda: len(kubelet.failures) > 2)
        assert log == ["ERROR the kubelet refuses dra.cpu: version 7 is needed"]
        assert instance.times == 0
        kubelet.refusal = None
        assert instance.reaches(RegistrationState.REGISTERED).reason == ""


@pytest.mark.fault("A32")
def test_a_refusal_without_a_reason_says_so(root: Path, instance: Instance) -> None:
    with FakeKubelet(root, refusal="").running():
        assert instance.reaches(RegistrationState.REFUSED).reason == ""
    assert instance.registration.overdue_message() == (
        "the kubelet refuses dra.cpu: it gave no reason, its log may have one"
    )


@pytest.mark.fault("A32")
def test_a_kubelet_that_never_called_is_told_from_one_that_only_asked(
    root: Path, instance: Instance, channel: grpc.Channel
) -> None:
    assert instance.registration.status == RegistrationStatus(RegistrationState.WAITING)
    told = instance.registration.overdue_message()
    assert told is not None
    assert told.startswith(f"the kubelet never called: it has to watch {root}/plugins_registry; check ")
    get_info(channel, instance.sockets.registration)
    assert instance.registration.status == RegistrationStatus(RegistrationState.WAITING)
    asked = instance.registration.overdue_message()
    assert asked is not None
    assert asked.startswith("the kubelet has asked who serves dra.cpu, but not said")
    instance.registration.forget()
    assert instance.registration.overdue_message() == told, "of the socket that has gone it has asked, not of this one"


@pytest.mark.fault("A32")
def test_a_kubelet_that_does_not_call_is_told_of_once_at_the_start_and_once_after_the_socket_had_gone(
    root: Path, log: list[str]
) -> None:
    clock = VirtualTime()
    subject = Registration(Path("/dra.sock"), root, lambda: None, clock)

    def seconds(count: int) -> int:
        for _ in range(count):
            clock.wait(threading.Event(), 1)
            subject.look()
        return len([line for line in log if "the kubelet never called" in line])

    assert seconds(29) == 0
    assert seconds(3600) == 1
    subject.forget()
    assert seconds(29) == 1
    assert seconds(3600) == 2


@pytest.mark.fault("A32")
@pytest.mark.parametrize("refusal", [None, "I know no such thing"])
def test_a_kubelet_that_has_called_is_not_told_of(root: Path, log: list[str], refusal: str | None) -> None:
    clock = VirtualTime()
    subject = Registration(Path("/dra.sock"), root, lambda: None, clock)
    server = UnixServer(root / "reg.sock", [subject.handler()])
    server.start()
    with grpc.insecure_channel(f"unix:{root / 'reg.sock'}") as channel:
        if refusal is None:
            call(channel, NOTIFY, field(1, 1), 30)
        else:
            refused(channel, field(2, refusal))
    server.stop()
    clock.wait(threading.Event(), 3600)
    subject.look()
    assert not [line for line in log if "WARNING" in line]
    subject.forget()
    assert subject.status.state is RegistrationState.WAITING


@pytest.mark.fault("A32")
def test_a_refusal_is_answered_as_the_go_helper_does(channel: grpc.Channel) -> None:
    assert refused(channel, field(2, "no")) == "UNKNOWN: dra.cpu is not registered: no"
    assert refused(channel, b"").startswith("UNKNOWN: dra.cpu is not registered: it gave no reason")
    assert call(channel, NOTIFY, field(1, 1), 30) == b""


def test_what_the_kubelet_says_is_one_line_of_limited_length(
    instance: Instance, channel: grpc.Channel, log: list[str]
) -> None:
    refused(channel, field(2, "a\nERROR forged\x1b[31m" + "x" * 100_000))
    assert len(log) == 1
    assert log[0].startswith("ERROR the kubelet refuses dra.cpu: a?ERROR forged?[31mxxx")
    assert len(log[0]) < 1024
    assert log[0].isprintable()


def test_what_is_no_message_changes_nothing(instance: Instance, channel: grpc.Channel, log: list[str]) -> None:
    call(channel, NOTIFY, field(1, 1), 30)
    for broken in (b"\xff", b"\x12\x05ab", field(2, b"\xff\xfe"), field(2, "x")[:-1]):
        assert refused(channel, broken) == (
            f"INVALID_ARGUMENT: the request has {len(broken)} bytes that are no RegistrationStatus"
        )
    assert instance.registration.status.state is RegistrationState.REGISTERED
    assert get_info(channel, Path()).name == "dra.cpu"
    # Fields of a newer kubelet, and a request of GetInfo that is no longer empty.
    assert call(channel, NOTIFY, field(1, 1) + field(9, "new"), 30) == b""
    assert call(channel, GET_INFO, b"\xff\xff", 30)


def test_a_request_larger_than_any_is_refused_and_the_next_one_is_answered(
    instance: Instance, channel: grpc.Channel
) -> None:
    assert refused(channel, field(2, b"x" * (5 << 20))).startswith("RESOURCE_EXHAUSTED")
    assert get_info(channel, Path()).name == "dra.cpu"
    assert instance.registration.status.state is RegistrationState.WAITING


def test_a_failure_of_what_follows_is_told_and_the_registration_holds(root: Path, log: list[str]) -> None:
    def fail() -> None:
        raise RuntimeError("no publisher")

    subject = Registration(Path("/dra.sock"), root, fail)
    server = UnixServer(root / "reg.sock", [subject.handler()])
    server.start()
    with grpc.insecure_channel(f"unix:{root / 'reg.sock'}") as channel:
        assert call(channel, NOTIFY, field(1, 1), 30) == b""
    server.stop()
    assert subject.status.state is RegistrationState.REGISTERED
    assert any("what follows a registration failed" in line and "no publisher" in line for line in log)


@pytest.mark.fault("K6")
@pytest.mark.parametrize("version", DRA)
def test_get_info_is_answered_while_as_many_prepares_hang_as_there_can_be(
    root: Path, tmp_path: Path, version: str
) -> None:
    rig = Rig(tmp_path)
    go, reading = threading.Event(), threading.Semaphore(0)

    def hang(ref: object) -> None:
        reading.release()
        assert go.wait(60)

    rig.claims.before = hang
    instance = Instance(sockets(root, None), DRAService(rig.preparer).handlers())
    instance.start()
    with ExitStack() as stack:
        stack.callback(instance.stop)
        stack.callback(go.set)
        dra = stack.enter_context(grpc.insecure_channel(f"unix:{instance.sockets.dra}"))
        asked = stack.enter_context(grpc.insecure_channel(f"unix:{instance.sockets.registration}"))
        prepare: Any = dra.unary_unary(f"{DRA[version]}NodePrepareResources")
        refs = [rig.claim(number) for number in range(64)]  # more than the server has threads
        calls = [
            prepare.future(field(1, field(1, ref.namespace) + field(2, ref.uid) + field(3, ref.name)), timeout=45)
            for ref in refs
        ]
        for _ in range(32):
            assert reading.acquire(timeout=30)
        assert get_info(asked, Path()).name == "dra.cpu"
        go.set()
        assert all(each.result() for each in calls)


@pytest.mark.fault("K6")
def test_clients_that_hang_or_come_by_the_hundred_hold_up_no_kubelet(instance: Instance, channel: grpc.Channel) -> None:
    path = str(instance.sockets.registration)
    with ExitStack() as stack:
        for _ in range(100):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect(path)
        over = threading.Event()
        stack.callback(over.set)
        for number in range(registration.WORKERS - 1):
            half = stack.enter_context(grpc.insecure_channel(f"unix:{path}", [("half", number)]))
            never: Any = half.stream_unary(GET_INFO)  # a call that is opened, and whose request does not come
            stack.callback(never.future(iter(over.wait, True)).cancel)
        assert get_info(channel, Path()).name == "dra.cpu"
    for number in range(100):
        with grpc.insecure_channel(f"unix:{path}", [("number", number)]) as each:
            assert get_info(each, Path()).name == "dra.cpu"
    assert get_info(channel, Path()).name == "dra.cpu"


@pytest.mark.fault("K7", "A25")
def test_when_the_socket_goes_the_kubelet_forgets_us(kubelet: FakeKubelet, root: Path) -> None:
    instance = Instance(sockets(root, None))
    instance.start()
    kubelet.plugin("dra.cpu")
    instance.server.stop()
    wait_until("it is forgotten", lambda: not kubelet.registered)
    assert instance.sockets.dra.exists()  # what is under way may still end
    instance.dra.stop()
    assert not list(root.rglob("*.sock"))


@pytest.mark.fault("K7")
def test_a_socket_left_by_a_killed_instance_is_taken_over(kubelet: FakeKubelet, root: Path) -> None:
    paths = sockets(root, None)
    for path in (paths.registration, paths.dra):
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    assert kubelet.failure("UNAVAILABLE")
    instance = Instance(paths)
    instance.start()
    assert kubelet.plugin("dra.cpu").endpoint == str(paths.dra)
    instance.stop()


@pytest.mark.fault("K8", "K9")
def test_a_second_instance_takes_over_without_a_gap(kubelet: FakeKubelet, root: Path) -> None:
    old, new = (Instance(sockets(root, uid)) for uid in UIDS)
    old.start()
    assert kubelet.plugin("dra.cpu").endpoint == str(old.sockets.dra)
    assert remove_stale(new.sockets) == []
    new.start()
    wait_until("both are there", lambda: len(kubelet.registered) == 2)
    old.stop()
    wait_until("one is left", lambda: len(kubelet.registered) == 1)
    assert kubelet.plugin("dra.cpu").endpoint == str(new.sockets.dra)
    new.stop()


@pytest.mark.fault("A36")
def test_a_registry_that_can_not_have_a_socket_is_named(root: Path) -> None:
    (root / "plugins_registry").write_text("")
    server = UnixServer(sockets(root, None).registration, [])
    with pytest.raises(ServerError, match=r"plugins_registry/dra\.cpu-reg\.sock can't be made: "):
        server.start()

"""Synchronize, whole and in parts, and its failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.nri import nri_pb2 as pb
from nri_cpu.nri import session as session_module
from nri_cpu.nri.hooks import HookError
from nri_cpu.nri.replies import synchronize_reply
from nri_cpu.nri.session import MAX_ANSWER, Session, State
from nri_cpu.ttrpc.codes import Code
from nri_cpu.ttrpc.frames import MAX_DATA
from tests.protocol.memory_runtime import CONFIGURE, Peer, RecordingHooks, peer_in, synchronize

CPUS = CPUSet.parse("2-7")
UPDATES = [(CPUS, ["c1", "c2"])]

ids = st.lists(st.text("abcdef0123456789", min_size=1, max_size=6), max_size=5)


def failed(peer: Peer, part: str) -> None:
    """Our failure in Synchronize: nobody is told that we were synchronized, and the connection is done for."""
    assert part in str(peer.closed)
    assert peer.session.state is State.CLOSED
    assert not peer.session.synchronized
    assert peer.hooks.named("synchronized") == []
    assert peer.hooks.named("disconnected") == [("disconnected", str(peer.closed))]


def test_updates_are_in_the_answer_and_ignore_failures() -> None:
    peer = peer_in(State.CONFIGURED)
    peer.hooks.answers["synchronize"] = UPDATES
    answer = peer.synchronize(["p"], ["c1", "c2"])
    response = pb.SynchronizeResponse.FromString(answer.payload)
    assert not response.more
    assert [(u.container_id, u.linux.resources.cpu.cpus, u.ignore_failure) for u in response.update] == [
        ("c1", "2-7", True),
        ("c2", "2-7", True),
    ]


@pytest.mark.fault("N5")
@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=4))
def test_parts_are_one_synchronize_and_only_the_last_is_answered_with_updates(
    parts: list[tuple[list[str], list[str]]],
) -> None:
    peer = peer_in(State.CONFIGURED)
    peer.hooks.answers["synchronize"] = UPDATES
    for pods, containers in parts[:-1]:
        answer = peer.synchronize(pods, containers, more=True)
        assert pb.SynchronizeResponse.FromString(answer.payload) == pb.SynchronizeResponse(more=True)
        assert peer.session.state is State.SYNCHRONIZING
        assert peer.hooks.named("synchronize") == []
    response = pb.SynchronizeResponse.FromString(peer.synchronize(*parts[-1]).payload)
    assert (len(response.update), response.more) == (2, False)
    every_pod = [pod for pods, _ in parts for pod in pods]
    every_container = [container for _, containers in parts for container in containers]
    assert peer.hooks.asked[-2:] == [("synchronize", every_pod, every_container), ("synchronized",)]


@pytest.mark.fault("N5", "N7")
def test_parts_of_a_lost_connection_are_forgotten() -> None:
    hooks = RecordingHooks()
    first = peer_in(State.SYNCHRONIZING, hooks)
    first.session.lost("in the middle")
    second = peer_in(State.CONFIGURED, hooks)
    second.synchronize(["p1"], ["c1"])
    assert hooks.named("synchronize") == [("synchronize", ["p1"], ["c1"])]


@pytest.mark.fault("N4")
def test_synchronized_is_told_after_the_answer_has_been_written() -> None:
    hooks = RecordingHooks()
    session = Session(hooks, "nri-cpu", "10")
    peer = Peer(hooks)
    peer.session = session
    peer.start().accept().configure()
    peer.trunk.call("nri.pkg.api.v1alpha1.Plugin", "Synchronize", b"", 2.0)
    session.receive(peer.trunk.data_to_send())
    assert session.data_to_send()
    assert hooks.named("synchronized") == []
    assert session.written()
    assert hooks.named("synchronized") == [("synchronized",)]
    assert not session.written()
    assert len(hooks.named("synchronized")) == 1


@pytest.mark.fault("N4")
def test_an_answer_that_was_never_written_is_not_told() -> None:
    hooks = RecordingHooks()
    peer = peer_in(State.CONFIGURED, hooks)
    peer.trunk.call("nri.pkg.api.v1alpha1.Plugin", "Synchronize", b"", 2.0)
    peer.session.receive(peer.trunk.data_to_send())
    peer.session.lost("before the write")
    assert not peer.session.written()
    assert hooks.named("synchronized") == []


@pytest.mark.parametrize(
    ("error", "text", "reason"),
    [
        (HookError("the checkpoint is gone"), "the checkpoint is gone", "Synchronize failed: the checkpoint is gone"),
        (ZeroDivisionError("secret"), "plugin 10-nri-cpu: Synchronize failed (ZeroDivisionError)", "ZeroDivisionError"),
    ],
)
def test_a_hook_that_fails_is_answered_with_an_error_and_ends_the_session(
    error: Exception, text: str, reason: str
) -> None:
    peer = peer_in(State.CONFIGURED)
    peer.hooks.answers["synchronize"] = error
    answer = peer.synchronize(["p"], ["c"])
    assert answer.error is not None
    assert answer.error.code == Code.UNKNOWN
    assert text in answer.error.message
    assert "secret" not in answer.error.message
    failed(peer, reason)


@pytest.mark.fault("A23")
@pytest.mark.parametrize("updates", [[(EMPTY, ["c1"])], [(CPUS, ["c1"]), (CPUS, ["c1"])], 7])
def test_updates_that_must_not_be_sent_end_the_session(updates: object) -> None:
    peer = peer_in(State.CONFIGURED)
    peer.hooks.answers["synchronize"] = updates
    assert peer.synchronize(["p"], ["c1"]).error is not None
    failed(peer, "Synchronize failed")


def test_a_part_that_cannot_be_read_ends_the_session() -> None:
    peer = peer_in(State.SYNCHRONIZING)
    answer = peer.ask("Synchronize", b"\x0a\x03\x0a\x01\xff")
    assert answer.error is not None
    assert answer.error.code == Code.INTERNAL
    failed(peer, "can't be read")


def test_parts_without_end_end_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_SYNCHRONIZE", 100_000)
    peer = peer_in(State.CONFIGURED)
    pods = [f"{number:060}" for number in range(100)]
    for _ in range(1000):
        if peer.closed is not None:
            break
        answer = peer.synchronize(pods, [], more=True)
    assert answer.error is not None
    assert answer.error.code == Code.RESOURCE_EXHAUSTED
    failed(peer, "more than 100000 bytes")


@pytest.mark.fault("N4")
def test_an_answer_that_the_runtime_no_longer_waits_for_ends_the_session() -> None:
    times = iter([100.0, 102.1])  # the clock goes on while the hook works
    peer = Peer(clock=lambda: next(times)).start().accept().configure()
    peer.synchronize(["p"], [])
    failed(peer, "0.1 s after the runtime had given up")


@pytest.mark.fault("N4", "N5")
def test_all_parts_share_one_deadline() -> None:
    times = iter([100.0, 101.5, 102.1, 102.1])
    peer = Peer(clock=lambda: next(times)).start().accept().configure()
    peer.synchronize(["p"], [], more=True)
    peer.synchronize(["p"], [], more=True)
    peer.synchronize(["p"], [])
    failed(peer, "0.1 s after the runtime had given up")


@pytest.mark.fault("N4")
@pytest.mark.parametrize("timeout", [2.0, None])
def test_an_answer_in_time_does_not(timeout: float | None) -> None:
    times = iter([100.0, 101.9])
    peer = Peer(clock=lambda: next(times)).start().accept().configure()
    assert peer.ask("Synchronize", timeout=timeout).error is None
    assert peer.session.state is State.READY


def updates_of(size: int) -> list[tuple[CPUSet, list[str]]]:
    """Updates whose encoding has exactly `size` bytes."""
    ids = [f"{number:064x}" for number in range((size - 1000) // 100)]
    used = len(synchronize_reply([(CPUS, ids)]))
    # One more, with an id that fills the rest; the lengths of so long a message take more bytes than those of a short.
    for length in range(size - used - 60, size - used):
        candidate = [(CPUS, [*ids, "x" * length])]
        if len(synchronize_reply(candidate)) == size:
            return candidate
    raise AssertionError(size)


@pytest.mark.parametrize(("excess", "fits"), [(0, True), (1, False)])
def test_an_answer_at_the_limit_is_sent_and_a_longer_one_ends_the_session(excess: int, fits: bool) -> None:
    assert MAX_ANSWER < MAX_DATA
    peer = peer_in(State.CONFIGURED)
    peer.hooks.answers["synchronize"] = updates_of(MAX_ANSWER + excess)
    answer = peer.synchronize(["p"], ["c1"])
    if fits:
        assert len(answer.payload) == MAX_ANSWER
        assert peer.session.state is State.READY
    else:
        assert answer.error is not None
        assert answer.error.code == Code.RESOURCE_EXHAUSTED
        failed(peer, "too long")


def test_a_request_over_the_limit_of_a_frame_is_refused_and_the_session_lives() -> None:
    """By the ttrpc layer; the runtime then sends smaller parts."""
    peer = peer_in(State.CONFIGURED)
    huge = synchronize(["p" * MAX_DATA], [])
    data = _oversize_request(peer, huge.SerializeToString())
    peer.deliver(data)
    assert peer.closed is None
    assert peer.session.state is State.CONFIGURED


def _oversize_request(peer: Peer, payload: bytes) -> bytes:
    """What a sender that knows no limit (ttrpc before 1.2.6) would write, cut into small mux frames."""
    stream = peer.trunk.call("nri.pkg.api.v1alpha1.Plugin", "Configure", CONFIGURE.SerializeToString(), None)
    peer.trunk.data_to_send()
    body = b"\x1a" + _varint(len(payload)) + payload
    message = len(body).to_bytes(4, "big") + stream.to_bytes(4, "big") + b"\x01\x00" + body
    cuts = [message[at : at + 4096] for at in range(0, len(message), 4096)]
    return b"".join((1).to_bytes(4, "big") + len(cut).to_bytes(4, "big") + cut for cut in cuts)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])

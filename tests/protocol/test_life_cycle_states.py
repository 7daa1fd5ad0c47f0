"""Every call of the runtime's in every state: no exception but our own, each call one answer, hooks in order only."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from nri_cpu.nri import nri_pb2 as pb
from nri_cpu.nri.methods import EVENT_METHODS
from nri_cpu.nri.session import State
from nri_cpu.ttrpc.codes import Code
from tests.protocol.memory_runtime import CONFIGURE, Peer, peer_in, synchronize

POD, CONTAINER = pb.PodSandbox(id="p"), pb.Container(id="c")

# Method, request, and what the hooks are asked once synchronized.
CONTAINER_EVENTS: list[tuple[str, Message, tuple[Any, ...]]] = [
    ("CreateContainer", pb.CreateContainerRequest(pod=POD, container=CONTAINER), ("create_container", "p", "c")),
    (
        "UpdateContainer",
        pb.UpdateContainerRequest(
            pod=POD, container=CONTAINER, linux_resources=pb.LinuxResources(cpu=pb.LinuxCPU(cpus="0-3"))
        ),
        ("update_container", "p", "c", "0-3"),
    ),
    ("StopContainer", pb.StopContainerRequest(pod=POD, container=CONTAINER), ("stop_container", "p", "c")),
    ("PostCreateContainer", pb.PostCreateContainerRequest(pod=POD, container=CONTAINER), ("notify", 5, "p", "c")),
    ("StartContainer", pb.StartContainerRequest(pod=POD, container=CONTAINER), ("notify", 6, "p", "c")),
    ("PostStartContainer", pb.PostStartContainerRequest(pod=POD, container=CONTAINER), ("notify", 7, "p", "c")),
    ("PostUpdateContainer", pb.PostUpdateContainerRequest(pod=POD, container=CONTAINER), ("notify", 9, "p", "c")),
    ("RemoveContainer", pb.RemoveContainerRequest(pod=POD, container=CONTAINER), ("notify", 11, "p", "c")),
]
POD_EVENTS: list[tuple[str, Message, tuple[Any, ...]]] = [
    ("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD), ("notify", 1, "p", None)),
    ("StopPodSandbox", pb.StopPodSandboxRequest(pod=POD), ("notify", 2, "p", None)),
    ("RemovePodSandbox", pb.RemovePodSandboxRequest(pod=POD), ("notify", 3, "p", None)),
    ("UpdatePodSandbox", pb.UpdatePodSandboxRequest(pod=POD), ("notify", 12, "p", None)),
    ("PostUpdatePodSandbox", pb.PostUpdatePodSandboxRequest(pod=POD), ("notify", 13, "p", None)),
]
EVENTS = CONTAINER_EVENTS + POD_EVENTS
EARLY = [State.REGISTERING, State.REGISTERED, State.CONFIGURED, State.SYNCHRONIZING]
DECISIONS = {"CreateContainer", "UpdateContainer"}


def by_name(value: object) -> str | None:
    return value.name if isinstance(value, State) else value if isinstance(value, str) else ""


def test_the_tests_know_every_event_method() -> None:
    assert {method for method, _, _ in EVENTS} | {"StateChange"} == set(EVENT_METHODS)


@pytest.mark.parametrize(("method", "request_", "asked"), EVENTS, ids=by_name)
def test_each_event_asks_its_hook_once_synchronized(method: str, request_: Message, asked: tuple[Any, ...]) -> None:
    peer = peer_in(State.READY)
    before = len(peer.hooks.asked)
    answer = peer.ask(method, request_)
    assert (answer.payload, answer.error) == (b"", None)
    assert peer.hooks.asked[before:] == [asked]


@pytest.mark.parametrize("event", range(1, 15))
def test_a_state_change_asks_the_same_hook_as_the_method_of_its_own(event: int) -> None:
    peer = peer_in(State.READY)
    answer = peer.ask("StateChange", pb.StateChangeEvent(event=event, pod=POD, container=CONTAINER))  # type: ignore[arg-type]
    assert (answer.payload, answer.error) == (b"", None)
    assert peer.hooks.asked[-1] == ("notify", event, "p", "c")


def test_a_state_change_of_a_pod_has_no_container() -> None:
    peer = peer_in(State.READY)
    peer.ask("StateChange", pb.StateChangeEvent(event=pb.STOP_POD_SANDBOX, pod=POD))
    assert peer.hooks.asked[-1] == ("notify", 2, "p", None)


@pytest.mark.parametrize("event", [0, 15, 16, 99, 2**31 - 1, -1])
def test_an_unknown_state_change_is_answered_and_asks_nobody(event: int) -> None:
    peer = peer_in(State.READY)
    before = len(peer.hooks.asked)
    payload = b"\x08" + _varint(event)
    assert peer.ask("StateChange", payload).error is None
    assert len(peer.hooks.asked) == before


@pytest.mark.parametrize("state", EARLY, ids=by_name)
@pytest.mark.parametrize(("method", "request_", "asked"), EVENTS, ids=by_name)
def test_an_event_before_synchronize_asks_nobody(
    state: State, method: str, request_: Message, asked: tuple[Any, ...]
) -> None:
    peer = peer_in(state)
    before = list(peer.hooks.asked)
    answer = peer.ask(method, request_)
    if method in DECISIONS:  # nobody knows what the container may get
        assert answer.error is not None
        assert answer.error.code == Code.FAILED_PRECONDITION
        assert state.value in answer.error.message
    else:
        assert (answer.payload, answer.error) == (b"", None)
    assert peer.hooks.asked == before, asked
    assert (peer.session.state, peer.closed) == (state, None)


@pytest.mark.parametrize("state", [State.CONFIGURED, State.SYNCHRONIZING, State.READY], ids=by_name)
def test_a_second_configure_is_refused(state: State) -> None:
    peer = peer_in(state)
    answer = peer.ask("Configure", CONFIGURE)
    assert answer.error is not None
    assert answer.error.code == Code.FAILED_PRECONDITION
    assert len(peer.hooks.named("configure")) == 1
    assert peer.session.state is state


@pytest.mark.parametrize("state", [State.REGISTERING, State.REGISTERED], ids=by_name)
@pytest.mark.parametrize("more", [True, False])
def test_synchronize_before_configure_is_refused_and_ends_the_session(state: State, more: bool) -> None:
    peer = peer_in(state)
    answer = peer.synchronize(["p"], ["c"], more)
    assert answer.error is not None
    assert answer.error.code == Code.FAILED_PRECONDITION
    assert peer.hooks.asked == []
    assert peer.session.state is State.CLOSED
    assert state.value in str(peer.closed)


def test_a_runtime_that_synchronizes_again_is_believed() -> None:
    peer = peer_in(State.READY)
    assert peer.synchronize(["p1"], [], more=True).error is None
    assert peer.ask("CreateContainer", CONTAINER_EVENTS[0][1]).error is None
    assert peer.synchronize([], ["c1"]).error is None
    assert peer.hooks.asked[-3:] == [
        ("create_container", "p", "c"),
        ("synchronize", ["p1"], ["c1"]),
        ("synchronized",),
    ]


@pytest.mark.parametrize("state", [*EARLY, State.READY], ids=by_name)
def test_shutdown_is_answered_and_changes_nothing(state: State) -> None:
    peer = peer_in(state)
    before = list(peer.hooks.asked)
    answer = peer.ask("Shutdown")
    assert (answer.payload, answer.error) == (b"", None)
    assert (peer.session.state, peer.hooks.asked) == (state, before)


@pytest.mark.parametrize("state", [*EARLY, State.READY], ids=by_name)
@pytest.mark.parametrize("method", ["ValidateContainerAdjustment", "Frobnicate", "", "createContainer"])
def test_an_unknown_method_is_unimplemented(state: State, method: str) -> None:
    peer = peer_in(state)
    answer = peer.ask(method)
    assert answer.error is not None
    assert answer.error.code == Code.UNIMPLEMENTED
    assert answer.error.message.startswith(f"method {method}")
    assert peer.session.state is state


@pytest.mark.parametrize("service", ["", "nri.pkg.api.v1alpha1.Runtime", "nri.pkg.api.v1alpha1.HostFunctions"])
def test_an_unknown_service_is_unimplemented(service: str) -> None:
    answer = peer_in(State.READY).ask("CreateContainer", service=service)
    assert answer.error is not None
    assert answer.error.code == Code.UNIMPLEMENTED
    assert answer.error.message.startswith("service ")


UNREADABLE = {
    "bytes that are no protobuf": b"\xff",
    "a string that is not UTF-8": b"\x0a\x03\x0a\x01\xff",
    "a length beyond the end": b"\x0a\x7f\x00",
    "groups nested too deep": b"\x0b" * 200,
}


@pytest.mark.parametrize("payload", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize("method", sorted(EVENT_METHODS))
def test_an_event_that_cannot_be_read_is_an_internal_error_and_asks_nobody(method: str, payload: bytes) -> None:
    peer = peer_in(State.READY)
    before = len(peer.hooks.asked)
    if method == "StateChange":
        payload = payload.replace(b"\x0a\x03\x0a", b"\x12\x03\x0a")
    answer = peer.ask(method, payload)
    assert answer.error is not None
    assert answer.error.code == Code.INTERNAL
    assert method in answer.error.message
    assert len(peer.hooks.asked) == before
    assert (peer.session.state, peer.closed) == (State.READY, None)


def test_a_configure_that_cannot_be_read_is_an_internal_error() -> None:
    peer = peer_in(State.REGISTERED)
    answer = peer.ask("Configure", b"\x0a\x01\xff")
    assert answer.error is not None
    assert answer.error.code == Code.INTERNAL
    assert peer.session.state is State.REGISTERED


def test_nothing_is_heard_after_the_end() -> None:
    peer = peer_in(State.CLOSED)
    before = list(peer.hooks.asked)
    peer.trunk.call("nri.pkg.api.v1alpha1.Plugin", "Configure", CONFIGURE.SerializeToString(), None)
    peer.exchange()
    assert (peer.answers, peer.hooks.asked) == ({}, before)


ANYTHING = st.sampled_from(
    [
        *((method, request.SerializeToString()) for method, request, _ in EVENTS),
        ("StateChange", pb.StateChangeEvent(event=pb.REMOVE_CONTAINER, pod=POD).SerializeToString()),
        ("Configure", CONFIGURE.SerializeToString()),
        ("Synchronize", synchronize(["p"], ["c"], more=True).SerializeToString()),
        ("Synchronize", synchronize(["p"], ["c"]).SerializeToString()),
        ("Shutdown", b""),
        ("Frobnicate", b""),
        ("CreateContainer", b"\xff"),
        ("Synchronize", b"\xff"),
        ("the answer to RegisterPlugin", b""),
    ]
)


@given(st.lists(ANYTHING, max_size=12))
def test_in_any_order_every_call_gets_one_answer_and_hooks_their_order(calls: list[tuple[str, bytes]]) -> None:
    peer = Peer().start()
    accepted = False
    for method, payload in calls:
        if peer.closed is not None:
            break
        if method == "the answer to RegisterPlugin":
            if not accepted:
                peer.accept()
            accepted = True
        else:
            peer.ask(method, payload)  # raises KeyError without an answer
    assert not peer.answers
    assert len(peer.heard) == 1, "nothing but RegisterPlugin may ever be called"
    names = [asked[0] for asked in peer.hooks.asked]
    events = {"create_container", "update_container", "stop_container", "notify"}
    assert names.count("configure") <= 1
    if names:
        assert names[0] == "configure"
    if events & set(names):
        first = min(names.index(name) for name in events & set(names))
        assert "synchronized" in names[:first]
    for at, name in enumerate(names):
        if name == "synchronize":
            assert names[at + 1] == "synchronized"


@given(st.binary(max_size=300))
def test_garbage_raises_no_error_but_those_that_are_announced(data: bytes) -> None:
    peer = peer_in(State.READY)
    before = list(peer.hooks.asked)
    peer.deliver(data)
    assert [asked for asked in peer.hooks.asked if asked not in before] in ([], [("disconnected", str(peer.closed))])


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])

"""What hooks answer, what they raise, and what the runtime gets of either."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.nri import nri_pb2 as pb
from nri_cpu.nri.hooks import HookError
from nri_cpu.nri.session import State
from nri_cpu.ttrpc.codes import Code
from nri_cpu.ttrpc.frames import MAX_DATA
from tests.protocol.memory_runtime import RecordingHooks, peer_in

POD, CONTAINER = pb.PodSandbox(id="p"), pb.Container(id="c", env=["PASSWORD=secret"])
CREATE = pb.CreateContainerRequest(pod=POD, container=CONTAINER)
UPDATE = pb.UpdateContainerRequest(pod=POD, container=CONTAINER)
STOP = pb.StopContainerRequest(pod=POD, container=CONTAINER)
SHARED = CPUSet.parse("4-7")

DECIDING: list[tuple[str, Message, str]] = [
    ("CreateContainer", CREATE, "create_container"),
    ("UpdateContainer", UPDATE, "update_container"),
]
TOLD: list[tuple[str, Message, str]] = [
    ("StopContainer", STOP, "stop_container"),
    ("PostCreateContainer", pb.PostCreateContainerRequest(pod=POD, container=CONTAINER), "notify"),
    ("RemoveContainer", pb.RemoveContainerRequest(pod=POD, container=CONTAINER), "notify"),
    ("StopPodSandbox", pb.StopPodSandboxRequest(pod=POD), "notify"),
    ("RemovePodSandbox", pb.RemovePodSandboxRequest(pod=POD), "notify"),
    ("StateChange", pb.StateChangeEvent(event=pb.REMOVE_CONTAINER, pod=POD, container=CONTAINER), "notify"),
]


def update(container_id: str, cpus: str) -> pb.ContainerUpdate:
    made = pb.ContainerUpdate(container_id=container_id, ignore_failure=True)
    made.linux.resources.cpu.cpus = cpus
    return made


def ask(method: str, request: Message, hook: str, answer: Any) -> bytes:
    peer = peer_in(State.READY)
    peer.hooks.answers[hook] = answer
    got = peer.ask(method, request)
    assert got.error is None
    return got.payload


def test_a_created_container_gets_its_cpuset_and_others_their_updates() -> None:
    payload = ask("CreateContainer", CREATE, "create_container", (CPUSet.parse("2-3"), [(SHARED, ["s1", "s2"])]))
    wanted = pb.CreateContainerResponse(update=[update("s1", "4-7"), update("s2", "4-7")])
    wanted.adjust.linux.resources.cpu.cpus = "2-3"
    assert pb.CreateContainerResponse.FromString(payload) == wanted


def test_a_created_container_may_be_left_as_it_is() -> None:
    assert ask("CreateContainer", CREATE, "create_container", (None, ())) == b""


def test_an_update_may_replace_what_was_asked_and_keeps_its_place() -> None:
    payload = ask("UpdateContainer", UPDATE, "update_container", [(SHARED, ["s1"]), (CPUSet([1]), ["c"])])
    assert pb.UpdateContainerResponse.FromString(payload).update == [update("s1", "4-7"), update("c", "1")]


def test_a_stop_may_carry_updates() -> None:
    payload = ask("StopContainer", STOP, "stop_container", [(SHARED, ["s1"])])
    assert pb.StopContainerResponse.FromString(payload).update == [update("s1", "4-7")]


@pytest.mark.parametrize(("method", "request_", "hook"), DECIDING)
def test_a_refusal_of_a_hook_reaches_the_runtime_as_it_is(method: str, request_: Message, hook: str) -> None:
    peer = peer_in(State.READY)
    peer.hooks.answers[hook] = HookError("claim a/b has an owner: ä")
    answer = peer.ask(method, request_)
    assert answer.error is not None
    assert (answer.error.code, answer.error.message) == (Code.UNKNOWN, "claim a/b has an owner: ä")


@pytest.mark.parametrize(("method", "request_", "hook"), DECIDING)
def test_a_mistake_of_a_hook_names_plugin_and_call_and_no_secrets(method: str, request_: Message, hook: str) -> None:
    peer = peer_in(State.READY)
    peer.hooks.answers[hook] = ValueError("PASSWORD=secret")
    answer = peer.ask(method, request_)
    assert answer.error is not None
    assert answer.error.code == Code.UNKNOWN
    assert answer.error.message == f"plugin 10-nri-cpu: {method} failed (ValueError); see the plugin's log"


@pytest.mark.parametrize(("method", "request_", "hook"), DECIDING + TOLD)
@pytest.mark.parametrize("error", [HookError("no"), RuntimeError("oops"), RecursionError(), MemoryError()])
def test_a_hook_that_raises_changes_nothing_else(method: str, request_: Message, hook: str, error: Exception) -> None:
    peer = peer_in(State.READY)
    peer.hooks.answers[hook] = error
    peer.ask(method, request_)
    del peer.hooks.answers[hook]
    assert (peer.session.state, peer.closed) == (State.READY, None)
    assert peer.ask("CreateContainer", CREATE).error is None


@pytest.mark.parametrize(("method", "request_", "hook"), TOLD)
@pytest.mark.parametrize("error", [HookError("no"), RuntimeError("oops")])
def test_what_has_happened_is_never_answered_with_an_error(
    method: str, request_: Message, hook: str, error: Exception
) -> None:
    assert ask(method, request_, hook, error) == b""


@pytest.mark.parametrize(
    "answer",
    [
        (EMPTY, ()),
        (None, [(EMPTY, ["s1"])]),
        (None, [(SHARED, ["s1", "s1"])]),
        (None, [(SHARED, ["\ud800"])]),
        "nonsense",
        None,
    ],
)
@pytest.mark.fault("A23")
def test_an_answer_that_must_not_be_sent_is_an_error_instead(answer: object) -> None:
    peer = peer_in(State.READY)
    peer.hooks.answers["create_container"] = answer
    got = peer.ask("CreateContainer", CREATE)
    assert got.error is not None
    assert got.error.code == Code.UNKNOWN
    assert peer.session.state is State.READY


def test_a_refusal_that_is_no_text_is_sent_as_near_as_can_be() -> None:
    peer = peer_in(State.READY)
    peer.hooks.answers["create_container"] = HookError("bad name \udcff")
    answer = peer.ask("CreateContainer", CREATE)
    assert answer.error is not None
    assert answer.error.message == "bad name ?"


@pytest.mark.fault("N5")
def test_an_answer_that_is_too_long_is_an_error_and_the_session_lives() -> None:
    peer = peer_in(State.READY)
    ids = [f"{number:064}" for number in range(MAX_DATA // 64)]
    peer.hooks.answers["create_container"] = (SHARED, [(SHARED, ids)])
    answer = peer.ask("CreateContainer", CREATE)
    assert answer.error is not None
    assert answer.error.code == Code.RESOURCE_EXHAUSTED
    assert peer.session.state is State.READY


@pytest.mark.parametrize("pod", [None, pb.PodSandbox(), pb.PodSandbox(id="p")])
def test_a_pod_may_be_absent_or_nearly_empty(pod: pb.PodSandbox | None) -> None:
    peer = peer_in(State.READY)
    for method, request in (
        ("StopContainer", pb.StopContainerRequest(pod=pod, container=CONTAINER)),
        ("RemoveContainer", pb.RemoveContainerRequest(pod=pod, container=CONTAINER)),
        ("CreateContainer", pb.CreateContainerRequest(pod=pod, container=CONTAINER)),
        ("StopPodSandbox", pb.StopPodSandboxRequest(pod=pod)),
    ):
        assert peer.ask(method, request).error is None


@pytest.mark.parametrize(
    "method", ["CreateContainer", "UpdateContainer", "StopContainer", "StateChange", "RemoveContainer"]
)
def test_an_empty_message_is_a_message(method: str) -> None:
    assert peer_in(State.READY).ask(method).error is None


def test_fields_and_numbers_of_later_versions_are_no_error() -> None:
    peer = peer_in(State.READY)
    unknown = b"\xfa\xff\x01\x03new"  # field 4095
    later_state = pb.Container(id="c").SerializeToString() + b"\x20\x63"  # state 99
    payload = b"\x12" + bytes([len(later_state)]) + later_state + unknown
    assert peer.ask("CreateContainer", payload).error is None
    assert peer.hooks.asked[-1] == ("create_container", "", "c")


@pytest.mark.parametrize("what", ["synchronized", "disconnected"])
def test_a_hook_that_fails_at_what_it_is_told_ends_nothing(what: str) -> None:
    hooks = RecordingHooks()
    hooks.answers[what] = RuntimeError("oops")
    peer = peer_in(State.READY, hooks)
    peer.session.lost("gone")
    assert [asked[0] for asked in hooks.asked] == ["configure", "synchronize", "synchronized", "disconnected"]


@pytest.mark.fault("N1")
def test_no_hook_makes_the_session_call_the_runtime() -> None:
    peer = peer_in(State.READY)
    for method, request, _ in DECIDING + TOLD:
        peer.ask(method, request)
    assert [call.method for call in peer.heard] == ["RegisterPlugin"]


def test_overlapping_calls_get_an_answer_each_in_one_piece() -> None:
    peer = peer_in(State.READY)
    payload = CREATE.SerializeToString()
    streams = [
        peer.trunk.call("nri.pkg.api.v1alpha1.Plugin", "CreateContainer", payload, 2.0),
        peer.trunk.call("nri.pkg.api.v1alpha1.Plugin", "Frobnicate", b"", 2.0),
        peer.trunk.call("nri.pkg.api.v1alpha1.Plugin", "StopContainer", STOP.SerializeToString(), 2.0),
    ]
    peer.exchange()
    assert sorted(peer.answers) == streams

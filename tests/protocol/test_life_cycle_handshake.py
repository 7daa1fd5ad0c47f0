"""Registration and configuration."""

from __future__ import annotations

import pytest

from nri_cpu.nri import nri_pb2 as pb
from nri_cpu.nri.errors import IdentityError
from nri_cpu.nri.hooks import HookError
from nri_cpu.nri.methods import RUNTIME_SERVICE, SUBSCRIBED
from nri_cpu.nri.session import Session, State
from nri_cpu.ttrpc.codes import Code
from tests.protocol.memory_runtime import CONFIGURE, Peer, RecordingHooks, peer_in


def test_the_first_words_are_register_plugin_with_name_and_index() -> None:
    [call] = Peer().start().heard
    assert (call.service, call.method) == (RUNTIME_SERVICE, "RegisterPlugin")
    assert pb.RegisterPluginRequest.FromString(call.payload) == pb.RegisterPluginRequest(
        plugin_name="nri-cpu", plugin_idx="10"
    )


@pytest.mark.fault("N6")
def test_registration_gives_the_runtime_at_least_thirty_seconds() -> None:
    timeout = Peer().start().heard[0].timeout
    assert timeout is not None
    assert timeout >= 30


@pytest.mark.parametrize("configure_first", [True, False])
def test_configure_may_come_before_or_after_the_answer_to_register_plugin(configure_first: bool) -> None:
    peer = Peer().start()
    if configure_first:
        peer.configure().accept()
    else:
        peer.accept().configure()
    assert peer.session.state is State.CONFIGURED
    peer.synchronize(["p"], ["c"])
    assert peer.hooks.asked == [
        ("configure", "containerd v2.1.4 (NRI 0.8.0)", ""),
        ("synchronize", ["p"], ["c"]),
        ("synchronized",),
    ]


def test_configure_and_the_answer_may_come_in_one_piece() -> None:
    peer = Peer().start()
    stream = peer.trunk.call("nri.pkg.api.v1alpha1.Plugin", "Configure", CONFIGURE.SerializeToString(), 2.0)
    peer.accept()
    assert peer.answers[stream].error is None
    assert peer.session.state is State.CONFIGURED


def test_the_answer_to_register_plugin_may_come_after_synchronize() -> None:
    peer = Peer().start().configure()
    peer.synchronize()
    peer.accept()
    assert peer.session.state is State.READY


def test_the_events_that_are_asked_for_are_valid_in_every_version() -> None:
    answer = peer_in(State.REGISTERED).ask("Configure", CONFIGURE)
    assert pb.ConfigureResponse.FromString(answer.payload).events == SUBSCRIBED == 0x069E


def test_a_plugin_that_the_runtime_starts_gets_its_configuration() -> None:
    peer = peer_in(State.REGISTERED)
    peer.ask("Configure", pb.ConfigureRequest(runtime_name="cri-o", runtime_version="1.34.0", config="a: b\n"))
    assert peer.hooks.asked == [("configure", "cri-o 1.34.0 (NRI 0.10.0)", "a: b\n")]


BEFORE_0_7 = pb.ConfigureRequest(runtime_name="containerd", runtime_version="v1.7.24")


def test_a_launched_plugin_that_the_runtime_will_not_synchronize_decides_at_once() -> None:
    peer = Peer(launched=True).start().accept()
    assert peer.ask("Configure", BEFORE_0_7).error is None
    assert peer.session.state is State.READY
    assert [asked[0] for asked in peer.hooks.asked] == ["configure", "synchronized"]
    request = pb.CreateContainerRequest(container=pb.Container(id="c"))
    assert peer.ask("CreateContainer", request).error is None
    assert peer.synchronize(["p"], ["c"]).error is None


@pytest.mark.parametrize(("launched", "request_"), [(True, CONFIGURE), (False, BEFORE_0_7), (False, CONFIGURE)])
def test_any_other_plugin_waits_for_synchronize(launched: bool, request_: pb.ConfigureRequest) -> None:
    peer = Peer(launched=launched).start().accept()
    peer.ask("Configure", request_)
    assert peer.session.state is State.CONFIGURED
    assert peer.hooks.named("synchronized") == []


@pytest.mark.parametrize("configured", [False, True])
def test_a_refused_registration_closes_the_connection_and_says_why(configured: bool) -> None:
    peer = Peer().start()
    if configured:
        peer.configure()
    peer.refuse(Code.UNKNOWN, "invalid plugin index")
    assert "10-nri-cpu" in str(peer.closed)
    assert "invalid plugin index" in str(peer.closed)


@pytest.mark.parametrize(
    ("error", "text"), [(HookError("config: line 3"), "config: line 3"), (KeyError("x"), "Configure failed (KeyError)")]
)
def test_a_configuration_that_the_hook_refuses_is_an_error(error: Exception, text: str) -> None:
    peer = peer_in(State.REGISTERED)
    peer.hooks.answers["configure"] = error
    answer = peer.ask("Configure", CONFIGURE)
    assert answer.error is not None
    assert text in answer.error.message
    assert not peer.session.configured
    assert peer.session.state is State.REGISTERED


def test_hooks_hear_of_the_end_of_a_connection_only_when_it_was_configured() -> None:
    peer = peer_in(State.REGISTERED)
    peer.session.lost("gone")
    assert peer.hooks.asked == []


@pytest.mark.fault("R7")
@pytest.mark.parametrize("state", [State.CONFIGURED, State.SYNCHRONIZING, State.READY])
def test_hooks_hear_of_the_end_of_a_configured_connection_once(state: State) -> None:
    peer = peer_in(state)
    peer.session.lost("gone")
    peer.session.lost("gone again")
    assert peer.hooks.named("disconnected") == [("disconnected", "gone")]


@pytest.mark.parametrize("index", ["", "1", "100", "1a", "\u0660\u0661", " 1", "10\n", "-1"])
def test_a_bad_index_is_refused_before_anything_is_sent(index: str) -> None:
    with pytest.raises(IdentityError, match="two digits"):
        Session(RecordingHooks(), "nri-cpu", index)


@pytest.mark.parametrize("name", ["", "nri cpu", "nri/cpu", "näri", "cpu\n"])
def test_a_bad_name_is_refused_before_anything_is_sent(name: str) -> None:
    with pytest.raises(IdentityError, match="name"):
        Session(RecordingHooks(), name, "10")


def test_every_name_that_a_runtime_takes_is_taken() -> None:
    Session(RecordingHooks(), "Az09_.+-", "00")

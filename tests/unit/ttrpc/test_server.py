"""The server's side: every legal call is given, every illegal one is answered as a Go server does, and none harms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_cpu.ttrpc import Call, Code, LocalError, ServerConnection
from nri_cpu.ttrpc.frames import MAX_DATA
from nri_cpu.ttrpc.server import MAX_TEXT
from nri_cpu.ttrpc.ttrpc_pb2 import Response
from tests.unit.ttrpc import factory
from tests.unit.ttrpc.factory import DATA, PLUGIN, REQUEST, RESPONSE, frame, oversize, request


def test_a_call_is_given_with_all_that_its_caller_said() -> None:
    data = request(7, "Configure", b"\x00\x01", timeout_nano=1_999_900_000)
    assert ServerConnection().receive(data) == [Call(7, PLUGIN, "Configure", b"\x00\x01", 1.9999)]


def test_a_callers_metadata_is_no_error_and_nobodys_business() -> None:
    data = request(7, "Configure", metadata=[("traceparent", "00-1"), ("k", "1"), ("k", "2")])
    assert ServerConnection().receive(data) == [Call(7, PLUGIN, "Configure", b"", None)]


def test_an_empty_request_is_a_call_without_names() -> None:
    assert ServerConnection().receive(frame(1, REQUEST)) == [Call(1, "", "", b"", None)]


@pytest.mark.parametrize("timeout_nano", [0, -1, -(2**63)])
def test_no_time_or_less_is_no_deadline(timeout_nano: int) -> None:
    (call,) = ServerConnection().receive(request(1, timeout_nano=timeout_nano))
    assert call.timeout is None


@pytest.mark.parametrize("flags", [0x01, 0x02, 0x03, 0x04, 0xFF])
def test_flags_of_a_request_mean_nothing(flags: int) -> None:
    server = ServerConnection()
    assert [call.stream for call in server.receive(request(1, flags=flags))] == [1]
    assert server.answer(1, b"") == frame(1, RESPONSE)


def test_what_the_envelope_does_not_know_is_no_error() -> None:
    # Field 15 as bytes, and field 1 of Request twice: the last one counts.
    extra = b"\x7a\x03new"
    (call,) = ServerConnection().receive(frame(1, REQUEST, b"\x0a\x01a" + extra + b"\x0a\x01b"))
    assert call.service == "b"


NOT_UTF8 = b"\x0a\x01\xff"

# What comes after call 5, the stream it is answered on, and the status; None: nothing is answered.
VIOLATIONS = {
    "id 0": (request(0), 0, 3),
    "even id": (request(6), 6, 3),
    "highest even id": (request(0xFFFF_FFFE), 0xFFFF_FFFE, 3),
    "id used by the last call": (request(5), 5, 3),
    "id below the last": (request(3), 3, 3),
    "request that does not parse": (frame(7, REQUEST, b"\xff"), 7, 3),
    "request that is cut short": (frame(7, REQUEST, b"\x0a\x05ab"), 7, 3),
    "service that is no UTF-8": (frame(7, REQUEST, NOT_UTF8), 7, 3),
    "stray end of a group": (frame(7, REQUEST, b"\x0c"), 7, 3),
    "oversize request": (oversize(7), 7, 8),
    "oversize request with an even id": (oversize(8), 8, 8),
    "oversize request with a used id": (oversize(5), 5, 8),
    "oversize data": (oversize(7, DATA), 7, None),
    "oversize response": (oversize(7, RESPONSE), 7, None),
    "oversize frame of an unknown kind": (oversize(7, 200), 7, None),
    "response": (frame(5, RESPONSE), 5, None),
    "data on an open stream": (frame(5, DATA, b"x"), 5, None),
    "data on an unknown stream": (frame(7, DATA, b"x"), 7, None),
    "data on an even stream": (frame(8, DATA, b"x", flags=0xFF), 8, None),
    "kind 0": (frame(7, 0, b"x"), 7, None),
    "kind 4": (frame(7, 4, b"x"), 7, None),
    "kind 255": (frame(7, 255, b"x"), 7, None),
}


@pytest.mark.parametrize(("data", "stream", "code"), VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_a_violation_is_answered_on_its_own_stream_and_the_connection_goes_on(
    data: bytes, stream: int, code: int | None
) -> None:
    server = ServerConnection()
    assert [call.stream for call in server.receive(request(5))] == [5]
    assert server.receive(data) == []
    assert factory.statuses(server.take_refusals()) == ([] if code is None else [(stream, code)])
    assert server.take_refusals() == []
    assert server.buffered == 0
    assert [call.stream for call in server.receive(request(9))] == [9]
    assert factory.statuses([server.answer(9, b"x"), server.answer(5, b"")]) == [(9, 0), (5, 0)]


@pytest.mark.parametrize("data", [frame(7, REQUEST, b"\xff"), oversize(7)], ids=["does not parse", "oversize"])
def test_the_id_of_a_failed_request_is_used(data: bytes) -> None:
    server = ServerConnection()
    server.receive(data)
    server.take_refusals()
    assert server.receive(request(7)) == []
    assert factory.statuses(server.take_refusals()) == [(7, 3)]


def test_the_id_of_a_refused_request_uses_no_other() -> None:
    server = ServerConnection()
    assert server.receive(request(6) + oversize(0xFFFF_FFFE)) == []
    assert [call.stream for call in server.receive(request(1))] == [1]
    server.receive(request(9) + oversize(5))
    server.take_refusals()
    assert server.receive(request(7)) == []
    assert factory.statuses(server.take_refusals()) == [(7, 3)]


def test_ids_may_have_gaps_and_reach_the_highest() -> None:
    server = ServerConnection()
    calls = server.receive(request(3) + request(101) + request(0xFFFF_FFFF))
    assert [call.stream for call in calls] == [3, 101, 0xFFFF_FFFF]


def test_refusals_come_in_the_order_of_the_calls_and_between_legal_ones() -> None:
    server = ServerConnection()
    data = request(2) + request(1) + oversize(3) + frame(5, REQUEST, b"\xff") + request(1) + request(7)
    assert [call.stream for call in server.receive(data)] == [1, 7]
    assert factory.statuses(server.take_refusals()) == [(2, 3), (3, 8), (5, 3), (1, 3)]


def test_overlapping_calls_are_answered_in_any_order() -> None:
    server = ServerConnection()
    server.receive(request(1) + request(3) + request(5))
    sent = server.answer(5, b"five") + server.refuse(1, Code.UNIMPLEMENTED, "no") + server.answer(3, b"")
    found = [(stream, Response.FromString(data)) for stream, _, _, data in factory.ttrpc_frames(sent)]
    assert [(stream, answer.payload, answer.status.code) for stream, answer in found] == [
        (5, b"five", 0),
        (1, b"", 12),
        (3, b"", 0),
    ]


def test_success_with_nothing_to_say_is_a_frame_without_data() -> None:
    server = ServerConnection()
    server.receive(request(1))
    assert server.answer(1, b"") == bytes.fromhex("00000000 00000001 02 00")


def test_an_error_has_no_payload_which_a_go_client_would_parse_first() -> None:
    server = ServerConnection()
    server.receive(request(1))
    ((_, _, _, data),) = factory.ttrpc_frames(server.refuse(1, Code.UNKNOWN, "text"))
    assert data == bytes.fromhex("0a 08 08 02 12 04") + b"text"


@pytest.mark.fault("N5")
def test_an_answer_over_the_limit_becomes_a_status_and_the_longest_is_sent() -> None:
    server = ServerConnection()
    server.receive(request(1) + request(3))
    room = MAX_DATA - 5  # tag and length of the payload
    ((_, _, _, data),) = factory.ttrpc_frames(server.answer(1, bytes(room)))
    assert len(data) == MAX_DATA
    ((stream, _, _, data),) = factory.ttrpc_frames(server.answer(3, bytes(room + 1)))
    status = Response.FromString(data).status
    assert (stream, status.code) == (3, 8)
    assert "4194305" in status.message
    assert "4194304" in status.message


def test_what_waits_for_no_answer_gets_none() -> None:
    server = ServerConnection()
    server.receive(request(1) + request(2) + frame(3, REQUEST, b"\xff") + request(5))
    server.answer(1, b"")
    for stream in (1, 2, 3, 4, 7):
        with pytest.raises(LocalError, match=f"stream {stream} waits for no answer"):
            server.answer(stream, b"")
        with pytest.raises(LocalError, match=f"stream {stream} waits for no answer"):
            server.refuse(stream, Code.INTERNAL, "")
    server.refuse(5, Code.INTERNAL, "")
    with pytest.raises(LocalError):
        server.refuse(5, Code.INTERNAL, "")


@pytest.mark.parametrize("code", [Code.OK, -1, 2**31])
def test_a_refusal_needs_the_code_of_an_error_and_the_call_still_waits_without(code: int) -> None:
    server = ServerConnection()
    server.receive(request(1))
    with pytest.raises(LocalError, match=f"code {int(code)}"):
        server.refuse(1, code, "text")
    assert factory.statuses([server.refuse(1, 99, "text")]) == [(1, 99)]


@pytest.mark.parametrize(
    ("text", "sent"),
    [("", ""), ("Grüße\n\0", "Grüße\n\0"), ("half \udc80 pair", "half ? pair"), ("ü" * 10**6, "ü" * MAX_TEXT)],
    ids=["empty", "UTF-8", "surrogate", "long"],
)
def test_any_text_can_be_the_reason_of_a_refusal(text: str, sent: str) -> None:
    server = ServerConnection()
    server.receive(request(1))
    ((_, _, _, data),) = factory.ttrpc_frames(server.refuse(1, Code.UNKNOWN, text))
    assert Response.FromString(data).status.message == sent


PIECES = st.one_of(
    st.builds(
        request,
        st.integers(0, 30),
        st.sampled_from(["Configure", "", "Ü"]),
        st.binary(max_size=30),
        timeout_nano=st.integers(-(2**63), 2**63 - 1),
        flags=st.integers(0, 255),
    ),
    st.builds(frame, st.integers(0, 30), st.integers(0, 255), st.binary(max_size=20), flags=st.integers(0, 255)),
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=12), st.binary(max_size=12), st.lists(st.integers(0, 600), max_size=20))
def test_every_split_gives_the_same_calls_and_refusals(pieces: list[bytes], rest: bytes, cuts: list[int]) -> None:
    data = b"".join(pieces) + rest
    whole, split = ServerConnection(), ServerConnection()
    calls = whole.receive(data)
    assert [call for piece in factory.split(data, cuts) for call in split.receive(piece)] == calls
    assert split.take_refusals() == whole.take_refusals()
    assert split.buffered == whole.buffered
    assert len({call.stream for call in calls}) == len(calls)
    for call in calls:
        assert factory.statuses([whole.answer(call.stream, call.payload)]) == [(call.stream, 0)]

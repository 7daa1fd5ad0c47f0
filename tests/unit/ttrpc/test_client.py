"""The client's side: each call gets its own answer, whatever else comes."""

from __future__ import annotations

import math

import pytest

from nri_cpu.ttrpc import Answer, ClientConnection, Code, LocalError, StatusError
from nri_cpu.ttrpc.client import MAX_TIMEOUT
from nri_cpu.ttrpc.frames import MAX_DATA
from nri_cpu.ttrpc.ttrpc_pb2 import Request
from tests.unit.ttrpc import factory
from tests.unit.ttrpc.factory import DATA, REQUEST, RESPONSE, RUNTIME, frame, oversize, response


def sent(message: bytes) -> tuple[int, Request]:
    ((stream, kind, flags, data),) = factory.ttrpc_frames(message)
    assert (kind, flags) == (REQUEST, 0)
    return stream, Request.FromString(data)


def test_a_call_says_what_is_called_and_how_long_its_caller_waits() -> None:
    stream, message = ClientConnection().call(RUNTIME, "RegisterPlugin", b"\x00\x01", 5.0)
    expected = Request(service=RUNTIME, method="RegisterPlugin", payload=b"\x00\x01", timeout_nano=5 * 10**9)
    assert (stream, sent(message)) == (1, (1, expected))


def test_ids_are_odd_and_ascending() -> None:
    client = ClientConnection()
    streams = [client.call(RUNTIME, "M", b"") for _ in range(100)]
    assert [stream for stream, _ in streams] == [sent(message)[0] for _, message in streams] == list(range(1, 200, 2))


def test_answers_come_in_any_order_and_find_their_calls() -> None:
    client = ClientConnection()
    for _ in range(3):
        client.call(RUNTIME, "M", b"")
    assert client.receive(response(5, b"five") + response(1) + response(3, b"three")) == [
        Answer(5, b"five", None),
        Answer(1, b"", None),
        Answer(3, b"three", None),
    ]


@pytest.mark.parametrize(
    ("data", "payload"),
    [
        (frame(1, RESPONSE), b""),
        (response(1, b"x", code=0), b"x"),
        (response(1, b"x", code=0, text="fine"), b"x"),
        (response(1, b"x", flags=0xFF), b"x"),
        (frame(1, RESPONSE, b"\x7a\x03new\x12\x01x"), b"x"),
    ],
    ids=["no data", "status 0", "status 0 with text", "flags", "unknown field"],
)
def test_success_has_several_forms(data: bytes, payload: bytes) -> None:
    client = ClientConnection()
    client.call(RUNTIME, "M", b"")
    assert client.receive(data) == [Answer(1, payload, None)]


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (response(1, code=2, text="boom"), 2, "boom"),
        (response(1, b"ignored", code=12, text="method M"), 12, "method M"),
        (response(1, code=99), 99, ""),
        (response(1, code=-1), -1, ""),
        # code 5, a text, and details (field 3), which nothing here declares
        (frame(1, RESPONSE, bytes.fromhex("0a 08 08 05 12 01 78 1a 01 79")), 5, "x"),
        (frame(1, RESPONSE, b"\xff"), Code.INTERNAL, "no ttrpc.Response"),
        (frame(1, RESPONSE, b"\x0a\x03\x12\x01\xff"), Code.INTERNAL, "no ttrpc.Response"),
        (oversize(1, RESPONSE), Code.RESOURCE_EXHAUSTED, "4194305"),
    ],
    ids=["status", "with payload", "unknown", "negative", "details", "garbage", "no UTF-8", "oversize"],
)
def test_a_failure_ends_its_own_call_and_the_connection_goes_on(data: bytes, code: int, text: str) -> None:
    client = ClientConnection()
    client.call(RUNTIME, "M", b"")
    client.call(RUNTIME, "M", b"")
    first, second = client.receive(data + response(3, b"x"))
    assert first.error is not None
    assert (first.stream, first.payload, first.error.code) == (1, b"", code)
    assert text in first.error.message
    assert second == Answer(3, b"x", None)


STRAYS = {
    "never asked": response(3, b"x"),
    "even id": response(2, b"x"),
    "id 0": response(0, b"x"),
    "oversize, never asked": oversize(3, RESPONSE),
    "oversize data": oversize(1, DATA),
    "data on a waiting stream": frame(1, DATA, b"x"),
    "data on no stream": frame(7, DATA, b"x", flags=4),
    "request": factory.request(1),
    "kind 0": frame(1, 0, b"x"),
    "kind 255": frame(1, 255, b"x"),
}


@pytest.mark.parametrize("data", STRAYS.values(), ids=STRAYS.keys())
def test_what_answers_no_call_is_dropped_and_the_waiting_call_still_gets_its_answer(data: bytes) -> None:
    client = ClientConnection()
    client.call(RUNTIME, "M", b"")
    assert client.receive(data) == []
    assert client.buffered == 0
    assert client.receive(response(1, b"x") + response(1, b"again")) == [Answer(1, b"x", None)]


@pytest.mark.fault("N6")
def test_a_late_answer_is_dropped_once_its_caller_waits_no_longer() -> None:
    client = ClientConnection()
    client.call(RUNTIME, "M", b"")
    client.call(RUNTIME, "M", b"")
    client.forget(1)
    client.forget(1)
    client.forget(7)
    assert client.receive(response(1, b"late") + response(3, b"x")) == [Answer(3, b"x", None)]
    client.forget(3)


def test_an_answer_in_pieces_is_held_until_it_is_whole() -> None:
    client = ClientConnection()
    client.call(RUNTIME, "M", b"")
    data = response(1, b"x" * 1000)
    assert client.receive(data[:-1]) == []
    assert client.buffered == len(data) - 1
    assert client.receive(data[-1:]) == [Answer(1, b"x" * 1000, None)]


@pytest.mark.fault("N5")
def test_a_call_over_the_limit_is_refused_and_uses_no_id() -> None:
    client = ClientConnection()
    envelope = len(Request(service=RUNTIME, method="M").SerializeToString()) + 5
    with pytest.raises(LocalError, match=r"4194305 bytes .* 4194304"):
        client.call(RUNTIME, "M", bytes(MAX_DATA - envelope + 1))
    stream, message = client.call(RUNTIME, "M", bytes(MAX_DATA - envelope))
    assert (stream, len(message)) == (1, 10 + MAX_DATA)
    assert client.receive(response(1, b"x")) == [Answer(1, b"x", None)]


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, MAX_TIMEOUT * 1.1])
def test_a_deadline_that_has_passed_or_cannot_be_sent_is_refused(timeout: float) -> None:
    client = ClientConnection()
    with pytest.raises(LocalError, match="timeout of"):
        client.call(RUNTIME, "M", b"", timeout)
    assert client.call(RUNTIME, "M", b"")[0] == 1


@pytest.mark.parametrize(
    ("timeout", "nano"), [(None, 0), (1e-12, 1), (1.9999, 1_999_900_000), (MAX_TIMEOUT, 2**33 * 10**9)]
)
def test_a_deadline_never_becomes_none_on_the_wire(timeout: float | None, nano: int) -> None:
    _, message = ClientConnection().call(RUNTIME, "M", b"", timeout)
    assert sent(message)[1].timeout_nano == nano


def test_names_that_are_no_text_are_refused() -> None:
    client = ClientConnection()
    with pytest.raises(LocalError, match="name of a service or method"):
        client.call("\udc80", "M", b"")
    assert client.call(RUNTIME, "M", b"")[0] == 1


def test_when_all_ids_are_used_there_are_no_more_calls() -> None:
    client = ClientConnection()
    client._next = 0xFFFF_FFFF
    assert client.call(RUNTIME, "M", b"")[0] == 0xFFFF_FFFF
    with pytest.raises(LocalError, match="every stream id"):
        client.call(RUNTIME, "M", b"")


def test_a_status_says_its_number_its_name_and_its_text() -> None:
    assert str(StatusError(12, "method Foo")) == "status 12 UNIMPLEMENTED: method Foo"
    assert str(StatusError(99, "x")) == "status 99: x"

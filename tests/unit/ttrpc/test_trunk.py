"""The trunk: both connections over one transport, and what no peer can do to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_cpu.ttrpc import Answer, Call, Code, LocalError, ProtocolError, Trunk
from nri_cpu.ttrpc.frames import HEADER_SIZE, MAX_DATA
from nri_cpu.ttrpc.ttrpc_pb2 import Response
from tests.unit.ttrpc import factory
from tests.unit.ttrpc.factory import PLUGIN, REQUEST, RUNTIME, frame, mux, oversize, request, response

# The most that a trunk may hold: a mux header and an unfinished frame of each connection.
MAX_HELD = 7 + 2 * (HEADER_SIZE + MAX_DATA - 1)


def plugin() -> Trunk:
    return Trunk(server_id=1, client_id=2)


def seen(events: list[Call | Answer]) -> list[object]:
    """Events in a form that can be compared: errors are compared by what they say."""
    return [(event.stream, event.payload, str(event.error)) if isinstance(event, Answer) else event for event in events]


@pytest.mark.parametrize(("server_id", "client_id"), [(1, 1), (0, 2), (1, 0), (-1, 2), (1, 1 << 32)])
def test_connections_are_two_and_not_0(server_id: int, client_id: int) -> None:
    with pytest.raises(LocalError, match=f"connections {server_id} and {client_id}"):
        Trunk(server_id, client_id)


def test_each_role_uses_its_own_connection_and_its_own_ids() -> None:
    trunk = plugin()
    assert trunk.call(RUNTIME, "RegisterPlugin", b"") == 1
    (call,) = trunk.receive(mux(1, request(1, "Configure")))
    trunk.answer(call.stream, b"x")
    assert [found[:3] for found in factory.messages(trunk.data_to_send())] == [(2, 1, 1), (1, 1, 2)]
    assert trunk.data_to_send() == b""
    assert trunk.receive(mux(2, response(1, b"y"))) == [Answer(1, b"y", None)]


def test_a_call_and_an_answer_may_come_in_either_order_and_in_one_read() -> None:
    first, second = mux(1, request(1, "Configure")), mux(2, response(1))
    call, answer = Call(1, PLUGIN, "Configure", b"", None), Answer(1, b"", None)
    for data, expected in ((first + second, [call, answer]), (second + first, [answer, call])):
        trunk = plugin()
        trunk.call(RUNTIME, "RegisterPlugin", b"")
        assert trunk.receive(data) == expected


def test_connections_are_interleaved_within_their_frames() -> None:
    trunk = plugin()
    trunk.call(RUNTIME, "UpdateContainers", b"")
    one, two = request(1, "Configure"), response(1, b"y")
    assert trunk.receive(mux(1, one[:7]) + mux(2, two[:12]) + mux(1, one[7:]) + mux(2, two[12:])) == [
        Call(1, PLUGIN, "Configure", b"", None),
        Answer(1, b"y", None),
    ]


def test_other_connections_are_dropped_and_nothing_of_them_is_held() -> None:
    trunk = plugin()
    for connection in (0, 3, 0xFFFF_FFFF):
        assert trunk.receive(mux(connection, request(1)) + mux(connection, bytes(1 << 20))[:-1]) == []
        assert trunk.buffered == 0
        assert trunk.receive(b"\x00") == []
    assert len(trunk.receive(mux(1, request(1)))) == 1
    assert trunk.data_to_send() == b""


def test_answers_on_our_server_and_calls_on_our_client_are_dropped() -> None:
    trunk = plugin()
    trunk.call(RUNTIME, "RegisterPlugin", b"")
    trunk.data_to_send()
    assert trunk.receive(mux(1, response(1)) + mux(2, request(1)) + mux(2, request(2))) == []
    assert trunk.data_to_send() == b""


def test_illegal_calls_are_refused_unseen_and_in_order_with_answers() -> None:
    trunk = plugin()
    trunk.receive(mux(1, request(5)))
    assert trunk.receive(mux(1, request(5) + request(2) + frame(7, REQUEST, b"\xff"))) == []
    trunk.answer(5, b"x")
    assert trunk.receive(mux(1, request(1))) == []
    codes = [
        (stream, Response.FromString(data).status.code)
        for _, stream, _, _, data in factory.messages(trunk.data_to_send())
    ]
    assert codes == [(5, 3), (2, 3), (7, 3), (5, 0), (1, 3)]


@pytest.mark.fault("N5")
def test_an_oversize_request_is_refused_and_the_next_one_served() -> None:
    trunk = plugin()
    for part in factory.split(oversize(1), range(0, MAX_DATA, 100_000)):
        assert trunk.receive(mux(1, part)) == []
        assert trunk.buffered < HEADER_SIZE
    assert [event.stream for event in trunk.receive(mux(1, request(3)))] == [3]
    ((connection, stream, _, _, data),) = factory.messages(trunk.data_to_send())
    assert (connection, stream, Response.FromString(data).status.code) == (1, 1, 8)


def test_a_mux_frame_that_is_too_large_ends_the_transport() -> None:
    trunk = plugin()
    for _ in range(2):
        with pytest.raises(ProtocolError):
            trunk.receive(mux(1, length=(1 << 24) + 1))


def test_what_is_illegal_here_sends_nothing_and_changes_nothing() -> None:
    trunk = plugin()
    trunk.receive(mux(1, request(1)))
    for illegal in (
        lambda: trunk.call(RUNTIME, "M", bytes(MAX_DATA)),
        lambda: trunk.call(RUNTIME, "M", b"", 0),
        lambda: trunk.answer(3, b""),
        lambda: trunk.refuse(1, Code.OK, ""),
    ):
        with pytest.raises(LocalError):
            illegal()
    assert trunk.data_to_send() == b""
    assert trunk.call(RUNTIME, "M", b"") == 1
    trunk.answer(1, b"")


def session() -> bytes:
    """What a runtime may send in a first minute, with all that is odd and legal, and all that is refused."""
    return b"".join(
        [
            mux(1),
            mux(2, response(1)[:4]),
            mux(1, request(1, "Configure", b"c" * 20)[:3]),
            mux(9, b"nobody"),
            mux(2, response(1)[4:] + response(3, code=2, text="no") + response(3) + frame(99, 2, b"\xff")),
            mux(
                1, request(1, "Configure", b"c" * 20)[3:] + request(3, metadata=[("k", "v")]) + request(4) + request(3)
            ),
            mux(0, request(5)),
            mux(1, frame(5, 3, b"stray") + frame(7, 77, b"odd") + frame(9, REQUEST, b"\xff") + request(11, flags=0xFF)),
        ]
    )


def run(pieces: list[bytes]) -> tuple[list[object], bytes]:
    trunk = plugin()
    trunk.call(RUNTIME, "RegisterPlugin", b"")
    trunk.call(RUNTIME, "UpdateContainers", b"")
    events: list[object] = []
    for piece in pieces:
        events += seen(trunk.receive(piece))
    assert trunk.buffered == 0
    return events, trunk.data_to_send()


def test_a_split_at_every_byte_and_single_bytes_give_the_same_session() -> None:
    data = session()
    expected = run([data])
    assert len(expected[0]) == 5
    for cut in range(1, len(data)):
        assert run([data[:cut], data[cut:]]) == expected
    assert run([data[at : at + 1] for at in range(len(data))]) == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 600), max_size=30))
def test_every_split_gives_the_same_session(cuts: list[int]) -> None:
    data = session()
    assert run(factory.split(data, cuts)) == run([data])


def read_anything(trunk: Trunk, pieces: list[bytes]) -> None:
    """Only a ProtocolError may come of it, and no more than the announced limits may be held."""
    for piece in pieces:
        try:
            events = trunk.receive(piece)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                trunk.receive(b"")
            return
        assert trunk.buffered <= MAX_HELD
        for event in events:
            if isinstance(event, Call):
                trunk.answer(event.stream, event.payload)
        assert all(message[2:4] == (2, 0) for message in factory.messages(trunk.data_to_send()))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=10))
def test_random_bytes_do_no_harm(pieces: list[bytes]) -> None:
    read_anything(plugin(), pieces)


SMALL = st.integers(0, 9)
LENGTHS = st.none() | st.integers(0, 40) | st.sampled_from([MAX_DATA, MAX_DATA + 1, 0xFFFF_FFFF])
FRAMES = st.builds(frame, SMALL, st.integers(0, 4), st.binary(max_size=30), flags=st.integers(0, 255), length=LENGTHS)
MUXES = st.builds(
    mux,
    st.integers(0, 3),
    st.lists(FRAMES, max_size=3).map(b"".join),
    length=st.none() | st.integers(0, 80) | st.sampled_from([1 << 24, (1 << 24) + 1]),
)


@settings(deadline=None)
@given(st.lists(MUXES, max_size=10))
def test_frames_with_wrong_lengths_kinds_and_ids_do_no_harm(pieces: list[bytes]) -> None:
    trunk = plugin()
    trunk.call(RUNTIME, "M", b"")
    trunk.data_to_send()
    read_anything(trunk, pieces)


def test_unfinished_frames_of_both_connections_are_all_that_is_ever_held() -> None:
    trunk = plugin()
    largest = frame(1, REQUEST, bytes(MAX_DATA))[:-1]
    trunk.receive(mux(1, largest) + mux(2, largest) + mux(3, largest) + mux(1)[:7])
    assert trunk.buffered == MAX_HELD


def read(pieces: list[bytes], *, reuse: bool = False) -> tuple[list[object], bytes] | None:
    """What a trunk makes of such reads, and sends; None when it gives the transport up. With `reuse` all come in one
    buffer, which is overwritten after each."""
    trunk = plugin()
    trunk.call(RUNTIME, "M", b"")
    trunk.data_to_send()
    events: list[Call | Answer] = []
    for piece in pieces:
        buffer = bytearray(piece)
        try:
            events += trunk.receive(memoryview(buffer) if reuse else piece)
        except ProtocolError:
            return None
        buffer[:] = b"\xaa" * len(buffer)
    return seen(events), trunk.data_to_send()


@settings(deadline=None)
@given(st.lists(MUXES, max_size=10), st.booleans())
def test_one_frame_a_read_is_the_same_as_all_at_once_and_as_single_bytes(pieces: list[bytes], reuse: bool) -> None:
    whole = b"".join(pieces)
    expected = read([whole])
    assert read(pieces, reuse=reuse) == expected
    assert read([whole[at : at + 1] for at in range(len(whole))], reuse=reuse) == expected


UNFINISHED = {
    "mux header": mux(1)[:7],
    "mux payload of nobody's": mux(9, bytes(100))[:50],
    "request": mux(1, request(1)[:12]),
    "request whose mux frame is longer": mux(1, request(1), length=200),
    "oversize request": mux(1, frame(1, REQUEST, length=MAX_DATA + 100)),
}


@pytest.mark.parametrize("before", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_what_looks_like_a_whole_request_within_something_unfinished_is_none(before: bytes) -> None:
    trunk = plugin()
    trunk.receive(before)
    assert trunk.receive(mux(1, request(3))) == []
    assert all(message[1] == 1 for message in factory.messages(trunk.data_to_send()))


def test_a_whole_request_is_read_while_an_answer_to_us_is_unfinished() -> None:
    trunk = plugin()
    trunk.call(RUNTIME, "M", b"")
    answer = response(1, b"xyz")
    trunk.receive(mux(2, answer[:12]))
    assert trunk.receive(mux(1, request(1, "Configure"))) == [Call(1, PLUGIN, "Configure", b"", None)]
    assert trunk.receive(mux(2, answer[12:])) == [Answer(1, b"xyz", None)]


@pytest.mark.fault("N5")
def test_an_oversize_request_in_one_read_is_refused() -> None:
    trunk = plugin()
    assert trunk.receive(mux(1, oversize(1))) == []
    ((_, stream, _, _, data),) = factory.messages(trunk.data_to_send())
    assert (stream, Response.FromString(data).status.code) == (1, 8)


# Around each length at which the length before the payload gets a byte more, or the mux cuts.
SIZES = [0, 1, 127, 128, 129, 4081, 4082, 4083, 4084, 4096, 16383, 16384, 2_097_151, 2_097_152, MAX_DATA - 5]


@pytest.mark.parametrize("size", SIZES)
def test_an_answer_is_protobufs_own_bytes_in_one_frame_or_two(size: int) -> None:
    trunk = plugin()
    trunk.receive(mux(1, request(1)))
    trunk.answer(1, bytes(size))
    message = response(1, bytes(size))
    cut = [message] if len(message) <= 4096 else [message[:HEADER_SIZE], message[HEADER_SIZE:]]
    assert trunk.data_to_send() == b"".join(mux(1, part) for part in cut)


@pytest.mark.parametrize("size", [0, 1, 128])
def test_nothing_is_answered_twice_whatever_its_length(size: int) -> None:
    trunk = plugin()
    trunk.receive(mux(1, request(1)))
    trunk.answer(1, bytes(size))
    with pytest.raises(LocalError, match="stream 1 waits for no answer"):
        trunk.answer(1, bytes(size))

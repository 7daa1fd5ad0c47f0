"""The multiplexer: cut from any split of the transport's bytes, and cut for a Go peer's buffers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_cpu.ttrpc import LocalError, ProtocolError
from nri_cpu.ttrpc.mux import MAX_FIRST, MAX_MESSAGE, MAX_RECEIVED, MuxReader, encode
from tests.unit.ttrpc import factory

PAYLOADS = [(1, b"abc"), (2, b""), (0, b"zero"), (1, bytes(range(256))), (0xFFFF_FFFF, b"x"), (2, b""), (2, b"end")]
TRUNK = b"".join(factory.mux(connection, payload) for connection, payload in PAYLOADS)


def streams(slices: list[tuple[int, memoryview]]) -> dict[int, bytes]:
    joined: dict[int, bytes] = {}
    for connection, part in slices:
        joined[connection] = joined.get(connection, b"") + part
    return joined


WHOLE = {1: b"abc" + bytes(range(256)), 0: b"zero", 0xFFFF_FFFF: b"x", 2: b"end"}


def test_each_frame_is_a_slice_of_its_connection_and_an_empty_one_means_nothing() -> None:
    found = [(connection, bytes(part)) for connection, part in MuxReader().feed(TRUNK)]
    assert found == [(connection, payload) for connection, payload in PAYLOADS if payload]


def test_a_split_at_every_byte_gives_the_same_streams() -> None:
    for cut in range(len(TRUNK) + 1):
        reader = MuxReader()
        assert streams(reader.feed(TRUNK[:cut]) + reader.feed(TRUNK[cut:])) == WHOLE
        assert reader.buffered == 0


def test_payload_is_handed_on_as_it_comes_and_only_a_header_is_held() -> None:
    reader = MuxReader()
    found = []
    for at in range(len(TRUNK)):
        found += reader.feed(TRUNK[at : at + 1])
        assert reader.buffered < 8
    assert streams(found) == WHOLE
    assert all(len(part) == 1 for _, part in found)


def test_the_largest_frame_is_read_and_a_larger_one_breaks_the_transport_for_ever() -> None:
    reader = MuxReader()
    assert streams(reader.feed(factory.mux(1, bytes(MAX_RECEIVED)))) == {1: bytes(MAX_RECEIVED)}
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"16777217 bytes on connection 7, .* 16777216"):
            reader.feed(factory.mux(7, length=MAX_RECEIVED + 1))
    with pytest.raises(ProtocolError):
        reader.feed(TRUNK)


def test_a_frame_that_is_too_large_is_refused_with_the_last_byte_of_its_header() -> None:
    header = factory.mux(1, length=0xFFFF_FFFF)
    reader = MuxReader()
    assert reader.feed(header[:7]) == []
    with pytest.raises(ProtocolError):
        reader.feed(header[7:])


@settings(deadline=None)
@given(st.binary(max_size=100), st.lists(st.integers(0, 100)))
def test_any_bytes_give_slices_or_a_protocol_error_and_every_split_the_same(data: bytes, cuts: list[int]) -> None:
    def read(pieces: list[bytes]) -> dict[int, bytes] | None:
        reader = MuxReader()
        found = []
        try:
            for piece in pieces:
                found += reader.feed(piece)
                assert reader.buffered < 8
        except ProtocolError:
            return None
        return streams(found)

    assert read(factory.split(data, cuts)) == read([data])


@pytest.mark.fault("N5")
@pytest.mark.parametrize("size", [10, 11, MAX_FIRST - 1, MAX_FIRST, MAX_FIRST + 1, 8192, 100_000, MAX_MESSAGE])
def test_a_message_is_cut_so_that_a_go_peer_can_read_it(size: int) -> None:
    message = factory.frame(1, 2, bytes(size - 10))
    frames = factory.mux_frames(encode(2, message))
    assert b"".join(payload for _, payload in frames) == message
    assert {connection for connection, _ in frames} == {2}
    assert len(frames[0][1]) <= MAX_FIRST
    # A short message is one frame; each frame more is one of the 256 that a Go peer queues.
    assert len(frames) == (1 if size <= MAX_FIRST else 2)


def test_a_message_longer_than_any_is_not_cut() -> None:
    with pytest.raises(LocalError, match=str(MAX_MESSAGE)):
        encode(1, bytes(MAX_MESSAGE + 1))

"""ttrpc frames: cut from any split of the stream, bounded, and made."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_cpu.ttrpc import LocalError
from nri_cpu.ttrpc.frames import HEADER_SIZE, MAX_DATA, Frame, FrameReader, Oversize, encode
from tests.unit.ttrpc import factory

FRAMES = [
    Frame(1, 1, 0, b""),
    Frame(2, 2, 0xFF, b"\x00"),
    Frame(0xFFFF_FFFF, 0, 1, b"abcdefghij"),
    Frame(0, 255, 4, bytes(range(256))),
]
STREAM = b"".join(factory.frame(each.stream, each.kind, each.data, flags=each.flags) for each in FRAMES)


def test_a_frame_has_the_layout_of_the_protocol() -> None:
    assert encode(Frame(0x01020304, 2, 5, b"abc")) == bytes.fromhex("00000003 01020304 02 05 616263")
    assert encode(Frame(1, 2, 0, b"")) == bytes.fromhex("00000000 00000001 02 00")


@settings(deadline=None)
@given(st.builds(Frame, st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 255), st.binary()))
def test_what_is_encoded_is_read_back(frame: Frame) -> None:
    assert FrameReader().feed(encode(frame)) == [frame]


def test_a_split_at_every_byte_gives_the_same_frames() -> None:
    for cut in range(len(STREAM) + 1):
        reader = FrameReader()
        assert reader.feed(STREAM[:cut]) + reader.feed(STREAM[cut:]) == FRAMES
        assert reader.buffered == 0


def test_single_bytes_give_each_frame_with_its_last_byte() -> None:
    reader = FrameReader()
    ends = [HEADER_SIZE + len(frame.data) for frame in FRAMES]
    found = {at: frames for at in range(len(STREAM)) if (frames := reader.feed(STREAM[at : at + 1]))}
    assert found == {sum(ends[: n + 1]) - 1: [frame] for n, frame in enumerate(FRAMES)}


def test_a_frame_comes_as_soon_as_its_last_byte_and_not_before() -> None:
    reader = FrameReader()
    assert reader.feed(factory.frame(1, 1, b"abc")[:-1]) == []
    assert reader.buffered == HEADER_SIZE + 2
    assert reader.feed(b"c") == [Frame(1, 1, 0, b"abc")]


def test_the_largest_frame_is_read_and_one_byte_more_is_not() -> None:
    reader = FrameReader()
    assert reader.feed(factory.frame(1, 1, bytes(MAX_DATA))) == [Frame(1, 1, 0, bytes(MAX_DATA))]
    assert reader.feed(factory.oversize(3) + STREAM) == [Oversize(3, 1, MAX_DATA + 1), *FRAMES]


@pytest.mark.fault("N5")
@settings(deadline=None)
@given(st.lists(st.integers(1, MAX_DATA + 10), max_size=6))
def test_an_oversize_frame_is_thrown_away_and_nothing_of_it_is_held(cuts: list[int]) -> None:
    reader = FrameReader()
    found: list[Frame | Oversize] = []
    for piece in factory.split(factory.oversize(9) + STREAM, [*cuts, MAX_DATA + 11]):
        found += reader.feed(piece)
        assert reader.buffered < HEADER_SIZE
    assert found == [Oversize(9, 1, MAX_DATA + 1), *FRAMES]


def test_an_oversize_frame_comes_only_when_all_of_it_has_gone() -> None:
    reader = FrameReader()
    assert reader.feed(factory.oversize(9)[:-1]) == []
    assert reader.feed(b"\x00") == [Oversize(9, 1, MAX_DATA + 1)]


def test_the_longest_announcement_costs_no_memory() -> None:
    reader = FrameReader()
    piece = bytes(1 << 20)
    tracemalloc.start()
    try:
        assert reader.feed(factory.frame(1, 1, length=0xFFFF_FFFF)) == []
        for _ in range((1 << 12) - 1):
            assert reader.feed(piece) == []
        assert reader.feed(piece[:-1]) == [Oversize(1, 1, 0xFFFF_FFFF)]
        assert tracemalloc.get_traced_memory()[1] < 2 * len(piece)
    finally:
        tracemalloc.stop()
    assert reader.feed(STREAM) == FRAMES


def test_a_long_frame_in_tiny_pieces_costs_little_more_than_its_length() -> None:
    size = 1 << 20
    reader = FrameReader()
    whole = factory.frame(1, 1, bytes(size))
    tracemalloc.start()
    try:
        for at in range(0, len(whole) - 64, 64):
            assert reader.feed(whole[at : at + 64]) == []
        assert tracemalloc.get_traced_memory()[1] < 2 * size
    finally:
        tracemalloc.stop()


def test_thousands_of_frames_in_one_read_are_all_found() -> None:
    assert FrameReader().feed(STREAM * 5000) == FRAMES * 5000


@settings(deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_any_bytes_are_read_and_every_split_gives_the_same(data: bytes, cuts: list[int]) -> None:
    whole, pieces = FrameReader(), FrameReader()
    expected = whole.feed(data)
    assert [frame for piece in factory.split(data, cuts) for frame in pieces.feed(piece)] == expected
    assert pieces.buffered == whole.buffered <= len(data)


def test_data_over_the_limit_is_not_encoded() -> None:
    assert len(encode(Frame(1, 1, 0, bytes(MAX_DATA)))) == HEADER_SIZE + MAX_DATA
    with pytest.raises(LocalError, match=r"4194305 bytes .* 4194304"):
        encode(Frame(1, 1, 0, bytes(MAX_DATA + 1)))

"""The wrapping of the two files: versions, checksum, and bytes that are no file at all."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nri_cpu.checkpoint import codec, envelope
from nri_cpu.checkpoint.errors import CheckpointError, CheckpointUnwritable, Corrupt, TooNew
from tests.unit.checkpoint.samples import BOOT, CHECKPOINT, OWNERS, data_of, file_with

FILE = codec.checkpoint_to_bytes(CHECKPOINT, BOOT)
OWNERS_FILE = codec.owners_to_bytes(OWNERS, BOOT)


@pytest.mark.fault("B2")
def test_a_file_of_the_next_format_is_read_if_it_says_that_this_one_can() -> None:
    assert codec.checkpoint_from_bytes(file_with(data_of(FILE), format=2)) == (CHECKPOINT, BOOT)


@pytest.mark.fault("B2", "S2")
def test_a_file_that_needs_a_newer_reader_is_refused_as_such_whatever_else_it_holds() -> None:
    with pytest.raises(TooNew, match="format 2, for readers of format 2"):
        codec.checkpoint_from_bytes(file_with([], format=2, readableBy=2, sha256=None, data=None, bootID=7))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": None}, "format is missing"),
        ({"format": "1"}, "format is text"),
        ({"format": True}, "format is a boolean"),
        ({"format": 1.0}, "format is a number where an integer"),
        ({"format": 10**400}, "format is out of range"),
        ({"format": 0, "readableBy": 0}, "says format 0"),
        ({"readableBy": 2}, "says format 1, readable by 2"),
        ({"readableBy": -1}, "readable by -1"),
        ({"readableBy": None}, "readableBy is missing"),
        ({"bootID": None}, "bootID is missing"),
        ({"bootID": ["x"]}, "bootID is a list"),
        ({"bootID": "a\nb"}, "can't be shown"),
        ({"sha256": None}, "sha256 is missing"),
        ({"sha256": "0" * 64}, "wrong checksum"),
        ({"sha256": ""}, "wrong checksum"),
        ({"data": None}, "data is missing"),
        ({"data": {}}, "data is an object where text"),
        ({"data": "{}"}, "wrong checksum"),
    ],
)
@pytest.mark.fault("S2")
def test_a_damaged_envelope_is_corrupt_and_the_place_is_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(Corrupt, match=words):
        codec.checkpoint_from_bytes(file_with(data_of(FILE), **changes))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"7",
        b'"x"',
        b"{}",
        FILE + b"}",
        FILE + FILE,
        FILE + b"\0",
        b"\0" * 4096,
        b"\xef\xbb\xbf" + FILE,
        FILE.decode().encode("utf-16"),
        FILE.decode().encode("utf-32-le"),
        FILE.replace(b'{"format"', b'{"format":1,"format"', 1),
        FILE.replace(b'{"format":1', b'{"format":1,"x":"\xff"', 1),
        FILE.replace(b'{"format":1', b'{"format":1,"x":NaN', 1),
        FILE.replace(b'{"format":1', b'{"format":1,"x":-Infinity', 1),
        FILE.replace(b'{"format":1', b'{"format":1,"x":1e999', 1),
        FILE.replace(b'{"format":1', b'{"format":1,"x":' + b"9" * 5000, 1),
        FILE.replace(b'{"format":1', b'{"format":1,"x":' + b"[" * 100_000, 1),
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b'"' + b"x" * 4_000_000,
        b"\xff\xfe" * 10,
    ],
    ids=lambda raw: repr(raw[:20]),
)
@pytest.mark.fault("S2")
def test_bytes_that_are_no_file_of_ours_are_corrupt(raw: bytes) -> None:
    for decode in (codec.checkpoint_from_bytes, codec.owners_from_bytes):
        with pytest.raises(Corrupt):
            decode(raw)


@pytest.mark.fault("S2")
def test_the_data_inside_is_read_as_strictly_as_the_file() -> None:
    for text in ("", "{}x", '{"claims":{},"claims":{}}', "[" * 100_000, '{"reservedCPUs":NaN}', '"\\ud800"'):
        with pytest.raises(Corrupt):
            codec.checkpoint_from_bytes(envelope.encode(text, BOOT))


def test_a_file_over_the_size_limit_is_refused_unread() -> None:
    with pytest.raises(Corrupt, match=str(envelope.MAX_FILE_BYTES)):
        envelope.decode(bytes(envelope.MAX_FILE_BYTES + 1))


def test_a_file_over_the_size_limit_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "MAX_FILE_BYTES", len(FILE))
    assert codec.checkpoint_to_bytes(CHECKPOINT, BOOT) == FILE
    monkeypatch.setattr(envelope, "MAX_FILE_BYTES", len(FILE) - 1)
    with pytest.raises(CheckpointUnwritable, match=f"larger than {len(FILE) - 1} bytes"):
        codec.checkpoint_to_bytes(CHECKPOINT, BOOT, CHECKPOINT.claims)


@pytest.mark.fault("S2")
def test_a_file_cut_off_anywhere_is_corrupt() -> None:
    for raw, decode in ((FILE, codec.checkpoint_from_bytes), (OWNERS_FILE, codec.owners_from_bytes)):
        for end in range(len(raw)):
            with pytest.raises(Corrupt):
                decode(raw[:end])


@pytest.mark.fault("S2")
def test_a_flipped_bit_never_changes_a_claim() -> None:
    for at in range(len(FILE) * 8):
        damaged = bytearray(FILE)
        damaged[at // 8] ^= 1 << at % 8
        try:
            checkpoint, _ = codec.checkpoint_from_bytes(bytes(damaged))
        except CheckpointError:
            continue
        assert checkpoint.claims == CHECKPOINT.claims, f"bit {at}"
        assert checkpoint.reserved == CHECKPOINT.reserved, f"bit {at}"


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@example(b'{"format": 1, "readableBy": 1, "bootID": "", "sha256": "", "data": "\\udc80"}')
@pytest.mark.fault("S2")
def test_random_bytes_get_our_error_only(raw: bytes) -> None:
    with pytest.raises(CheckpointError):
        codec.checkpoint_from_bytes(raw)
    with pytest.raises(CheckpointError):
        codec.owners_from_bytes(raw)

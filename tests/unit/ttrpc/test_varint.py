"""Numbers as protobuf writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_cpu.ttrpc.ttrpc_pb2 import Request
from nri_cpu.ttrpc.varint import varint


@given(st.integers(1, 2**63 - 1) | st.integers(0, 62).map(lambda bits: 1 << bits))
def test_a_number_has_protobufs_own_bytes(number: int) -> None:
    assert b"\x20" + varint(number) == Request(timeout_nano=number).SerializeToString()


@pytest.mark.parametrize(("number", "data"), [(0, "00"), (127, "7f"), (128, "8001"), (16383, "ff7f")])
def test_a_length_gets_a_byte_more_at_each_seven_bits(number: int, data: str) -> None:
    assert varint(number).hex() == data

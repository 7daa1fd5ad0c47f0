"""Protobuf's numbers, for the messages that are written without protobuf because each hook makes one."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """Base 128: seven bits a byte, the lowest first, the high bit on all but the last. `number` is not negative."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)

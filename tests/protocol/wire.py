"""Protobuf by hand, for tests of what is on the wire: no generated code of ours is asked whether ours is right."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """A number as the wire has it: seven bits a byte, the lowest first."""
    head = b""
    while value > 127:
        head += bytes([value & 127 | 128])
        value >>= 7
    return head + bytes([value])


def field(number: int, value: bytes | str | int) -> bytes:
    """One field: a number as a varint, all else with its length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(data: bytes) -> dict[int, list[bytes | int]]:
    """The fields of a message by number, each with its values in order; raises ValueError for what is none."""
    found: dict[int, list[bytes | int]] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data):
                raise ValueError(f"the message ends in a number: {data!r}")
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        value: bytes | int = number()
        if tag & 7 == 2:
            assert isinstance(value, int)
            at, value = at + value, data[at : at + value]
            if at > len(data):
                raise ValueError(f"the message ends in field {tag >> 3}: {data!r}")
        elif tag & 7:
            raise ValueError(f"field {tag >> 3} is of wire type {tag & 7}, which no message here has")
        found.setdefault(tag >> 3, []).append(value)
    return found


def texts(values: list[bytes | int]) -> list[str]:
    """Values of a field of strings; raises ValueError for what has no text."""
    if numbers := [value for value in values if isinstance(value, int)]:
        raise ValueError(f"{numbers} are no strings")
    return [value.decode() for value in values if isinstance(value, bytes)]

"""The replies that carry cpusets, written as protobuf's wire bytes by hand.

A reply to a full node has hundreds of updates that differ in nothing but the container's id, under the runtime's lock.
So all that lies between two ids is made once per cpuset, and a reply is one join: 12 times as fast as setting fields of
messages. The layout (nri.proto; field numbers in front):

    reply            1 or 2: ContainerUpdate, repeated
    ContainerUpdate  1: container_id   2: linux { 1: resources { 2: cpu { 6: cpus } } }   3: ignore_failure
    CreateContainerResponse            1: adjust { 6: linux { 2: resources { 2: cpu { 6: cpus } } } }

Every update has ignore_failure: CRI-O fails a registration or the creation of an innocent container when one without it
can't be applied. Never an empty cpuset: a runtime reads it as "leave as is" (fault A23). Never an id twice: a plugin's
updates for one container conflict with each other, and the runtime fails the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from nri_cpu.cpuset import CPUSet
from nri_cpu.nri.hooks import Updates

# Protobuf's tags: field number << 3 | 2 for a length and that many bytes, | 0 for a number.
_FIELD_1, _FIELD_2, _FIELD_6 = b"\x0a", b"\x12", b"\x32"
_IGNORE_FAILURE = b"\x18\x01"

MORE: Final = b"\x10\x01"
"""SynchronizeResponse to a part that is not the last: more, and no updates (fault N5)."""


def synchronize_reply(updates: Updates) -> bytes:
    """SynchronizeResponse to the last part. Raises ValueError for an empty cpuset or an id that comes twice."""
    return _encode(_FIELD_1, updates)


def create_reply(cpus: CPUSet | None, updates: Updates) -> bytes:
    """CreateContainerResponse; without an adjustment if `cpus` is None. Raises ValueError as above."""
    reply = _encode(_FIELD_2, updates)
    return reply if cpus is None else _adjustment(cpus) + reply


def update_reply(updates: Updates) -> bytes:
    """UpdateContainerResponse. Raises ValueError as above."""
    return _encode(_FIELD_1, updates)


def stop_reply(updates: Updates) -> bytes:
    """StopContainerResponse. Raises ValueError as above."""
    return _encode(_FIELD_1, updates)


def _encode(field: bytes, updates: Updates) -> bytes:
    if not updates:
        return b""
    seen: set[str] = set()
    count = 0
    parts = []
    for cpus, ids in updates:
        if not cpus:
            raise ValueError("an update with an empty cpuset: a runtime would leave the container as it is")
        seen.update(ids)
        count += len(ids)
        parts.append(_group(field, cpus, ids))
    if len(seen) != count:
        raise ValueError(f"{count - len(seen)} updates for containers that have one already: the runtime fails such")
    return b"".join(parts)


def _group(field: bytes, cpus: CPUSet, ids: Sequence[str]) -> bytes:
    """The updates that give `cpus` to each of `ids`, in their order."""
    if len(set(map(len, ids))) == 1 and "".join(ids).isascii():
        # Ids of one runtime have one length (64 hexadecimal digits), so the bytes between two of them are always the
        # same. Latin-1 is bytes as text: one join and one copy, provided that the ids are ASCII.
        head, between, tail = _around(field, len(ids[0]), cpus)
        return (head + between.join(ids) + tail).encode("latin-1")
    return b"".join(_one(field, cpus, container_id.encode()) for container_id in ids)


def _one(field: bytes, cpus: CPUSet, container_id: bytes) -> bytes:
    head, _, tail = _around(field, len(container_id), cpus)
    return head.encode("latin-1") + container_id + tail.encode("latin-1")


@lru_cache(maxsize=64)
def _around(field: bytes, id_length: int, cpus: CPUSet) -> tuple[str, str, str]:
    """What comes before an id of `id_length` bytes, between two and after the last, as Latin-1."""
    tail = _message(_FIELD_2, _message(_FIELD_1, _resources(cpus))) + _IGNORE_FAILURE
    id_tag = _FIELD_1 + _varint(id_length)
    head = field + _varint(len(id_tag) + id_length + len(tail)) + id_tag
    return head.decode("latin-1"), (tail + head).decode("latin-1"), tail.decode("latin-1")


@lru_cache(maxsize=64)
def _adjustment(cpus: CPUSet) -> bytes:
    if not cpus:
        raise ValueError("an adjustment with an empty cpuset: the container would run on every CPU")
    return _message(_FIELD_1, _message(_FIELD_6, _message(_FIELD_2, _resources(cpus))))


def _resources(cpus: CPUSet) -> bytes:
    """LinuxResources with nothing but cpu.cpus."""
    return _message(_FIELD_2, _message(_FIELD_6, str(cpus).encode()))


def _message(tag: bytes, body: bytes) -> bytes:
    return tag + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    """Protobuf's base 128: seven bits a byte, the lowest first, the high bit on all but the last."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)

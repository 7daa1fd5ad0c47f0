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
from nri_cpu.ttrpc.varint import varint

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
    adjustment = b"" if cpus is None else _adjustment(cpus)
    return adjustment + _encode(_FIELD_2, updates) if updates else adjustment


def update_reply(updates: Updates) -> bytes:
    """UpdateContainerResponse. Raises ValueError as above."""
    return _encode(_FIELD_1, updates)


def stop_reply(updates: Updates) -> bytes:
    """StopContainerResponse. Raises ValueError as above."""
    return _encode(_FIELD_1, updates) if updates else b""


def _encode(field: bytes, updates: Updates) -> bytes:
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
    """The updates that give `cpus` to each of `ids`, in their order. Latin-1 is bytes as text: joined as such, and
    copied once."""
    if not "".join(ids).isascii():
        ids = [container_id.encode().decode("latin-1") for container_id in ids]
    lengths = set(map(len, ids))
    before = {length: _before(field, length, cpus) for length in lengths}
    after = _after(cpus)
    if len(lengths) == 1:  # as the ids of one runtime, 64 hexadecimal digits: what is between two is always the same
        (first,) = before.values()
        return (first + (after + first).join(ids) + after).encode("latin-1")
    return "".join([before[len(each)] + each + after for each in ids]).encode("latin-1")


@lru_cache(maxsize=64)
def _before(field: bytes, id_length: int, cpus: CPUSet) -> str:
    """What comes before an id of so many bytes, as Latin-1."""
    id_tag = _FIELD_1 + varint(id_length)
    return (field + varint(len(id_tag) + id_length + len(_after(cpus))) + id_tag).decode("latin-1")


@lru_cache(maxsize=64)
def _after(cpus: CPUSet) -> str:
    """What comes after an id, as Latin-1."""
    return (_message(_FIELD_2, _message(_FIELD_1, _resources(cpus))) + _IGNORE_FAILURE).decode("latin-1")


@lru_cache(maxsize=64)
def _adjustment(cpus: CPUSet) -> bytes:
    if not cpus:
        raise ValueError("an adjustment with an empty cpuset: the container would run on every CPU")
    return _message(_FIELD_1, _message(_FIELD_6, _message(_FIELD_2, _resources(cpus))))


def _resources(cpus: CPUSet) -> bytes:
    """LinuxResources with nothing but cpu.cpus."""
    return _message(_FIELD_2, _message(_FIELD_6, str(cpus).encode()))


def _message(tag: bytes, body: bytes) -> bytes:
    return tag + varint(len(body)) + body

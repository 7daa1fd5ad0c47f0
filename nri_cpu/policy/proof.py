"""Which claims a container may use: env that anybody may write, against what was prepared (known faults A20, A21, R10).

A claim's CDI spec sets `DRA_CPUSET_<uid>=<cpuset>` and `NRI_CPU_PREPARATION_<uid>=<preparation>`. Only the second is
proof: its value is random and lies in files of root's alone. What is named and not proven is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nri_cpu.checkpoint.cdi import CPUSET_ENV, PREPARATION_ENV, claim_device_name, qualified
from nri_cpu.checkpoint.model import ClaimRecord
from nri_cpu.cpuset import MAX_TEXT, CPUSet, CPUSetError

# A variable that comes more often would, as one that is longer than any cpuset, take long to read under the runtime's
# lock.
_MOST_ENTRIES = 8

# Other suffixes are none of our business: users may call a variable DRA_CPUSET_ASSIGNED (known fault B12).
_UID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Mention(NamedTuple):
    """What a container's env says of one claim. None: an entry without `=`."""

    cpusets: list[str | None]
    preparations: list[str | None]

    def __repr__(self) -> str:
        """Without what may be proof."""
        return f"<mention of {self.cpusets}>"


def mentions(env: Iterable[str]) -> dict[str, Mention]:
    """The claims that env names, by UID, in the order in which they come."""
    found: dict[str, Mention] = {}
    for entry in env:
        if not entry.startswith((CPUSET_ENV, PREPARATION_ENV)):
            continue
        name, equals, value = entry.partition("=")
        is_cpuset = name.startswith(CPUSET_ENV)
        uid = name.removeprefix(CPUSET_ENV if is_cpuset else PREPARATION_ENV)
        if uid not in found:
            if not _UID.fullmatch(uid):
                continue
            found[uid] = Mention([], [])
        (found[uid].cpusets if is_cpuset else found[uid].preparations).append(value if equals else None)
    return found


def objection(uid: str, mention: Mention, claims: Mapping[str, ClaimRecord]) -> str:
    """Why the container may not use the claim; empty when it may. Never tells a preparation."""
    record = claims.get(uid)
    given = record is not None and bool(mention.preparations) and set(mention.preparations) == {record.preparation}
    if record is not None and given and _agrees(mention, record):
        return ""
    for text in mention.cpusets[:_MOST_ENTRIES]:
        if problem := _malformed(text):
            return f"{CPUSET_ENV}{uid} {problem}; only a ResourceClaim sets it: take it out of the pod's env"
    name = f"{CPUSET_ENV if mention.cpusets else PREPARATION_ENV}{uid}"
    if record is None:
        return f"{name} names a claim that is not prepared on this node; {_WAY_OUT}"
    if not given:
        return f"{name} names {title(record)}, which the container was not given; {_WAY_OUT}"
    return f"{CPUSET_ENV}{uid} is not {record.cpus}, the CPUs of {title(record)}; {_WAY_OUT}"


def without_preparation(mention: Mention, record: ClaimRecord | None) -> bool:
    """Whether env names the claim and its very CPUs, with no preparation: a container that dra-driver-cpu has made."""
    return record is not None and bool(mention.cpusets) and not mention.preparations and _agrees(mention, record)


def disagreement(uids: Iterable[str], devices: tuple[str, ...]) -> str:
    """The claim that env proves and the kubelet's own device list, where the runtime tells it, does not have."""
    for uid in uids:
        name = qualified(claim_device_name(uid))
        if devices and not any(device == name or device.startswith(f"{name}-") for device in devices):
            return f"claim {uid} is in the container's env and not among its CDI devices; {_WAY_OUT}"
    return ""


def title(record: ClaimRecord) -> str:
    return f"claim {record.namespace}/{record.name} ({record.uid})"


_WAY_OUT = "name the claim in the container's resources.claims, and don't set the variable by hand"


def _malformed(text: str | None) -> str:
    if text is None:
        return "has no value"
    if len(text) > MAX_TEXT:
        return f"is malformed ({len(text)} characters are no list of CPUs)"
    if not text:
        return "is empty"
    try:
        CPUSet.parse(text)
    except CPUSetError as error:
        return f"is malformed ({error})"
    return ""


def _agrees(mention: Mention, record: ClaimRecord) -> bool:
    """Whether every cpuset in env is the claim's, in whatever notation."""
    if len(mention.cpusets) > _MOST_ENTRIES:
        return False
    ours = str(record.cpus)
    return all(
        text == ours or (text is not None and not _malformed(text) and CPUSet.parse(text) == record.cpus)
        for text in mention.cpusets
    )

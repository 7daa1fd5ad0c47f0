"""What the two files say: prepared claims, and who owns them. Plain values; codec.py checks them in both directions.

`unknown` holds fields of a newer version, so that rewriting a file keeps them. Mappings are shared, never mutated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from nri_cpu.cpuset import CPUSet

# As the API server makes them: RFC 9562 text in lower case. They become names of files and environment variables.
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PREPARATION = re.compile(r"[0-9a-f]{32}")


def is_uid(text: str) -> bool:
    """Whether `text` has the form of a claim's UID."""
    return _UID.fullmatch(text) is not None


def is_preparation(text: str) -> bool:
    """Whether `text` has the form of a preparation: 128 bits in 32 lower-case hexadecimal digits."""
    return _PREPARATION.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """What one result of a claim's allocation got: `cpus` of device `device` in pool `pool` for request `request`."""

    request: str
    pool: str
    device: str
    cpus: CPUSet
    share_id: str | None = None
    unknown: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """One prepared claim.

    preparation: proof that a container may use the claim; in no repr, message or log.
    prepared_at: when it was first prepared, RFC 3339 in UTC.
    pod_uids: information, not proof: the kubelet does not tell of later pods.
    options: JSON values that the choice of CPUs was made with.
    pod_claim_name: what pods call a claim that was made from a template for one of them, None for any other.
    """

    uid: str
    namespace: str
    name: str
    pod_uids: tuple[str, ...]
    cpus: CPUSet
    preparation: str = field(repr=False)
    prepared_at: str
    devices: tuple[DeviceAllocation, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    unknown: Mapping[str, object] = field(default_factory=dict, repr=False)
    pod_claim_name: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The prepared claims by UID, disjoint, and the CPUs that dra-cpu keeps out of everything.

    The shared pool is not here: it is computed, so that it can't contradict the claims (fault S1).
    envelope: unknown fields of the file around the data.
    """

    reserved: CPUSet
    claims: Mapping[str, ClaimRecord]
    unknown: Mapping[str, object] = field(default_factory=dict, repr=False)
    envelope: Mapping[str, object] = field(default_factory=dict, repr=False)

    @property
    def prepared(self) -> CPUSet:
        """The CPUs of all claims."""
        return CPUSet.union(record.cpus for record in self.claims.values())


@dataclass(frozen=True, slots=True)
class Owner:
    """The container that a preparation of a claim belongs to: `container` (a name) of pod `pod_uid`.

    container_id, cgroup: its latest incarnation, for readers that look at the machine.
    """

    preparation: str = field(repr=False)
    pod_uid: str
    pod_namespace: str
    pod_name: str
    container: str
    container_id: str
    cgroup: str
    unknown: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners by claim UID. `envelope`: as in Checkpoint."""

    owners: Mapping[str, Owner]
    unknown: Mapping[str, object] = field(default_factory=dict, repr=False)
    envelope: Mapping[str, object] = field(default_factory=dict, repr=False)

"""Health of devices: whether the CPUs that claims hold are on line (features.md D8, fault B10). Pure.

A device is Unhealthy while a CPU of a prepared claim of it is off line, and only then: a CPU that nobody holds lowers
what is published when it goes, and hurts no pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra.claims import ClaimRef
from dra.offer import Place, by_device
from dra.prepare.choice import Node
from nri_cpu.checkpoint.model import ClaimRecord
from nri_cpu.cpuset import CPUSet

# The kubelet cuts a message at 1024 bytes.
MESSAGE_LIMIT = 1000
# Characters of a list of CPUs: a claim may hold thousands.
_SHOWN_CPUS = 100
# Bytes that are kept for saying how many claims are not named.
_ROOM = 40


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """What the kubelet is told of one device; equal ones tell the same, so a report that is equal needs no sending.

    `message`: which claims lack which CPUs, at most 1000 bytes; empty for a healthy device.
    """

    pool: str
    device: str
    healthy: bool
    message: str = ""


def health_of(node: Node, records: Mapping[str, ClaimRecord], online: CPUSet) -> tuple[DeviceHealth, ...]:
    """The health of all devices of the node, and of those that records name besides: devices whose CPUs are all off
    line, those of another configuration (fault R17), and those of another name of the node.

    `records`: the prepared claims by UID; `online`: the CPUs that are on line now.
    """
    lacking: dict[Place, list[str]] = {(node.pool, name): [] for name in node.devices}
    for uid in sorted(records):
        record = records[uid]
        for key, cpus in by_device(record).items():
            told = lacking.setdefault(key, [])
            if gone := cpus - online:
                told.append(f"{_cpus(gone)} of claim {ClaimRef(uid, record.namespace, record.name)}")
    return tuple(DeviceHealth(pool, device, not told, _message(told)) for (pool, device), told in lacking.items())


def _cpus(cpus: CPUSet) -> str:
    text = str(cpus)
    shown = text if len(text) <= _SHOWN_CPUS else f"{text[:_SHOWN_CPUS].rpartition(',')[0]},..."
    return f"CPU{'s' if len(cpus) > 1 else ''} {shown}"


def _message(told: Iterable[str]) -> str:
    """One line for as many claims as there is room for, and how many more there are."""
    told = list(told)
    if not told:
        return ""
    # One name alone may be longer, in an alphabet of many bytes.
    said = f"off line: {told[0]}".encode()[: MESSAGE_LIMIT - _ROOM].decode(errors="ignore")
    for number, part in enumerate(told[1:], 1):
        longer = f"{said}; {part}"
        if len(longer.encode()) > MESSAGE_LIMIT - _ROOM:
            return f"{said}; and of {len(told) - number} more claims"
        said = longer
    return said

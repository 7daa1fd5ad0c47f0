"""Records of prepared claims for tests, without a preparer that makes them."""

from __future__ import annotations

from collections.abc import Mapping

from nri_cpu.checkpoint.model import ClaimRecord, DeviceAllocation
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.manifests import NODE, uid


def record(number: int, *devices: tuple[str, str], name: str = "", pool: str = NODE) -> ClaimRecord:
    """Claim default/c<number> with these CPUs of these devices."""
    allocations = tuple(DeviceAllocation("cpus", pool, device, CPUSet.parse(cpus)) for device, cpus in devices)
    return ClaimRecord(
        uid=uid(number),
        namespace="default",
        name=name or f"c{number}",
        pod_uids=(),
        cpus=CPUSet.union(allocation.cpus for allocation in allocations),
        preparation=f"{number:032x}",
        prepared_at="2026-01-01T00:00:00Z",
        devices=allocations,
    )


def prepared(*records: ClaimRecord) -> Mapping[str, ClaimRecord]:
    return {each.uid: each for each in records}

"""The ways to choose CPUs that both allocators have, in our words and in the kubelet's."""

from __future__ import annotations

from dataclasses import dataclass

from dra.allocation import AllocationOptions, Strategy
from tests.kubelet_allocator.driver import Policy


@dataclass(frozen=True, slots=True)
class Way:
    """One of them. The kubelet looks at L3 groups only in packed, so ours does not in distributed."""

    name: str
    options: AllocationOptions
    policy: Policy


PACKED = Way("packed", AllocationOptions(), Policy(align_l3=True))
PACKED_NO_L3 = Way("packed, no L3", AllocationOptions(align_l3=False), Policy())
FULL_CORES = Way("full cores", AllocationOptions(full_physical_cores=True), Policy(align_l3=True, full_pcpus_only=True))
SPREAD = Way("spread", AllocationOptions(Strategy.SPREAD), Policy("spread"))
DISTRIBUTED = Way("distributed", AllocationOptions(Strategy.DISTRIBUTED, align_l3=False), Policy("distributed"))

FULL_CORES_NO_L3 = Way(
    "full cores, no L3", AllocationOptions(full_physical_cores=True, align_l3=False), Policy(full_pcpus_only=True)
)
DISTRIBUTED_FULL_CORES = Way(
    "distributed, full cores",
    AllocationOptions(Strategy.DISTRIBUTED, align_l3=False, full_physical_cores=True),
    Policy("distributed", full_pcpus_only=True),
)
DISTRIBUTED_BY_SOCKET = Way("distributed by socket", DISTRIBUTED.options, Policy("distributed", align_by_socket=True))

WAYS = (
    PACKED,
    PACKED_NO_L3,
    FULL_CORES,
    FULL_CORES_NO_L3,
    SPREAD,
    DISTRIBUTED,
    DISTRIBUTED_BY_SOCKET,
    DISTRIBUTED_FULL_CORES,
)

"""Which CPUs a claim gets, or why it gets none: a pure function of the node, the claim and what is prepared already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra.allocation import AllocationError, allocate
from dra.claims import Claim, ClaimError, Result
from dra.devices import CAPACITY, Device, DeviceMode, by_name, devices_of
from nri_cpu.checkpoint.model import ClaimRecord, DeviceAllocation
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology.model import Topology

# Devices that an error names. In individual mode there are as many as CPUs.
_SHOWN_DEVICES = 8


@dataclass(frozen=True, slots=True)
class Node:
    """The machine as it is configured. `pool`: the node's name; `min_shared`: CPUs that claims leave (fault B3)."""

    pool: str
    mode: DeviceMode
    topology: Topology
    reserved: CPUSet
    min_shared: int
    devices: Mapping[DeviceMode, Mapping[str, Device]]

    @classmethod
    def of(
        cls, pool: str, mode: DeviceMode, topology: Topology, reserved: CPUSet, min_shared: int | None = None
    ) -> Node:
        """`min_shared` None: 1 without reserved CPUs, which shared containers could fall back to, and 0 with."""
        allocatable = topology.online - reserved
        return cls(
            pool=pool,
            mode=mode,
            topology=topology,
            reserved=reserved,
            min_shared=min_shared if min_shared is not None else int(not reserved),
            # Those of the other mode tell a claim of another configuration from nonsense.
            devices={each: by_name(devices_of(each, topology, allocatable)) for each in DeviceMode},
        )

    def holds(self, allocation: DeviceAllocation) -> bool:
        """Whether the CPUs are still in the device of that name, whatever mode it belongs to."""
        found = [devices[allocation.device] for devices in self.devices.values() if allocation.device in devices]
        return any(allocation.cpus <= device.cpus for device in found)


def choose(node: Node, claim: Claim, others: Mapping[str, ClaimRecord], online: CPUSet) -> tuple[DeviceAllocation, ...]:
    """CPUs for each result of the claim, disjoint from each other, from reserved CPUs and from all prepared claims.

    `others`: the prepared claims by UID; `online`: the CPUs that are on line now. Raises ClaimError with the device and
    the numbers.
    """
    prepared = CPUSet.union(record.cpus for record in others.values())
    taken = EMPTY
    chosen: list[DeviceAllocation] = []
    for result in claim.results:
        device = _device(node, result)
        if node.mode is DeviceMode.INDIVIDUAL:
            cpus = _individual(result, device, others, online, taken)
        else:
            cpus = _grouped(node, result, device, (device.cpus & online) - prepared - taken)
        taken |= cpus
        chosen.append(DeviceAllocation(result.request, result.pool, result.device, cpus, result.share_id))
    left = len(online - node.reserved - prepared - taken)
    if chosen and left < node.min_shared:
        raise ClaimError(
            f"its {len(taken)} CPUs would leave {left} shared CPUs, minimum {node.min_shared} "
            "(minSharedCPUs; reservedCPUs would give shared containers CPUs of their own)"
        )
    return tuple(chosen)


def confirm(record: ClaimRecord, claim: Claim) -> None:
    """Raises ClaimError unless the claim is allocated what it was prepared with (faults A3, A6)."""
    before = [(entry.request, entry.pool, entry.device, entry.share_id, len(entry.cpus)) for entry in record.devices]
    now = [
        (result.request, result.pool, result.device, result.share_id, result.consumed_cpus or 1)
        for result in claim.results
    ]
    if before != now:
        raise ClaimError(
            f"it was prepared here with {_said(before)} and is allocated {_said(now)} now: "
            "it can be prepared anew once the kubelet has unprepared it"
        )


def _said(entries: Iterable[tuple[str, str, str, str | None, int]]) -> str:
    parts = [f"{count} CPUs of {pool}/{device} for {request}" for request, pool, device, _, count in entries]
    return ", ".join(parts) or "nothing"


def _device(node: Node, result: Result) -> Device:
    if result.admin_access:
        raise ClaimError(f"device {result.device} is allocated with adminAccess, which this driver does not support")
    if result.pool != node.pool:
        raise ClaimError(
            f"device {result.device} is of pool {result.pool}, this node's is {node.pool} (hostnameOverride changes it)"
        )
    if result.device in node.devices[node.mode]:
        return node.devices[node.mode][result.device]
    for mode, devices in node.devices.items():
        if result.device in devices:
            raise ClaimError(
                f"device {result.device} belongs to cpuDeviceMode {mode}, this node has {node.mode} now: "
                "delete the pod and its claim to have them allocated anew"
            )
    raise ClaimError(f"device {result.device} does not exist on this node: {_why(node, result.device)}")


def _why(node: Node, name: str) -> str:
    everything = (name_to for each in DeviceMode for name_to in devices_of(each, node.topology, node.topology.online))
    for device in everything:
        if device.name == name:
            return f"all its CPUs ({device.cpus}) are reserved"
    names = list(node.devices[node.mode])
    shown = ", ".join(names[:_SHOWN_DEVICES]) or "none"
    rest = f" and {len(names) - _SHOWN_DEVICES} more" if len(names) > _SHOWN_DEVICES else ""
    return f"there are {shown}{rest}"


def _individual(
    result: Result, device: Device, others: Mapping[str, ClaimRecord], online: CPUSet, taken: CPUSet
) -> CPUSet:
    if result.consumed_cpus not in (None, 1):
        raise ClaimError(f"device {device.name} is 1 CPU, {result.consumed_cpus} are allocated of it")
    if not device.cpus <= online:
        raise ClaimError(f"CPU {device.cpus} of device {device.name} is off line")
    if device.cpus <= taken:
        raise ClaimError(f"device {device.name} is allocated twice in this claim")
    for other in others.values():
        if not other.cpus.isdisjoint(device.cpus):
            raise ClaimError(
                f"CPU {device.cpus} of device {device.name} is prepared for claim {other.namespace}/{other.name} "
                f"({other.uid}), which must be unprepared first"
            )
    return device.cpus


def _grouped(node: Node, result: Result, device: Device, free: CPUSet) -> CPUSet:
    if result.consumed_cpus is None:
        raise ClaimError(
            f"device {device.name}: the allocation lacks consumedCapacity[{CAPACITY}], the number of CPUs; "
            "the cluster needs the feature gate DRAConsumableCapacity"
        )
    try:
        return allocate(node.topology, free, result.consumed_cpus)
    except AllocationError as error:
        raise ClaimError(f"device {device.name}: {error}, {len(device.cpus)} in all") from None

"""Which CPUs a claim gets, or why it gets none: a pure function of the node, the claim and what is prepared already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra.allocation import AllocationError, AllocationOptions, OptionsError, allocate
from dra.allocation.errors import said
from dra.claims import Claim, ClaimError, ConfigSource, Result
from dra.cpu_config import CpuConfig, CpuConfigError, merge, parse_cpu_config
from dra.devices import (
    CAPACITY,
    AttributeValue,
    Device,
    DeviceMode,
    GroupBy,
    by_name,
    devices_of,
    every_device,
    offline_devices,
    setting,
)
from nri_cpu.checkpoint.model import ClaimRecord, DeviceAllocation
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology.model import Topology

# Devices or claims that an error names. In individual mode there are as many devices as CPUs.
_SHOWN_NAMES = 8
_SHOWN_TEXT = 100

_UNSET = CpuConfig()


@dataclass(frozen=True, slots=True)
class Node:
    """The machine as it is configured.

    `pool`: the node's name; `min_shared`: CPUs that claims leave (fault B3); `default`: how CPUs are chosen where class
    and claim don't say. `devices`: those of this configuration; `every`: those of all configurations, which tell a
    claim of another one from nonsense. Devices and choices are made of one topology (fault R18).
    """

    pool: str
    mode: DeviceMode
    group_by: GroupBy
    topology: Topology
    reserved: CPUSet
    min_shared: int
    default: CpuConfig
    devices: Mapping[str, Device]
    every: Mapping[str, Device]

    @classmethod
    def of(
        cls,
        pool: str,
        mode: DeviceMode,
        topology: Topology,
        reserved: CPUSet,
        min_shared: int | None = None,
        *,
        group_by: GroupBy = GroupBy.NUMANODE,
        default: CpuConfig = _UNSET,
        pcie_roots: bool = False,
    ) -> Node:
        """`min_shared` None: 1 without reserved CPUs, which shared containers could fall back to, and 0 with."""
        allocatable = topology.online - reserved
        return cls(
            pool=pool,
            mode=mode,
            group_by=group_by,
            topology=topology,
            reserved=reserved,
            min_shared=min_shared if min_shared is not None else int(not reserved),
            default=default,
            devices=by_name(devices_of(topology, allocatable, mode, group_by, pcie_roots)),
            every=every_device(topology, allocatable),
        )

    def holds(self, allocation: DeviceAllocation) -> bool:
        """Whether the CPUs are still in the device of that name, whatever configuration it belongs to."""
        device = self.every.get(allocation.device)
        return device is not None and allocation.cpus <= device.cpus

    def attributes(self, name: str) -> Mapping[str, AttributeValue]:
        """The attributes of the device of that name, of whatever configuration; none when there is none."""
        device = self.devices.get(name) or self.every.get(name)
        return device.attributes if device else {}

    def warnings(self) -> tuple[str, ...]:
        """What is odd about the configuration on this machine and worth a line in the log (fault R16)."""
        found = []
        if not self.devices:
            found.append("all CPUs are reserved: no claim can be prepared")
        shared = CPUSet.union(core for core in self.topology.cores if not core.isdisjoint(self.reserved))
        if self.devices and (halves := shared - self.reserved):
            found.append(
                f"CPUs {halves} can be in claims and are siblings of reserved ones: "
                "reserve whole cores to keep them apart"
            )
        if self.mode is DeviceMode.INDIVIDUAL and self.default != CpuConfig():
            found.append(f"{self.default}: has no effect with cpuDeviceMode individual, the scheduler chooses the CPUs")
        elif self.default.numa_nodes is not None and self.default.strategy is None:
            found.append(
                f"numaNodes: {self.default.numa_nodes} without strategy: distributed: claims are refused unless their "
                "DeviceClass or they themselves set that strategy; set it here, or take numaNodes away"
            )
        found.extend(
            f"device {device.name} is published without the PCIe roots {', '.join(device.left_out)}: "
            "more than a device has room for"
            for device in self.devices.values()
            if device.left_out
        )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a claim gets: CPUs for each of its results, in their order.

    `options`: how they were chosen, by request, as JSON; a request of individual devices has none.
    """

    devices: tuple[DeviceAllocation, ...]
    options: Mapping[str, object]


def choose(node: Node, claim: Claim, others: Mapping[str, ClaimRecord], online: CPUSet) -> Choice:
    """CPUs for each result of the claim, disjoint from each other, from reserved CPUs and from all prepared claims.

    `others`: the prepared claims by UID; `online`: the CPUs that are on line now. Raises ClaimError with the device and
    the numbers.
    """
    prepared = CPUSet.union(record.cpus for record in others.values())
    chosen: list[DeviceAllocation] = []
    options: dict[str, object] = {}
    for result in claim.results:
        device = _device(node, result)
        asked = _asked(claim, result, device)
        taken = CPUSet.union(allocation.cpus for allocation in chosen)
        if device.group_by is None:
            cpus = _individual(result, device, asked, others, online, taken)
        elif result.consumed_cpus is None:
            raise ClaimError(
                f"device {device.name}: the allocation lacks consumedCapacity[{CAPACITY}], the number of CPUs; "
                "the cluster needs the feature gate DRAConsumableCapacity"
            )
        elif asked.cpuset is not None:
            cpus = _named(node, device, asked.cpuset, result.consumed_cpus, chosen, others, online)
            options[result.request] = {"cpuset": str(cpus)}
        else:
            free = (device.cpus & online) - prepared - taken
            cpus, options[result.request] = _allocated(node, device, asked, result.consumed_cpus, free, others)
        chosen.append(DeviceAllocation(result.request, result.pool, result.device, cpus, result.share_id))
    taken = CPUSet.union(allocation.cpus for allocation in chosen)
    left = len(online - node.reserved - prepared - taken)
    if chosen and left < node.min_shared:
        names = list(dict.fromkeys(each.device for each in chosen))
        raise ClaimError(
            f"device{'s' if len(names) > 1 else ''} {_listed(names)}: its {said(len(taken))} would leave {left} shared "
            f"CPUs, minimum {node.min_shared} (minSharedCPUs; "
            "reservedCPUs would give shared containers CPUs of their own)"
        )
    return Choice(tuple(chosen), options)


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
    parts = [f"{said(count)} of {pool}/{device} for {request}" for request, pool, device, _, count in entries]
    return ", ".join(parts) or "nothing"


def _device(node: Node, result: Result) -> Device:
    if result.admin_access:
        raise ClaimError(f"device {result.device} is allocated with adminAccess, which this driver does not support")
    if result.pool != node.pool:
        raise ClaimError(
            f"device {result.device} is of pool {result.pool}, this node's is {node.pool} (hostnameOverride changes it)"
        )
    if device := node.devices.get(result.device):
        return device
    if device := node.every.get(result.device):
        raise ClaimError(
            f"device {result.device} belongs to {device.setting}, this node has {setting(node.mode, node.group_by)} "
            "now: delete the pod and its claim to have them allocated anew"
        )
    raise ClaimError(f"device {result.device} does not exist on this node: {_why(node, result.device)}")


def _why(node: Node, name: str) -> str:
    if device := every_device(node.topology, node.topology.online).get(name):
        return f"all its CPUs ({device.cpus}) are reserved"
    if cpus := offline_devices(node.topology).get(name):
        return f"all its CPUs ({cpus}) are off line"
    return f"there are {_listed(node.devices) or 'none'}"


def _listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + rest


def _asked(claim: Claim, result: Result, device: Device) -> CpuConfig:
    """What classes and claim set for the result's request, all in one. A cpuset is the claim's only (fault A13)."""
    where = f"device {device.name}, request {result.request}"
    found: list[CpuConfig] = []
    cpusets: list[CPUSet] = []
    for entry in claim.configs:
        if not entry.is_for(result.request):
            continue
        try:
            config = parse_cpu_config(entry.parameters, entry.path)
        except CpuConfigError as error:
            raise ClaimError(f"{where}: {error}") from None
        if config.cpuset is not None and entry.source is ConfigSource.CLASS:
            raise ClaimError(
                f"{where}: the DeviceClass sets cpuset: {_short(config.cpuset)}, the same CPUs for all its claims: "
                "only a claim can name CPUs"
            )
        if config.cpuset is not None:
            cpusets.append(config.cpuset)
        found.append(config)
    if len(cpusets) > 1:
        raise ClaimError(
            f"{where}: the claim sets {len(cpusets)} cpusets ({'; '.join(map(_short, cpusets[:2]))}), 1 at most"
        )
    merged = merge(found)
    if cpusets and merged != CpuConfig(cpuset=merged.cpuset):
        raise ClaimError(f"{where}: class and claim set {merged}: a cpuset leaves nothing to choose")
    return merged


def _individual(
    result: Result,
    device: Device,
    asked: CpuConfig,
    others: Mapping[str, ClaimRecord],
    online: CPUSet,
    taken: CPUSet,
) -> CPUSet:
    if keys := ", ".join(asked.as_json()):
        raise ClaimError(
            f"device {device.name}, request {result.request}: {keys} can't be had in {device.setting}, "
            "where the scheduler chooses the CPUs"
        )
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


def _named(
    node: Node,
    device: Device,
    cpuset: CPUSet,
    count: int,
    chosen: Iterable[DeviceAllocation],
    others: Mapping[str, ClaimRecord],
    online: CPUSet,
) -> CPUSet:
    """The CPUs that the claim names, taken as they are after all checks of fault A13."""
    what = f"device {device.name}: the claim's cpuset {_short(cpuset)}"
    if device.group_by is not GroupBy.MACHINE:
        raise ClaimError(f"{what} takes groupBy machine, and this node has {setting(node.mode, node.group_by)}")
    if len(cpuset) != count:
        raise ClaimError(f"{what} has {said(len(cpuset))}, {count} are allocated")
    for wrong, why in (
        (cpuset - node.topology.present - online, "do not exist"),
        (cpuset - online, "are off line"),
        (cpuset & node.reserved, "are reserved"),
        (cpuset - device.cpus, "have come on line this moment, the kubelet tries again"),
    ):
        if wrong:
            raise ClaimError(f"{what}: CPUs {_short(wrong)} {why}")
    for allocation in chosen:
        if both := cpuset & allocation.cpus:
            raise ClaimError(f"{what}: CPUs {_short(both)} are for request {allocation.request} of this claim already")
    for other in others.values():
        if both := cpuset & other.cpus:
            raise ClaimError(
                f"{what}: CPUs {_short(both)} are prepared for claim {other.namespace}/{other.name} ({other.uid}), "
                "which must be unprepared first"
            )
    return cpuset


def _short(cpus: CPUSet) -> str:
    """A list of CPUs that leaves room for the rest of a message: a claim may name 10 KiB of them."""
    text = str(cpus)
    return text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}…"


def _allocated(
    node: Node, device: Device, asked: CpuConfig, count: int, free: CPUSet, others: Mapping[str, ClaimRecord]
) -> tuple[CPUSet, Mapping[str, object]]:
    """CPUs out of `free`, and how they were chosen: as the claim says, else its class, else the configuration."""
    config = merge((node.default, asked))
    if device.group_by is GroupBy.MACHINE and config.strategy is None:
        raise ClaimError(
            f"device {device.name}: nothing says which CPUs to take. With groupBy machine a claim names them "
            "(cpuConfig.cpuset in its opaque parameters), or claim, class or configuration set a strategy"
        )
    try:
        options = config.options()
    except OptionsError as error:
        raise ClaimError(
            f"device {device.name}: {error} (the node's configuration sets {node.default}, class and claim {asked})"
        ) from None
    try:
        return allocate(node.topology, free, count, options), _applied(options)
    except AllocationError as error:
        raise ClaimError(f"device {device.name} ({said(len(device.cpus))}): {error}{_held(device, others)}") from None


def _held(device: Device, others: Mapping[str, ClaimRecord]) -> str:
    """Who has CPUs of the device: one of them may be a pod that was deleted by force and still runs (fault K2)."""
    holders = [record for record in others.values() if not record.cpus.isdisjoint(device.cpus)]
    if not holders:
        return ""
    cpus = CPUSet.union(record.cpus for record in holders) & device.cpus
    names = _listed(f"{record.namespace}/{record.name}" for record in holders)
    return f"; of it {said(len(cpus))} prepared for {'claims' if len(holders) > 1 else 'claim'} {names}"


def _applied(options: AllocationOptions) -> Mapping[str, object]:
    """The strategy, and what is not by default."""
    return CpuConfig(
        options.strategy,
        options.numa_nodes,
        options.full_physical_cores or None,
        None if options.align_l3 else False,
    ).as_json()

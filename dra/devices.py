"""Devices: the machine as the scheduler sees it, with names that keep their CPUs (fault R8). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology.model import Topology

DRIVER = "dra.cpu"
CAPACITY = "dra.cpu/cpu"
NUM_CPUS = "dra.cpu/numCPUs"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"

# Values of all attributes of one device, a list counting each of its own (the API's ResourceSlice validation).
MAX_VALUES = 48
# Bytes of one of them that is a string, or an item of a list of strings.
MAX_STRING = 64

# Patterns of names (apimachinery, util/validation): the length of a subdomain is limited as a whole, not its parts.
LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_PART = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{_PART}(?:\.{_PART})*"

# A tuple is a list attribute.
AttributeValue = bool | int | str | tuple[str, ...]


class DeviceMode(StrEnum):
    """The configuration's cpuDeviceMode."""

    INDIVIDUAL = "individual"
    GROUPED = "grouped"


class GroupBy(StrEnum):
    """The configuration's groupBy: which CPUs are one device in grouped mode."""

    NUMANODE = "numanode"
    SOCKET = "socket"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `cpus`: what may be taken of it; `capacity`: the number of CPUs, absent in individual mode.

    `group_by`: what it is a group of, None for a single CPU. `left_out`: PCIe roots for which a device has no room.
    """

    name: str
    cpus: CPUSet
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, int]
    allow_multiple_allocations: bool
    group_by: GroupBy | None = None
    left_out: tuple[str, ...] = ()

    @property
    def setting(self) -> str:
        """The configuration that has such devices, in its own words."""
        return setting(DeviceMode.GROUPED if self.group_by else DeviceMode.INDIVIDUAL, self.group_by)


def devices_of(
    topology: Topology,
    allocatable: CPUSet,
    mode: DeviceMode,
    group_by: GroupBy = GroupBy.NUMANODE,
    pcie_roots: bool = False,
) -> tuple[Device, ...]:
    """The devices of a node that is configured so; an empty group is none. `group_by` counts in grouped mode only.

    `allocatable`: CPUs that claims may have; `pcie_roots`: with the list attribute of the PCIe roots near a device's
    CPUs, which takes the feature gate DRAListTypeAttributes. Near a group is what is near any of its CPUs on line:
    what is reserved must not change where a device is.
    """
    if mode is DeviceMode.INDIVIDUAL:
        devices = individual_devices(topology, allocatable)
        places = {device.name: device.cpus for device in devices}
    else:
        devices = grouped_devices(topology, allocatable, group_by)
        places = {name: cpus for name, cpus, _ in _groups(topology, group_by)}
    if not pcie_roots:
        return devices
    return tuple(_with_pcie_roots(topology, device, places[device.name]) for device in devices)


def every_device(topology: Topology, allocatable: CPUSet) -> Mapping[str, Device]:
    """The devices of all modes and groupings by name: tells those of another configuration from nonsense."""
    return by_name(
        (
            *individual_devices(topology, allocatable),
            *(device for group_by in GroupBy for device in grouped_devices(topology, allocatable, group_by)),
        )
    )


def offline_devices(topology: Topology) -> Mapping[str, CPUSet]:
    """The CPUs of devices that there are not since all of them are off line, as far as the kernel tells where they are:
    it knows the NUMA node of a CPU that is off line, and no socket."""
    gone = topology.present - topology.online
    found = {f"cpudev{cpu:03}": CPUSet([cpu]) for cpu in gone}
    for cpu, node in topology.offline_nodes.items():
        if node not in topology.nodes:
            name = f"cpudevnuma{node:03}"
            found[name] = found.get(name, EMPTY) | CPUSet([cpu])
    return found


def individual_devices(topology: Topology, allocatable: CPUSet) -> tuple[Device, ...]:
    """One device for each allocatable CPU, core by core: a scheduler that takes them in order takes whole cores.

    The number in a name is the CPU's id, no position: whatever is reserved or off line, a name is the same CPU.
    """
    smt = topology.smt_enabled
    return tuple(
        Device(
            name=f"cpudev{cpu:03}",
            cpus=CPUSet([cpu]),
            attributes=_cpu_attributes(topology, cpu, smt),
            capacity={},
            allow_multiple_allocations=False,
        )
        for core in topology.cores
        for cpu in core & allocatable
    )


def grouped_devices(
    topology: Topology, allocatable: CPUSet, group_by: GroupBy = GroupBy.NUMANODE
) -> tuple[Device, ...]:
    """One device for each NUMA node or socket that has allocatable CPUs, or one for them all; many claims to a device.

    The number in a name is the kernel's own for the node or socket, so that it stays when others come and go.
    """
    smt = topology.smt_enabled
    return tuple(
        Device(
            name=name,
            cpus=cpus & allocatable,
            attributes={
                NUM_CPUS: len(cpus & allocatable),
                f"{DRIVER}/smtEnabled": smt,
                **attributes,
            },
            capacity={CAPACITY: len(cpus & allocatable)},
            allow_multiple_allocations=True,
            group_by=group_by,
        )
        for name, cpus, attributes in _groups(topology, group_by)
        if cpus & allocatable
    )


def attribute_to_json(value: AttributeValue) -> dict[str, object]:
    """The value as the API has it, in slices and in metadata of devices (DeviceAttribute)."""
    match value:
        case bool():  # an int too, so first
            return {"bool": value}
        case int():
            return {"int": value}
        case str():
            return {"string": value}
        case _:
            return {"strings": list(value)}


def by_name(devices: Iterable[Device]) -> Mapping[str, Device]:
    return {device.name: device for device in devices}


def setting(mode: DeviceMode, group_by: GroupBy | None) -> str:
    """A configuration of devices in its own words; the grouping counts only where there is one."""
    return f"cpuDeviceMode {mode}" + (f", groupBy {group_by}" if mode is DeviceMode.GROUPED else "")


def _groups(topology: Topology, group_by: GroupBy) -> Iterator[tuple[str, CPUSet, dict[str, AttributeValue]]]:
    """Name, all CPUs and place of each group."""
    match group_by:
        case GroupBy.NUMANODE:
            for node, cpus in topology.nodes.items():
                yield f"cpudevnuma{node:03}", cpus, _of_node(topology, node)
        case GroupBy.SOCKET:
            for socket, cpus in topology.sockets.items():
                yield f"cpudevsocket{socket:03}", cpus, {f"{DRIVER}/socketID": socket}
        case GroupBy.MACHINE:
            yield "cpudevmachine", topology.online, {}


def _cpu_attributes(topology: Topology, cpu_id: int, smt: bool) -> dict[str, AttributeValue]:
    cpu = topology.cpus[cpu_id]
    attributes: dict[str, AttributeValue] = {
        f"{DRIVER}/cpuID": cpu.id,
        f"{DRIVER}/coreID": cpu.core,
        f"{DRIVER}/coreType": str(cpu.core_type),
        f"{DRIVER}/socketID": cpu.socket,
        f"{DRIVER}/smtEnabled": smt,
        **_numa_attributes(cpu.numa_node),
    }
    if cpu.l3 is not None:  # no number is better than one that equals another machine's (fault R14)
        attributes[f"{DRIVER}/cacheL3ID"] = cpu.l3
    return attributes


def _of_node(topology: Topology, node: int) -> dict[str, AttributeValue]:
    attributes = _numa_attributes(node)
    # Of all its CPUs: what is reserved must not change where a node is.
    sockets = {topology.cpus[cpu].socket for cpu in topology.nodes[node]}
    if len(sockets) == 1:  # a machine without NUMA has all its sockets on node 0
        attributes[f"{DRIVER}/socketID"] = sockets.pop()
    return attributes


def _numa_attributes(node: int) -> dict[str, AttributeValue]:
    """One number under three names: the standard one, our own, and the one that network drivers use (fault A29)."""
    return {"resource.kubernetes.io/numaNode": node, f"{DRIVER}/numaNodeID": node, "dra.net/numaNode": node}


def _with_pcie_roots(topology: Topology, device: Device, place: CPUSet) -> Device:
    """The device with the roots that are near any CPU of `place`, the first by name where there are too many."""
    near = tuple(root for root, cpus in topology.pcie_roots.items() if not cpus.isdisjoint(place))
    if not near:
        return device  # an empty list is no value
    room = MAX_VALUES - len(device.attributes)
    return replace(device, attributes={**device.attributes, PCIE_ROOT: near[:room]}, left_out=near[room:])

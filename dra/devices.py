"""Devices: the machine as the scheduler sees it, with names that keep their CPUs (fault R8). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology.model import Topology

DRIVER = "dra.cpu"
CAPACITY = "dra.cpu/cpu"

AttributeValue = bool | int | str


class DeviceMode(StrEnum):
    """The configuration's cpuDeviceMode."""

    INDIVIDUAL = "individual"
    GROUPED = "grouped"


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `cpus`: what may be taken of it; `capacity`: the number of CPUs, absent in individual mode."""

    name: str
    cpus: CPUSet
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, int]
    allow_multiple_allocations: bool


def individual_devices(topology: Topology, allocatable: CPUSet) -> tuple[Device, ...]:
    """One device for each allocatable CPU, core by core: a scheduler that takes them in order takes whole cores.

    The number in a name is the CPU's id, no position: whatever is reserved or off line, a name is the same CPU.
    """
    return tuple(
        Device(
            name=f"cpudev{cpu:03}",
            cpus=CPUSet([cpu]),
            attributes=_cpu_attributes(topology, cpu),
            capacity={},
            allow_multiple_allocations=False,
        )
        for core in topology.cores
        for cpu in core & allocatable
    )


def grouped_devices(topology: Topology, allocatable: CPUSet) -> tuple[Device, ...]:
    """One device for each NUMA node that has allocatable CPUs (groupBy numanode), many claims to a device."""
    return tuple(
        Device(
            name=f"cpudevnuma{node:03}",
            cpus=cpus & allocatable,
            attributes=_node_attributes(topology, node, cpus & allocatable),
            capacity={CAPACITY: len(cpus & allocatable)},
            allow_multiple_allocations=True,
        )
        for node, cpus in topology.nodes.items()
        if cpus & allocatable
    )


def devices_of(mode: DeviceMode, topology: Topology, allocatable: CPUSet) -> tuple[Device, ...]:
    """The devices of the mode that the node is configured for."""
    return (individual_devices if mode is DeviceMode.INDIVIDUAL else grouped_devices)(topology, allocatable)


def by_name(devices: Iterable[Device]) -> Mapping[str, Device]:
    return {device.name: device for device in devices}


def _cpu_attributes(topology: Topology, cpu_id: int) -> dict[str, AttributeValue]:
    cpu = topology.cpus[cpu_id]
    attributes: dict[str, AttributeValue] = {
        f"{DRIVER}/cpuID": cpu.id,
        f"{DRIVER}/coreID": cpu.core,
        f"{DRIVER}/coreType": str(cpu.core_type),
        f"{DRIVER}/socketID": cpu.socket,
        f"{DRIVER}/smtEnabled": topology.smt_enabled,
        **_numa_attributes(cpu.numa_node),
    }
    if cpu.l3 is not None:  # no number is better than one that equals another machine's (fault R14)
        attributes[f"{DRIVER}/cacheL3ID"] = cpu.l3
    return attributes


def _node_attributes(topology: Topology, node: int, cpus: CPUSet) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        f"{DRIVER}/numCPUs": len(cpus),
        f"{DRIVER}/smtEnabled": topology.smt_enabled,
        **_numa_attributes(node),
    }
    sockets = {topology.cpus[cpu].socket for cpu in cpus}
    if len(sockets) == 1:  # a machine without NUMA has all its sockets on node 0
        attributes[f"{DRIVER}/socketID"] = sockets.pop()
    return attributes


def _numa_attributes(node: int) -> dict[str, AttributeValue]:
    """One number under three names: the standard one, our own, and the one that network drivers use (fault A29)."""
    return {"resource.kubernetes.io/numaNode": node, f"{DRIVER}/numaNodeID": node, "dra.net/numaNode": node}

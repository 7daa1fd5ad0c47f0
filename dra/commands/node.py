"""Which devices this node has and what they tell, from defaults, file and flags, in this order."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass

from dra.commands.settings import MachineSettings, default_of
from dra.devices import DeviceMode, GroupBy
from dra.prepare.choice import Node
from nri_cpu.command import UsageError
from nri_cpu.config import Config, is_node_name
from nri_cpu.cpuset import quote
from nri_cpu.topology import Topology


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What a device of this node is and tells, and the name of its pool.

    `warnings`: arguments that have no effect beside the others, for whoever has written them.
    """

    node_name: str
    mode: DeviceMode
    group_by: GroupBy
    pcie_roots: bool
    node_allocatable_mapping: bool
    warnings: tuple[str, ...] = ()


def device_settings(
    options: argparse.Namespace, config: Config, unnamed: Callable[[str], object] | None = None
) -> DeviceSettings:
    """Raises UsageError.

    `unnamed`: is told when the host's name can be no node's, which then stands as it is; without it that is an error.
    """
    if options.hostname_override and not is_node_name(options.hostname_override):
        name = quote(options.hostname_override)
        raise UsageError(f"--hostname-override: {name} is no name of a node (lower-case letters, digits, - and .)")
    mode = DeviceMode(options.cpu_device_mode or config.cpu_device_mode or DeviceMode.GROUPED)
    roots: bool | None = options.expose_pcie_roots
    return DeviceSettings(
        node_name=options.hostname_override or config.hostname_override or _host_name(unnamed),
        mode=mode,
        group_by=GroupBy(options.group_by or config.group_by or GroupBy.NUMANODE),
        pcie_roots=bool(config.expose_pcie_roots if roots is None else roots),
        node_allocatable_mapping=bool(config.publish_node_allocatable_resource_mapping),
        warnings=(f"--group-by {options.group_by} has no effect: in individual mode a device is one CPU",)
        if options.group_by and mode is DeviceMode.INDIVIDUAL
        else (),
    )


def _host_name(unnamed: Callable[[str], object] | None) -> str:
    """The host's name as the kubelet makes a node's of it. Raises UsageError."""
    host = os.uname().nodename
    name = host.strip().lower()
    if is_node_name(name):
        return name
    problem = (
        f"the host is called {quote(host)}, which is no name of a node (lower-case letters, digits, - and .): "
        "name the node with --hostname-override, or hostnameOverride in the configuration"
    )
    if unnamed is None:
        raise UsageError(problem)
    unnamed(problem)
    return host.encode(errors="backslashreplace").decode()  # the kernel takes bytes that are no text too


def node_of(machine: MachineSettings, devices: DeviceSettings, topology: Topology) -> Node:
    """The node as it is configured. Raises UsageError for a configuration that contradicts itself."""
    return Node.of(
        devices.node_name,
        devices.mode,
        topology,
        machine.reserved,
        machine.config.min_shared_cpus,
        group_by=devices.group_by,
        default=default_of(machine.config),
        pcie_roots=devices.pcie_roots,
    )

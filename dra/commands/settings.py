"""The machine and how it is configured, from defaults, file and flags, in this order: what all commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dra.commands.errors import CommandError
from dra.devices import DeviceMode
from nri_cpu.command import UsageError, configuration, reserved_cpus
from nri_cpu.config import Config, is_node_name
from nri_cpu.cpuset import CPUSet, quote
from nri_cpu.topology import Topology, TopologyError, read_topology


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the machine is read, and what is kept out of devices. `host`: HOST_ROOT; `config`: the file."""

    host: Path
    reserved: CPUSet
    config: Config


@dataclass(frozen=True, slots=True)
class Devices:
    """What a device of this node is, and the name of its pool."""

    node_name: str
    mode: DeviceMode


def machine_of(options: argparse.Namespace, env: Mapping[str, str]) -> Machine:
    """Raises UsageError."""
    config = configuration(options.config)
    if config.sysfs_overlay:
        raise UsageError("sysfsOverlay is not supported by this version: remove it from the configuration")
    return Machine(
        host=Path(env.get("HOST_ROOT") or "/"),
        reserved=reserved_cpus(options.reserved_cpus, config),
        config=config,
    )


def devices_of(options: argparse.Namespace, config: Config) -> Devices:
    """Raises UsageError."""
    if options.hostname_override and not is_node_name(options.hostname_override):
        name = quote(options.hostname_override)
        raise UsageError(f"--hostname-override: {name} is no name of a node (lower-case letters, digits, - and .)")
    return Devices(
        node_name=options.hostname_override or config.hostname_override or os.uname().nodename.strip().lower(),
        mode=DeviceMode(options.cpu_device_mode or config.cpu_device_mode or DeviceMode.GROUPED),
    )


def topology_of(machine: Machine) -> Topology:
    """The machine as it is now. Raises CommandError when there is none, UsageError for reserved CPUs it lacks."""
    try:
        topology = read_topology(machine.host)
    except TopologyError as error:
        raise CommandError(str(error)) from error
    if missing := machine.reserved - topology.present:
        raise UsageError(f"reserved CPUs {missing} do not exist: this machine has {topology.present}")
    return topology

"""The machine and how it is configured, from defaults, file and flags, in this order: what all commands share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dra.allocation import OptionsError
from dra.commands.errors import CommandError
from dra.cpu_config import CpuConfig, node_default
from nri_cpu.command import UsageError, configuration, host_root, reserved_cpus
from nri_cpu.commands.machine import read_for_people
from nri_cpu.commands.overlay import overlay_of
from nri_cpu.config import Config
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Overlay, Topology, TopologyError


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Where the machine is read, and what is kept out of devices. `host`: HOST_ROOT; `config`: the file."""

    host: Path
    overlay: Overlay | None
    reserved: CPUSet
    config: Config


def machine_settings(options: argparse.Namespace, env: Mapping[str, str]) -> MachineSettings:
    """Raises UsageError."""
    config = configuration(options.config)
    return MachineSettings(
        host=host_root(env),
        overlay=overlay_of(options.sysfs_overlay, config),
        reserved=reserved_cpus(options.reserved_cpus, config),
        config=config,
    )


def topology_for_people(settings: MachineSettings, *, verbose: bool) -> Topology:
    """The machine as it is now; a line on stderr says when something is odd about it that -v would tell. Raises
    CommandError when there is none, UsageError for reserved CPUs it lacks."""
    try:
        topology = read_for_people("dra-cpu", settings.host, settings.overlay, verbose=verbose)
    except TopologyError as error:
        raise CommandError(str(error)) from error
    refuse_missing(settings.reserved, topology)
    return topology


def default_of(config: Config) -> CpuConfig:
    """How CPUs are chosen on this node where nobody says. Raises UsageError."""
    try:
        return node_default(config)
    except OptionsError as error:
        raise UsageError(f"the configuration: {error}") from None


def refuse_missing(reserved: CPUSet, topology: Topology) -> None:
    """Raises UsageError for reserved CPUs that the machine doesn't have (fault R16)."""
    if missing := reserved - topology.present:
        raise UsageError(f"reserved CPUs {missing} do not exist: this machine has {topology.present}")

"""dra-cpu gatherinfo: a report of this machine for somebody else to look at, as whoever calls it may read it.

What can't be read is said in the report and on stderr, and does not stand in the way of the rest.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dra.commands.errors import CommandError
from dra.commands.node import DeviceSettings, device_settings
from dra.commands.settings import refuse_missing
from dra.report import report_of
from nri_cpu import plain_yaml
from nri_cpu.checkpoint.errors import CheckpointError, CheckpointMissing
from nri_cpu.checkpoint.files import read_checkpoint
from nri_cpu.checkpoint.model import ClaimRecord, Owner
from nri_cpu.command import (
    CDI_DIRECTORY,
    CHECKPOINT,
    UsageError,
    configuration,
    emit,
    host_root,
    reserved_cpus,
    tell,
)
from nri_cpu.commands.holders import owners_beside, why
from nri_cpu.commands.overlay import overlay_of
from nri_cpu.config import Config
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Overlay, Topology, TopologyError, read_topology

# Names that are tried when there is such a file already.
_NAMES = 100


def main(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Writes or prints the report; 0. Raises UsageError, CommandError or OutputError."""
    gathering = _Gathering(options, host_root(env))
    try:
        text = plain_yaml.dump(gathering.report())
    finally:  # where there is no report they may say why
        for note in gathering.notes:
            tell("dra-cpu", note)
    if options.stdout:
        emit(text)
    else:
        emit(f"{_write(options.output_dir or Path(tempfile.gettempdir()), text)}\n")
    return 0


@dataclass(slots=True)
class _Gathering:
    """One look at the machine. `notes`: what could not be had, and why."""

    options: argparse.Namespace
    host: Path
    notes: list[str] = field(default_factory=list)

    def report(self) -> dict[str, object]:
        config = self._config()
        topology = self._topology(config)
        devices = device_settings(self.options, config, self._note_config)
        reserved = reserved_cpus(self.options.reserved_cpus, config)
        try:
            refuse_missing(reserved, topology)
        except UsageError as error:
            self._note_config(error)
        checkpoint = self.options.checkpoint or config.checkpoint or CHECKPOINT
        claims = self._claims(checkpoint, reserved)
        owners = self._owners(checkpoint)
        said = _config_said(config, devices, reserved, checkpoint)
        return report_of(topology, said, claims.values(), owners, self.notes)

    def _config(self) -> Config:
        """A file that was named must be right; the default one may be what the report is for."""
        if self.options.config:
            return configuration(self.options.config)
        try:
            return configuration(None)
        except UsageError as error:
            self._note_config(f"{error}; these are the defaults")
            return Config()

    def _topology(self, config: Config) -> Topology:
        overlay = self._overlay(config)
        try:
            return read_topology(self.host, overlay, self._note_odd)
        except TopologyError as error:
            raise CommandError(str(error)) from error

    def _note_config(self, problem: object) -> None:
        self.notes.append(f"driverConfig: {problem}")

    def _note_odd(self, oddities: Sequence[str]) -> None:
        self.notes += [f"cpuDetails: {oddity}" for oddity in oddities]

    def _overlay(self, config: Config) -> Overlay | None:
        try:
            return overlay_of(self.options.sysfs_overlay, config)
        except UsageError as error:
            if self.options.sysfs_overlay:
                raise
            self.notes.append(f"cpuDetails: {error}; this is the machine without it")
            return None

    def _claims(self, path: Path, reserved: CPUSet) -> Mapping[str, ClaimRecord]:
        try:
            checkpoint, _ = read_checkpoint(path)
        except CheckpointError as error:
            # Where none is named there need not be one.
            if self.options.checkpoint or not isinstance(error, CheckpointMissing):
                self.notes.append(f"claims: {why(error)}")
            return {}
        if checkpoint.reserved != reserved:
            there = checkpoint.reserved or "none"
            self._note_config(f"reserved CPUs are {there} in {path}, {reserved or 'none'} here")
        return checkpoint.claims

    def _owners(self, checkpoint: Path) -> Mapping[str, Owner]:
        try:
            return owners_beside(checkpoint, self.host)
        except CheckpointError as error:
            self.notes.append(f"containers: {why(error)}")
            return {}


def _config_said(config: Config, devices: DeviceSettings, reserved: CPUSet, checkpoint: Path) -> dict[str, object]:
    """The configuration as it counts, in the words of its file; what has no default and is not set is left out."""
    said: dict[str, object | None] = {
        "cpuDeviceMode": str(devices.mode),
        "groupBy": str(devices.group_by),
        "reservedCPUs": str(reserved),
        "hostnameOverride": devices.node_name,
        "kubeconfig": config.kubeconfig,
        "sysfsOverlay": config.sysfs_overlay,
        "exposePCIeRoots": devices.pcie_roots,
        "publishNodeAllocatableResourceMapping": devices.node_allocatable_mapping,
        "strategy": config.strategy,
        "numaNodes": config.numa_nodes,
        "fullPhysicalCores": config.full_physical_cores,
        "alignL3": config.align_l3,
        "minSharedCPUs": config.min_shared_cpus,
        "checkpoint": checkpoint,
        "cdiDir": config.cdi_dir or CDI_DIRECTORY,
        "requirePlugin": config.require_plugin is not False,
        "kubeletCPUManagerConflict": config.kubelet_cpu_manager_conflict or "refuse",
    }
    return {key: str(value) if isinstance(value, Path) else value for key, value in said.items() if value is not None}


def _write(directory: Path, text: str) -> Path:
    """Write a file of a new name, for its owner only; its path. Raises CommandError."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"dra-cpu-gatherinfo-{stamp}-{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(1, _NAMES):
            path = directory / f"{name}{f'-{number}' if number > 1 else ''}.yaml"
            try:
                opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue
            _fill(opened, path, text)
            return path
    except OSError as error:
        raise CommandError(
            f"the report can't be written to {directory}: {error.strerror}; name another with --output-dir, "
            "or print it with --stdout"
        ) from error
    raise CommandError(f"{directory} has {_NAMES - 1} files named {name}: remove them, or name another --output-dir")


def _fill(opened: int, path: Path, text: str) -> None:
    try:
        with os.fdopen(opened, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        path.unlink()
        raise

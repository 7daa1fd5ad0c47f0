"""dra-cpu run: serves the kubelet until SIGTERM."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dra.commands.ending import Ending, leave
from dra.commands.library_log import follow_libraries
from dra.commands.node import DeviceSettings, device_settings
from dra.commands.settings import MachineSettings, machine_settings
from nri_cpu.command import CDI_DIRECTORY, CHECKPOINT, UsageError, log_to


@dataclass(frozen=True, slots=True)
class Settings:
    """What `dra-cpu run` needs to know, from defaults, file and flags, in this order.

    `refuse_cpu_manager`: whether the kubelet's static CPU manager ends the start. `pod_uid`: of the pod that we are in,
    for names of sockets, when another instance may serve meanwhile.
    """

    machine: MachineSettings
    devices: DeviceSettings
    require_plugin: bool
    refuse_cpu_manager: bool
    checkpoint: Path
    cdi_directory: Path
    kubelet_root: Path
    pod_uid: str | None
    claims_dir: Path | None
    kubeconfig: Path | None


def main(options: argparse.Namespace, env: Mapping[str, str]) -> NoReturn:
    """Serves until a signal, and ends the process. Raises UsageError, CommandError, ClaimError or CheckpointError."""
    with Ending() as ending:
        log_to(options.log_format, level="DEBUG" if options.verbosity else "INFO")
        follow_libraries()
        settings = settings_of(options, env)
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what its core would print, our errors say
        from dra.commands.serve import serve  # with gRPC, which reads that when it is imported

        serve(settings, ending)
        if ending.failure:
            print(f"dra-cpu: {ending.failure}", file=sys.stderr)
        leave(1 if ending.failure else 0)


def settings_of(options: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """Raises UsageError."""
    machine = machine_settings(options, env)
    config = machine.config
    if options.claims_dir and options.kubeconfig:
        raise UsageError("--claims-dir and --kubeconfig exclude each other: claims come from one place")
    root: Path = options.kubelet_root_dir
    if not root.is_absolute():
        raise UsageError(f"--kubelet-root-dir {root} is no absolute path: the kubelet is told where the socket is")
    return Settings(
        machine=machine,
        devices=device_settings(options, config),
        require_plugin=config.require_plugin is not False,
        refuse_cpu_manager=config.kubelet_cpu_manager_conflict != "warn",
        checkpoint=options.checkpoint or config.checkpoint or CHECKPOINT,
        cdi_directory=options.cdi_dir or config.cdi_dir or CDI_DIRECTORY,
        kubelet_root=root,
        pod_uid=options.pod_uid,
        claims_dir=options.claims_dir,
        kubeconfig=options.kubeconfig or config.kubeconfig,
    )

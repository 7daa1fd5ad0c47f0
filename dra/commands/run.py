"""dra-cpu run: serves the kubelet until SIGTERM."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from dra.cdi import CdiDirectory
from dra.claims import ClaimError, ClaimSource
from dra.commands.errors import CommandError
from dra.commands.node import DeviceSettings, device_settings, node_of
from dra.commands.settings import MachineSettings, machine_settings, topology_of
from dra.metadata_files import MetadataDirectory
from dra.prepare.choice import Node
from dra.prepare.ledger import Ledger
from dra.prepare.preparer import Preparer
from dra.prepare.start import recover
from nri_cpu import __version__
from nri_cpu.checkpoint.boot import boot_id
from nri_cpu.checkpoint.locks import SYNCHRONIZED
from nri_cpu.command import CDI_DIRECTORY, CHECKPOINT, UsageError, log_to
from nri_cpu.topology import Topology, read_online

# Under the kubelet's root.
DRA_SOCKET = Path("plugins/dra.cpu/dra.sock")

_SIGNALS = {signal.SIGTERM, signal.SIGINT}


@dataclass(frozen=True, slots=True)
class Settings:
    """What `dra-cpu run` needs to know, from defaults, file and flags, in this order."""

    machine: MachineSettings
    devices: DeviceSettings
    require_plugin: bool
    checkpoint: Path
    cdi_directory: Path
    socket: Path
    claims_dir: Path | None
    kubeconfig: Path | None


def main(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Serves until a signal; 0. Raises UsageError, CommandError or CheckpointError."""
    # Before there is any other thread: one that takes the signal would leave this one asleep.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    log_to(options.log_format, level="DEBUG" if options.verbosity else "INFO")
    run(settings_of(options, env), _wait_for_signal)
    return 0


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
        checkpoint=options.checkpoint or config.checkpoint or CHECKPOINT,
        cdi_directory=options.cdi_dir or config.cdi_dir or CDI_DIRECTORY,
        socket=root / DRA_SOCKET,
        claims_dir=options.claims_dir,
        kubeconfig=options.kubeconfig or config.kubeconfig,
    )


def run(settings: Settings, wait: Callable[[], None]) -> None:
    """Serve while `wait` lasts; then the socket goes and all claims stay (fault A25)."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what its core would print, our errors say
    from dra.kubelet.server import ServerError, UnixServer, check_length, refuse_served
    from dra.kubelet.service import DRAService

    try:
        check_length(settings.socket)
    except ServerError as error:
        raise UsageError(str(error)) from None
    node = _node(settings)
    source = _source(settings)
    try:
        refuse_served(settings.socket)  # before anything is written: it is the other one's state
    except ServerError as error:
        raise CommandError(str(error)) from error
    host, overlay = settings.machine.host, settings.machine.overlay
    cdi = CdiDirectory(settings.cdi_directory)
    boot = boot_id(host)
    metadata = MetadataDirectory(
        settings.socket.with_name("dra-device-metadata"), settings.cdi_directory, node.attributes
    )
    state = recover(settings.checkpoint, cdi, metadata, node, boot)
    ledger = Ledger(settings.checkpoint, cdi, metadata, state, boot, changed=lambda: None)
    preparer = Preparer(
        lambda: node,
        source,
        ledger,
        synchronized=settings.checkpoint.with_name(SYNCHRONIZED) if settings.require_plugin else None,
        online=lambda: read_online(host, overlay),
    )
    server = UnixServer(settings.socket, DRAService(preparer).handlers())
    try:
        server.start()
    except ServerError as error:
        raise CommandError(str(error)) from error
    logger.info(
        "serving the kubelet on {}, claims come from {}", settings.socket, settings.claims_dir or "the API server"
    )
    wait()
    logger.info("stopping when the calls under way have ended; a second signal ends it at once")
    server.stop()
    ledger.close()
    logger.info("stopped; prepared claims keep their CPUs")


def _node(settings: Settings) -> Node:
    topology = topology_of(settings.machine)
    node = node_of(settings.machine, settings.devices, topology)
    _describe(node, topology)
    for warning in (*settings.devices.warnings, *node.warnings()):
        logger.warning("{}", warning)
    return node


def _describe(node: Node, topology: Topology) -> None:
    logger.info(
        "node {}: CPUs {} in {} cores, {} L3 groups, {} NUMA nodes, {} sockets; reserved {}; {} {} devices",
        *(node.pool, topology.online, len(topology.cores), len(topology.l3_groups), len(topology.nodes)),
        *(len(topology.sockets), node.reserved or "none", len(node.devices), node.mode),
    )


def _source(settings: Settings) -> ClaimSource:
    if settings.claims_dir:
        from dra.claims_dir import ClaimsDir

        try:
            source = ClaimsDir(settings.claims_dir)
        except ClaimError as error:
            raise UsageError(str(error)) from None
        for problem in source.read()[1]:
            logger.warning("in {}: {}", settings.claims_dir, problem)
        return source
    try:
        from dra.kube import ApiServer, CredentialsError
    except ModuleNotFoundError as error:  # of its own or of the client's needs
        raise UsageError(
            f"claims come from the API server, but Python's package {error.name} is not there: install the "
            "Kubernetes client (pip install kubernetes), or read claims from files with --claims-dir"
        ) from None
    try:
        return ApiServer(settings.kubeconfig, f"dra-cpu/{__version__}")
    except CredentialsError as error:
        raise UsageError(str(error)) from None


def _wait_for_signal() -> None:
    """Until the first SIGTERM or SIGINT; a second one kills, by the signal's own effect."""
    signal.sigwait(_SIGNALS)
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

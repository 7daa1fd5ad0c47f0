"""The dra-cpu command: arguments, logs, signals, and exit codes (0 done, 1 failed, 2 wrong usage or configuration)."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from dra.cdi import CdiDirectory
from dra.claims import ClaimError, ClaimSource, printable
from dra.devices import DeviceMode
from dra.prepare.choice import Node
from dra.prepare.ledger import Ledger
from dra.prepare.preparer import Preparer
from dra.prepare.start import recover
from nri_cpu import __version__
from nri_cpu.checkpoint.boot import boot_id
from nri_cpu.checkpoint.errors import CheckpointError
from nri_cpu.checkpoint.locks import SYNCHRONIZED
from nri_cpu.command import (
    CDI_DIRECTORY,
    CHECKPOINT,
    Parser,
    UsageError,
    add_common_arguments,
    configuration,
    log_to,
    path_argument,
    reserved_cpus,
)
from nri_cpu.config import is_node_name
from nri_cpu.cpuset import CPUSet, quote
from nri_cpu.topology import Topology, TopologyError, read_online, read_topology

KUBELET_ROOT = Path("/var/lib/kubelet")
# Under the kubelet's root.
DRA_SOCKET = Path("plugins/dra.cpu/dra.sock")

_SIGNALS = {signal.SIGTERM, signal.SIGINT}


class StartError(Exception):
    """The machine is not such that dra-cpu can run; one line as well."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `dra-cpu run` needs to know, from defaults, file and flags, in this order. `host`: HOST_ROOT."""

    node_name: str
    mode: DeviceMode
    reserved: CPUSet
    min_shared: int | None
    require_plugin: bool
    checkpoint: Path
    cdi_directory: Path
    socket: Path
    claims_dir: Path | None
    kubeconfig: Path | None
    host: Path


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    # Before there is any other thread: one that takes the signal would leave this one asleep.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    log_to(options.log_format, level="DEBUG" if options.verbosity else "INFO")
    try:
        run(settings_of(options, os.environ), _wait_for_signal)
    except Exception as error:
        if options.verbosity:
            logger.opt(exception=error).debug("this is where it failed")
        return _failed(error)
    return 0


def _failed(error: Exception) -> int:
    """One line on stderr, and the exit code."""
    known = isinstance(error, UsageError | StartError | CheckpointError | ClaimError)
    text = str(error) if known else f"{type(error).__name__}: {error}; a fault of dra-cpu itself, -v shows where"
    print(f"dra-cpu: {printable(' '.join(text.split()))}", file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="dra-cpu", description="Exclusive CPUs for containers: the DRA companion.")
    parser.add_argument("--version", action="version", version=f"dra-cpu {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="serve the kubelet until SIGTERM")
    add_common_arguments(run)
    add = run.add_argument
    add("--kubeconfig", type=_path_or_none, metavar="FILE", help="credentials (default: the pod's service account)")
    add(
        "--claims-dir",
        type=path_argument,
        metavar="DIR",
        help="read claims from manifests there instead of the API server",
    )
    add("--cpu-device-mode", choices=[str(mode) for mode in DeviceMode], help="what a device is (default: grouped)")
    add("--group-by", choices=["numanode"], help="what a grouped device is (default: numanode)")
    add("--reserved-cpus", metavar="LIST", help="CPUs for no claim and no shared container, such as 0-1,8")
    add("--hostname-override", metavar="NAME", help="the node's name (default: the host's)")
    add(
        "--kubelet-root-dir",
        type=path_argument,
        default=KUBELET_ROOT,
        metavar="DIR",
        help="the kubelet's (%(default)s)",
    )
    add("--cdi-dir", type=path_argument, metavar="DIR", help=f"where CDI specs go (default: {CDI_DIRECTORY})")
    add(
        "-v", "--v", dest="verbosity", type=int, nargs="?", const=1, default=0, metavar="N", help="more than 0: details"
    )
    return parser


def _path_or_none(text: str) -> Path | None:
    """Empty as in the configuration: not set."""
    return path_argument(text) if text else None


def settings_of(options: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """Raises UsageError."""
    config = configuration(options.config)
    if config.sysfs_overlay:
        raise UsageError("sysfsOverlay is not supported by this version: remove it from the configuration")
    if options.claims_dir and options.kubeconfig:
        raise UsageError("--claims-dir and --kubeconfig exclude each other: claims come from one place")
    if options.hostname_override and not is_node_name(options.hostname_override):
        name = quote(options.hostname_override)
        raise UsageError(f"--hostname-override: {name} is no name of a node (lower-case letters, digits, - and .)")
    root: Path = options.kubelet_root_dir
    if not root.is_absolute():
        raise UsageError(f"--kubelet-root-dir {root} is no absolute path: the kubelet is told where the socket is")
    return Settings(
        node_name=options.hostname_override or config.hostname_override or os.uname().nodename.strip().lower(),
        mode=DeviceMode(options.cpu_device_mode or config.cpu_device_mode or DeviceMode.GROUPED),
        reserved=reserved_cpus(options.reserved_cpus, config),
        min_shared=config.min_shared_cpus,
        require_plugin=config.require_plugin is not False,
        checkpoint=options.checkpoint or config.checkpoint or CHECKPOINT,
        cdi_directory=options.cdi_dir or config.cdi_dir or CDI_DIRECTORY,
        socket=root / DRA_SOCKET,
        claims_dir=options.claims_dir,
        kubeconfig=options.kubeconfig or config.kubeconfig,
        host=Path(env.get("HOST_ROOT") or "/"),
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
        raise StartError(str(error)) from error
    cdi = CdiDirectory(settings.cdi_directory)
    boot = boot_id(settings.host)
    ledger = Ledger(settings.checkpoint, cdi, recover(settings.checkpoint, cdi, node, boot), boot)
    preparer = Preparer(
        node,
        source,
        ledger,
        synchronized=settings.checkpoint.with_name(SYNCHRONIZED) if settings.require_plugin else None,
        online=lambda: read_online(settings.host),
    )
    server = UnixServer(settings.socket, [DRAService(preparer).handler()])
    try:
        server.start()
    except ServerError as error:
        raise StartError(str(error)) from error
    logger.info(
        "serving the kubelet on {}, claims come from {}", settings.socket, settings.claims_dir or "the API server"
    )
    wait()
    logger.info("stopping when the calls under way have ended; a second signal ends it at once")
    server.stop()
    ledger.close()
    logger.info("stopped; prepared claims keep their CPUs")


def _node(settings: Settings) -> Node:
    try:
        topology = read_topology(settings.host)
    except TopologyError as error:
        raise StartError(str(error)) from error
    if missing := settings.reserved - topology.present:
        raise UsageError(f"reserved CPUs {missing} do not exist: this machine has {topology.present}")
    node = Node.of(settings.node_name, settings.mode, topology, settings.reserved, settings.min_shared)
    _describe(node, topology)
    return node


def _describe(node: Node, topology: Topology) -> None:
    logger.info(
        "node {}: CPUs {} in {} cores, {} L3 groups, {} NUMA nodes, {} sockets; reserved {}; {} {} devices",
        *(node.pool, topology.online, len(topology.cores), len(topology.l3_groups), len(topology.nodes)),
        *(len(topology.sockets), node.reserved or "none", len(node.devices[node.mode]), node.mode),
    )
    if not node.devices[node.mode]:
        logger.warning("all CPUs are reserved: no claim can be prepared")


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

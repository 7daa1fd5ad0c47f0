"""dra-cpu run, put together: what serves the kubelet, what tells the API server, and what both are told.

    main thread     waits for the end, and looks after the sockets
    dra.sock        Prepare, Unprepare, and the health of devices
    registration    a socket and threads of its own, so that it answers whatever Prepare does (fault K6)
    publisher       ResourceSlices at the API server
    node-watch      CPUs on line, and claims that another instance changes; it also passes on that claims have changed

Start: what is on disk, dra.sock, registration, publisher. Stop: registration, dra.sock, publisher. Other drivers stop
dra.sock first; but while the kubelet still knows us, it would send calls there that nobody answers, and with another
instance beside us it turns to that one when our registration goes. Prepared claims, their files and the slices stay
(fault A25). With claims from files there is no cluster: nobody to register with, and nowhere to publish.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from dra.cdi import CdiDirectory
from dra.claims import ClaimError, ClaimSource
from dra.claims_dir import ClaimsDir
from dra.commands.cpu_manager import check_cpu_manager
from dra.commands.ending import Ending
from dra.commands.errors import CommandError
from dra.commands.node import node_of
from dra.commands.run import Settings
from dra.commands.settings import refuse_missing
from dra.devices import AttributeValue
from dra.health import health_of
from dra.kube import ApiServer, CredentialsError
from dra.kubelet.health_service import HealthBoard
from dra.kubelet.kept import KeptSocket
from dra.kubelet.registration import WORKERS, Registration
from dra.kubelet.server import ServerError, UnixServer, refuse_served
from dra.kubelet.service import DRAService
from dra.kubelet.sockets import Leftovers, Sockets, sockets
from dra.metadata_files import MetadataDirectory
from dra.node_watch import NodeWatch
from dra.offer import offered
from dra.prepare.choice import Node
from dra.prepare.ledger import Ledger
from dra.prepare.preparer import Preparer
from dra.prepare.start import recover
from dra.slices.publisher import Publisher
from nri_cpu import __version__
from nri_cpu.checkpoint.boot import boot_id
from nri_cpu.checkpoint.locks import SYNCHRONIZED
from nri_cpu.command import UsageError
from nri_cpu.topology import TopologyError, read_online, read_topology

# Beside the DRA service's socket.
METADATA = "dra-device-metadata"
# What reads of claims may still take at the end, in seconds: half of what the server gives to calls.
_READS_END = 5.0
# Between two looks at what the main thread looks after, in seconds.
_INTERVAL = 1.0


def serve(settings: Settings, ending: Ending) -> None:
    """Serve until the end comes. Raises UsageError, CommandError, CheckpointError or ClaimError."""
    places = _sockets(settings)
    check_cpu_manager(settings.kubelet_root, refuse=settings.refuse_cpu_manager)
    watch = _watch(settings)
    source: ClaimSource
    publisher = None
    if settings.claims_dir:
        source = _claims_dir(settings.claims_dir)
    else:
        source = server = _api_server(settings)
        publisher = Publisher(server.slices(settings.devices.node_name), settings.devices.node_name)
    ledger = _ledger(settings, places, watch)
    board = HealthBoard(lambda: watch.listed_at)
    teller = _Teller(watch, ledger, board, publisher, settings.devices.node_allocatable_mapping)
    teller.refresh()
    with ExitStack() as ends:
        ends.callback(ledger.close)
        if publisher:
            ends.callback(publisher.stop)
        ends.callback(watch.stop)
        ending.keep()
        watch.start(teller.refresh, ledger.look)
        preparer = _preparer(settings, watch, source, ledger)
        dra = UnixServer(places.dra, [*DRAService(preparer).handlers(), *board.handlers()])
        looks = [_start(dra, ends).look]
        ends.callback(board.close)  # the server waits for its streams
        ends.callback(_end_reads, preparer, source)
        logger.info(
            "serving the kubelet on {}, claims come from {}", places.dra, settings.claims_dir or "the API server"
        )
        if publisher:
            looks += _register(places, publisher, ends)
            publisher.start()
        _wait(ending, looks)
        logger.info("stopping when the calls under way have ended, in 10 s at most; a second signal ends it at once")
    logger.info("stopped; prepared claims keep their CPUs")


@dataclass(frozen=True, slots=True)
class _Teller:
    """Tells the kubelet, through the board, and the scheduler, through the publisher, what is true of node and claims.

    `mapping`: whether devices are to count against the node's allocatable CPUs.
    """

    watch: NodeWatch
    ledger: Ledger
    board: HealthBoard
    publisher: Publisher | None
    mapping: bool

    def refresh(self) -> None:
        """Tell what is true now; called by one thread at a time."""
        seen, records = self.watch.seen, self.ledger.claims
        self.board.set(health_of(seen.node, records, seen.online))
        if self.publisher:
            self.publisher.want(offered(seen.node, records), self.mapping)


def _sockets(settings: Settings) -> Sockets:
    try:
        return sockets(settings.kubelet_root, settings.pod_uid)
    except ServerError as error:
        raise UsageError(str(error)) from None


def _watch(settings: Settings) -> NodeWatch:
    """The node, as it is and as it will be; what people should know of it is logged."""
    machine = settings.machine
    try:
        watch = NodeWatch(
            lambda: read_topology(machine.host, machine.overlay),
            lambda topology: node_of(machine, settings.devices, topology),
            lambda: read_online(machine.host, machine.overlay),
        )
    except TopologyError as error:
        raise CommandError(str(error)) from error
    refuse_missing(machine.reserved, watch.node.topology)
    _describe(watch.node)
    for warning in (*settings.devices.warnings, *watch.node.warnings()):
        logger.warning("{}", warning)
    return watch


def _describe(node: Node) -> None:
    topology = node.topology
    logger.info(
        "node {}: CPUs {} in {} cores, {} L3 groups, {} NUMA nodes, {} sockets; reserved {}; {} {} devices",
        *(node.pool, topology.online, len(topology.cores), len(topology.l3_groups), len(topology.nodes)),
        *(len(topology.sockets), node.reserved or "none", len(node.devices), node.mode),
    )


def _api_server(settings: Settings) -> ApiServer:
    try:
        return ApiServer(settings.kubeconfig, f"dra-cpu/{__version__}")
    except CredentialsError as error:
        raise UsageError(str(error)) from None


def _claims_dir(path: Path) -> ClaimsDir:
    try:
        source = ClaimsDir(path)
    except ClaimError as error:
        raise UsageError(str(error)) from None
    for problem in source.read()[1]:
        logger.warning("in {}: {}", path, problem)
    return source


def _ledger(settings: Settings, places: Sockets, watch: NodeWatch) -> Ledger:
    """The prepared claims, with all that is on disk brought to agree."""
    try:
        refuse_served(places.dra)  # before anything is written: it is the other one's state
    except ServerError as error:
        raise CommandError(str(error)) from error
    cdi = CdiDirectory(settings.cdi_directory)

    def attributes(device: str) -> Mapping[str, AttributeValue]:
        return watch.node.attributes(device)  # of the node as it is then

    metadata = MetadataDirectory(places.dra.with_name(METADATA), settings.cdi_directory, attributes)
    boot = boot_id(settings.machine.host)
    state = recover(settings.checkpoint, cdi, metadata, watch.node, boot)
    return Ledger(settings.checkpoint, cdi, metadata, state, boot, changed=watch.told)


def _preparer(settings: Settings, watch: NodeWatch, source: ClaimSource, ledger: Ledger) -> Preparer:
    machine = settings.machine
    return Preparer(
        lambda: watch.node,
        source,
        ledger,
        synchronized=settings.checkpoint.with_name(SYNCHRONIZED) if settings.require_plugin else None,
        online=lambda: read_online(machine.host, machine.overlay),
    )


def _end_reads(preparer: Preparer, source: ClaimSource) -> None:
    """No more claims are read, and soon none is waited for: so that calls are answered before they are cut off."""
    preparer.stop()
    if isinstance(source, ApiServer):
        timer = threading.Timer(_READS_END, source.close)
        timer.daemon = True
        timer.start()


def _register(places: Sockets, publisher: Publisher, ends: ExitStack) -> list[Callable[[], None]]:
    """Have the kubelet find us; what is to be looked after then."""
    registration = Registration(places.dra, places.registration.parent, publisher.poke)
    server = UnixServer(places.registration, [registration.handler()], WORKERS)
    return [_start(server, ends, registration.forget).look, registration.look, Leftovers(places).look]


def _start(server: UnixServer, ends: ExitStack, gone: Callable[[], None] = lambda: None) -> KeptSocket:
    try:
        server.start()
    except ServerError as error:
        raise CommandError(str(error)) from error
    ends.callback(server.stop)
    return KeptSocket(server, gone)


def _wait(ending: Ending, looks: Sequence[Callable[[], None]]) -> None:
    while True:
        for look in looks:
            look()
        if ending.wait(_INTERVAL):
            return

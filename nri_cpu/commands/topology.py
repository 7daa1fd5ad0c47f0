"""nri-cpu topology: this machine as a map, or as JSON, and who has which CPU as far as the checkpoint can be read.

JSON is one object. CPUs are in the kernel's list format where a value is text:

    online, present, possible, isolated, reserved
    cpus         [{cpu, online, isolated, state, claim, socket, die, cluster, core, numaNode, l3, coreType, siblings}];
                 state: claim, reserved, shared, offline or unknown; claim: the UID of the claim that has it, or null;
                 die and cluster -1 and l3 null where there is none; siblings with the CPU itself. Of a CPU that is
                 off line only numaNode is known, or null
    sockets      [{socket, cpus}]
    numaNodes    [{node, cpus, memory}], cpus empty for memory without CPUs; memory: false where there is none
    l3Groups, cores, dies
                 [cpus]
    pcieRoots    {name: cpus}
    claims       [{uid, namespace, name, cpus, owner}]; null when they are not known; owner: null or
                 {podNamespace, podName, podUID, container, containerID}
"""

from __future__ import annotations

import argparse
import json
import shutil
import string
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nri_cpu.checkpoint.errors import CheckpointError
from nri_cpu.checkpoint.files import read_checkpoint
from nri_cpu.checkpoint.model import ClaimRecord, Owner
from nri_cpu.command import CHECKPOINT, UsageError, configuration, emit, host_root, tell
from nri_cpu.commands.holders import named_checkpoint, owners_beside, why
from nri_cpu.commands.machine import read_for_people
from nri_cpu.commands.overlay import overlay_of
from nri_cpu.config import Config
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology import Topology
from nri_cpu.topology.map import BAR, OFFLINE, RESERVED, SHARED, Paint, cut, render

ISOLATED = "i"
_OTHERS = "+"
# Letters for claims: none that has another meaning on the map.
_LETTERS = [letter for letter in string.ascii_uppercase + string.ascii_lowercase if letter not in "Rxi"]

# Up to so many CPUs each has its number on the map: more would not fit on a screen.
_NUMBERED = 64
_COLUMNS = 80
_FEWEST_COLUMNS = 40
# Columns of what is cut that are still worth having.
_FEWEST_OF_A_NAME = 8

# Claims that are told about one by one.
_MOST_TOLD = 8

_PLAIN, _DIM, _REVERSED = "\033[0m", "\033[2m", "\033[7m"
_COLOURS = [f"\033[30;{code}m" for code in (42, 43, 44, 45, 46, 102, 103, 104, 105, 106)]


@dataclass(frozen=True, slots=True)
class _Users:
    """Who has CPUs. `claims` None: not known. `owners`: by UID of the claim."""

    reserved: CPUSet
    claims: tuple[ClaimRecord, ...] | None
    owners: Mapping[str, Owner] = field(default_factory=dict)


def main(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Draws or prints; 0. What is not known of claims is told on stderr. Raises UsageError, TopologyError or
    OutputError."""
    config = _config(options)
    host = host_root(env)
    overlay = overlay_of(options.sysfs_overlay, config)
    topology = read_for_people("nri-cpu", host, overlay, verbose=options.verbose)
    users = _users(options.checkpoint, config, host)
    _tell_of_absent(topology, users.claims or ())
    if options.output == "json":
        emit(json.dumps(_as_json(topology, users), indent=1) + "\n")
        return 0
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = max(shutil.get_terminal_size((_COLUMNS, 0)).columns if terminal else _COLUMNS, _FEWEST_COLUMNS)
    coloured = terminal and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
    emit(_drawn(topology, users, width, _painter(users) if coloured else None, cutting=terminal))
    return 0


def _config(options: argparse.Namespace) -> Config:
    """A map is drawn without the default file too, whatever is wrong with it: that is told, and defaults count.

    Raises UsageError for a file that --config names.
    """
    try:
        return configuration(options.config)
    except UsageError as error:
        if options.config:
            raise
        tell("nri-cpu", f"{error}; going on without it")
        return Config()


def _users(named: Path | None, config: Config, host: Path) -> _Users:
    """Who has CPUs, as far as that can be read. Raises UsageError for a checkpoint that is named and not there."""
    path = named or config.checkpoint or CHECKPOINT
    try:
        checkpoint = named_checkpoint(path) if named else read_checkpoint(path)[0]
    except CheckpointError as error:
        tell("nri-cpu", f"{error if named else why(error)}; who has which CPU is not shown")
        return _Users(config.reserved_cpus or EMPTY, None)
    try:
        owners = owners_beside(path, host)
    except CheckpointError as error:
        tell("nri-cpu", f"{why(error)}; the containers of claims are not shown")
        owners = {}
    claims = sorted(checkpoint.claims.values(), key=lambda record: record.cpus.first())
    return _Users(checkpoint.reserved, tuple(claims), owners)


def _tell_of_absent(topology: Topology, claims: tuple[ClaimRecord, ...]) -> None:
    """Claims with CPUs that have no place on the map: as of a checkpoint of another machine than HOST_ROOT's."""
    lines = []
    for claim in claims:
        for cpus, what in (
            (claim.cpus - topology.present, "this machine does not have"),
            ((claim.cpus & topology.present) - topology.online, "are off line"),
        ):
            if cpus:
                lines.append(f"claim {claim.namespace}/{claim.name} has CPUs {cpus}, which {what}")
    for line in lines[:_MOST_TOLD]:
        tell("nri-cpu", line)
    if len(lines) > _MOST_TOLD:
        tell("nri-cpu", f"{len(lines) - _MOST_TOLD} more like these")


# ---- the map


def _drawn(topology: Topology, users: _Users, width: int, paint: Paint | None, cutting: bool) -> str:
    numbers = len(topology.present) <= _NUMBERED
    who = dict.fromkeys(topology.isolated, ISOLATED) | dict.fromkeys(users.reserved, RESERVED)
    legend = {ISOLATED: "isolated by the kernel", OFFLINE: "off line"}
    if users.claims is None:
        legend[SHARED] = "" if numbers else "a CPU"
    for claim, letter in _lettered(users.claims or ()):
        who |= dict.fromkeys(claim.cpus, letter)
        legend[letter] = _meaning(claim, users.owners.get(claim.uid), width - 2 if cutting else None)
    if _OTHERS in who.values():
        legend[_OTHERS] = f"{len(users.claims or ()) - len(_LETTERS)} more claims; -o json has them all"
    drawn = render(topology, who, legend, width, numbers=numbers, paint=paint)
    barred = any(line.startswith(" ") and f" {BAR} " in line for line in drawn.splitlines())
    # A list of CPUs may be longer than a line; it is broken anywhere then.
    said = [
        line for text in _said(topology, numbers, barred) for line in textwrap.wrap(text, width, break_on_hyphens=False)
    ]
    return "".join(f"{line}\n" for line in (*said, "")) + drawn


def _meaning(claim: ClaimRecord, owner: Owner | None, room: int | None) -> str:
    """The claim, its CPUs and who owns it, in `room` columns unless the CPUs alone need more: they are never cut."""
    name, cpus = f"{claim.namespace}/{claim.name}", f": {claim.cpus}"
    owned = f" (pod {owner.pod_name}, container {owner.container})" if owner else ""
    if room is not None and len(name + cpus + owned) > room:
        left = room - len(name + cpus)
        owned = cut(owned, left) if left >= _FEWEST_OF_A_NAME else ""
        name = cut(name, max(room - len(cpus), _FEWEST_OF_A_NAME))
    return f"{name}{cpus}{owned}"


def _lettered(claims: tuple[ClaimRecord, ...]) -> Iterator[tuple[ClaimRecord, str]]:
    for at, claim in enumerate(claims):
        yield claim, _LETTERS[at] if at < len(_LETTERS) else _OTHERS


def _said(topology: Topology, numbers: bool, barred: bool) -> Iterator[str]:
    """What is on the map, in words. `barred`: there are bars between L3 caches."""
    caches = len(topology.l3_caches)
    parts = [
        _counted(len(topology.sockets), "socket"),
        _counted(len(topology.nodes), "NUMA node"),
        _counted(caches, "L3 cache") if caches else "no L3 cache known",
        f"{_counted(len(topology.cores), 'core')} of {_threads(topology)}",
    ]
    offline = len(topology.present - topology.online)
    cpus = _counted(len(topology.online), "CPU") + (f" on line, {offline} off line" if offline else "")
    yield f"{cpus}: {', '.join(parts)}."
    core = "A column is a core" if numbers else "A word is a core"
    if topology.smt_enabled:
        core += ", its threads below each other" if numbers else ", a letter for each thread"
    yield f"{core}; {BAR} is between L3 caches." if barred else f"{core}."
    spans = dict.fromkeys(_nodes_of(topology, group) for group in topology.l3_groups)
    if shared := [" and ".join(map(str, nodes)) for nodes in spans if len(nodes) > 1]:
        yield f"NUMA nodes that share an L3 cache: {'; '.join(shared)}."
    if topology.memory_nodes:
        yield f"{_listed(topology.memory_nodes)} memory and no CPUs."
    if topology.memoryless_nodes:
        yield f"{_listed(topology.memoryless_nodes)} no memory."
    if topology.isolated:
        yield f"Isolated by the kernel (isolcpus): CPUs {topology.isolated}."


def _listed(nodes: Sequence[int]) -> str:
    *others, last = map(str, nodes)
    return f"NUMA nodes {', '.join(others)} and {last} have" if others else f"NUMA node {last} has"


def _nodes_of(topology: Topology, cpus: CPUSet) -> tuple[int, ...]:
    return tuple(node for node, in_node in topology.nodes.items() if not in_node.isdisjoint(cpus))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _threads(topology: Topology) -> str:
    widths = sorted({len(core) for core in topology.cores})
    return _counted(widths[0], "thread") if len(widths) == 1 else f"{widths[0]} to {widths[-1]} threads"


def _painter(users: _Users) -> Paint:
    colours = {letter: _COLOURS[at % len(_COLOURS)] for at, (_, letter) in enumerate(_lettered(users.claims or ()))}
    colours |= {RESERVED: _REVERSED, OFFLINE: _DIM, ISOLATED: _DIM}

    def paint(label: str, text: str) -> str:
        return f"{colours[label]}{text}{_PLAIN}" if label in colours else text

    return paint


# ---- JSON


def _as_json(topology: Topology, users: _Users) -> dict[str, object]:
    claims = users.claims
    return {
        "online": str(topology.online),
        "present": str(topology.present),
        "possible": str(topology.possible),
        "isolated": str(topology.isolated),
        "reserved": str(users.reserved),
        "cpus": list(_cpus(topology, users)),
        "sockets": [{"socket": socket, "cpus": str(cpus)} for socket, cpus in topology.sockets.items()],
        "numaNodes": [
            *(
                {"node": node, "cpus": str(cpus), "memory": node not in topology.memoryless_nodes}
                for node, cpus in topology.nodes.items()
            ),
            *({"node": node, "cpus": "", "memory": True} for node in topology.memory_nodes),
        ],
        "l3Groups": [str(group) for group in topology.l3_groups],
        "cores": [str(core) for core in topology.cores],
        "dies": [str(die) for die in topology.dies],
        "pcieRoots": {name: str(cpus) for name, cpus in topology.pcie_roots.items()},
        "claims": None if claims is None else [_claim_said(claim, users.owners.get(claim.uid)) for claim in claims],
    }


def _claim_said(claim: ClaimRecord, owner: Owner | None) -> dict[str, object]:
    """By name of each field: a preparation is nobody's business."""
    said = (
        None
        if owner is None
        else {
            "podNamespace": owner.pod_namespace,
            "podName": owner.pod_name,
            "podUID": owner.pod_uid,
            "container": owner.container,
            "containerID": owner.container_id,
        }
    )
    return {
        "uid": claim.uid,
        "namespace": claim.namespace,
        "name": claim.name,
        "cpus": str(claim.cpus),
        "owner": said,
    }


def _cpus(topology: Topology, users: _Users) -> Iterator[dict[str, object]]:
    owner = {cpu: claim.uid for claim in users.claims or () for cpu in claim.cpus}
    core_of = {cpu: str(core) for core in topology.cores for cpu in core}
    for number in topology.present:
        cpu = topology.cpus.get(number)
        said: dict[str, object] = {
            "cpu": number,
            "online": cpu is not None,
            "isolated": number in topology.isolated,
            "state": _state(number, topology, users, owner),
            "claim": owner.get(number),
        }
        if cpu is None:
            yield said | {"numaNode": topology.offline_nodes.get(number)}
            continue
        yield said | {
            "socket": cpu.socket,
            "die": cpu.die,
            "cluster": cpu.cluster,
            "core": cpu.core,
            "numaNode": cpu.numa_node,
            "l3": cpu.l3,
            "coreType": str(cpu.core_type),
            "siblings": core_of[number],
        }


def _state(cpu: int, topology: Topology, users: _Users, owner: Mapping[int, str]) -> str:
    if cpu not in topology.online:
        return "offline"
    if cpu in owner:
        return "claim"
    if cpu in users.reserved:
        return "reserved"
    return "unknown" if users.claims is None else "shared"

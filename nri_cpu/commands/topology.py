"""nri-cpu topology: this machine as a map, or as JSON, and who has which CPU as far as the checkpoint can be read.

JSON is one object. CPUs are in the kernel's list format where a value is text:

    online, present, possible, isolated, reserved
    cpus         [{cpu, online, isolated, state, claim, socket, die, cluster, core, numaNode, l3, coreType, siblings}];
                 state: claim, reserved, shared, offline or unknown; claim: the UID of the claim that has it, or null;
                 die and cluster -1 and l3 null where there is none; siblings with the CPU itself. Of a CPU that is
                 off line only numaNode is known, or null
    sockets      [{socket, cpus}]
    numaNodes    [{node, cpus}], cpus empty for memory without CPUs
    l3Groups, cores, dies
                 [cpus]
    pcieRoots    {name: cpus}
    claims       [{uid, namespace, name, cpus}]; null when they are not known
"""

from __future__ import annotations

import argparse
import json
import shutil
import string
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nri_cpu.checkpoint.errors import CheckpointError, CheckpointMissing
from nri_cpu.checkpoint.files import read_checkpoint
from nri_cpu.checkpoint.model import ClaimRecord
from nri_cpu.command import CHECKPOINT, UsageError, configuration, emit
from nri_cpu.config import Config
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology import Topology, TopologyError, load_overlay, read_topology
from nri_cpu.topology.map import OFFLINE, RESERVED, SHARED, Paint, render

ISOLATED = "i"
_OTHERS = "+"
# Letters for claims: none that has another meaning on the map.
_LETTERS = [letter for letter in string.ascii_uppercase + string.ascii_lowercase if letter not in "Rxi"]

# Up to so many CPUs each has its number on the map: more would not fit on a screen.
_NUMBERED = 64
_COLUMNS = 80
_FEWEST_COLUMNS = 40

_PLAIN, _DIM, _REVERSED = "\033[0m", "\033[2m", "\033[7m"
_COLOURS = [f"\033[30;{code}m" for code in (42, 43, 44, 45, 46, 102, 103, 104, 105, 106)]


@dataclass(frozen=True, slots=True)
class _Users:
    """Who has CPUs. `claims` None: not known."""

    reserved: CPUSet
    claims: tuple[ClaimRecord, ...] | None


def main(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Raises UsageError or TopologyError."""
    config = _config(options)
    topology = _read(options, config, Path(env.get("HOST_ROOT") or "/"))
    users = _users(options.checkpoint or config.checkpoint or CHECKPOINT, config)
    if options.output == "json":
        emit(json.dumps(_as_json(topology, users), indent=1) + "\n")
        return 0
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = max(shutil.get_terminal_size((_COLUMNS, 0)).columns if terminal else _COLUMNS, _FEWEST_COLUMNS)
    coloured = terminal and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
    emit(_drawn(topology, users, width, _painter(users) if coloured else None))
    return 0


def _config(options: argparse.Namespace) -> Config:
    """A map is drawn without the default file too, if that is not for everybody."""
    try:
        return configuration(options.config)
    except UsageError as error:
        if options.config:
            raise
        _tell(f"{error}; going on without it")
        return Config()


def _read(options: argparse.Namespace, config: Config, host: Path) -> Topology:
    path = options.sysfs_overlay or config.sysfs_overlay
    try:
        overlay = load_overlay(path) if path else None
    except TopologyError as error:
        raise UsageError(str(error)) from None
    return read_topology(host, overlay)


def _users(path: Path, config: Config) -> _Users:
    try:
        checkpoint, _ = read_checkpoint(path)
    except CheckpointError as error:
        if not isinstance(error, CheckpointMissing):
            _tell(f"{error}; who has which CPU is not shown")
        return _Users(config.reserved_cpus or EMPTY, None)
    claims = sorted(checkpoint.claims.values(), key=lambda record: record.cpus.first())
    return _Users(checkpoint.reserved, tuple(claims))


def _tell(text: str) -> None:
    print(f"nri-cpu: {text}", file=sys.stderr)


# ---- the map


def _drawn(topology: Topology, users: _Users, width: int, paint: Paint | None) -> str:
    numbers = len(topology.present) <= _NUMBERED
    who = dict.fromkeys(topology.isolated, ISOLATED) | dict.fromkeys(users.reserved, RESERVED)
    legend = {ISOLATED: "isolated by the kernel", OFFLINE: "off line"}
    if users.claims is None:
        legend[SHARED] = "" if numbers else "a CPU"
    for claim, letter in _lettered(users.claims or ()):
        who |= dict.fromkeys(claim.cpus, letter)
        legend[letter] = f"{claim.namespace}/{claim.name}: {claim.cpus}"
    if _OTHERS in who.values():
        legend[_OTHERS] = f"{len(users.claims or ()) - len(_LETTERS)} more claims; -o json has them all"
    drawn = render(topology, who, legend, width, numbers=numbers, paint=paint)
    # A list of CPUs may be longer than a line; it is broken anywhere then.
    said = [line for text in _said(topology, numbers) for line in textwrap.wrap(text, width, break_on_hyphens=False)]
    return "".join(f"{line}\n" for line in (*said, "")) + drawn


def _lettered(claims: tuple[ClaimRecord, ...]) -> Iterator[tuple[ClaimRecord, str]]:
    for at, claim in enumerate(claims):
        yield claim, _LETTERS[at] if at < len(_LETTERS) else _OTHERS


def _said(topology: Topology, numbers: bool) -> Iterator[str]:
    """What is on the map, in words."""
    caches = len({cpu.l3 for cpu in topology.cpus.values()} - {None})
    parts = [
        _counted(len(topology.sockets), "socket"),
        _counted(len(topology.nodes), "NUMA node"),
        _counted(caches, "L3 cache") if caches else "no L3 cache known",
        f"{_counted(len(topology.cores), 'core')} of {_threads(topology)}",
    ]
    yield f"{_counted(len(topology.online), 'CPU')}: {', '.join(parts)}."
    core = "A column is a core" if numbers else "A word is a core"
    if topology.smt_enabled:
        core += ", its threads below each other" if numbers else ", a letter for each thread"
    barred = any(
        sum(not group.isdisjoint(node) for group in topology.l3_groups) > 1 for node in topology.nodes.values()
    )
    yield f"{core}; | is between L3 caches." if barred else f"{core}."
    spans = dict.fromkeys(_nodes_of(topology, group) for group in topology.l3_groups)
    if shared := [" and ".join(map(str, nodes)) for nodes in spans if len(nodes) > 1]:
        yield f"NUMA nodes that share an L3 cache: {'; '.join(shared)}."
    if topology.memory_nodes:
        yield f"Memory without CPUs: NUMA nodes {', '.join(map(str, topology.memory_nodes))}."
    if topology.isolated:
        yield f"Isolated by the kernel (isolcpus): CPUs {topology.isolated}."


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
            *({"node": node, "cpus": str(cpus)} for node, cpus in topology.nodes.items()),
            *({"node": node, "cpus": ""} for node in topology.memory_nodes),
        ],
        "l3Groups": [str(group) for group in topology.l3_groups],
        "cores": [str(core) for core in topology.cores],
        "dies": [str(die) for die in topology.dies],
        "pcieRoots": {name: str(cpus) for name, cpus in topology.pcie_roots.items()},
        "claims": None
        if claims is None
        else [{"uid": one.uid, "namespace": one.namespace, "name": one.name, "cpus": str(one.cpus)} for one in claims],
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

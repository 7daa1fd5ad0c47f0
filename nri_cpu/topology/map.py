"""Draws the machine as text: a row for each NUMA node, its cores side by side, one letter for each CPU."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology.model import Topology

SHARED, RESERVED, OFFLINE = ".", "R", "x"
_HARD_BLANK = "\N{NO-BREAK SPACE}"
_MEANINGS = {SHARED: "shared", RESERVED: "reserved", OFFLINE: "off line"}


def render(topology: Topology, who: Mapping[int, str], legend: Mapping[str, str] | None = None, width: int = 80) -> str:
    """The map, in lines of at most `width` columns, with a legend of the labels that occur.

    `who`: CPU -> one-letter label; a CPU that it leaves out is shared, or off line. `legend`: label -> what it means.
    Cores are parted by a blank, L3 groups by a bar; a core's letters are its threads in order. Offline CPUs stand
    at the end of their NUMA node, since the kernel tells their core no longer.
    """
    offline = topology.present - topology.online
    labels = {cpu: who.get(cpu, SHARED) for cpu in topology.online} | dict.fromkeys(offline, OFFLINE)
    lines: list[str] = []
    unplaced = offline
    # Lists longer than that get a line of their own.
    column = max((len(str(node)) for node in topology.nodes.values() if len(str(node)) <= width // 3), default=0)
    for socket, in_socket in topology.sockets.items():
        lines.append(f"socket {socket}")
        for node, in_node in topology.nodes.items():
            if here := in_node & in_socket:
                lost = CPUSet(cpu for cpu in unplaced if topology.offline_nodes.get(cpu) == node)
                unplaced -= lost
                head = f"  node {node:<3} {here | lost!s:<{column}}  "
                lines += _row(head, _cells(topology, here, lost, labels), width)
    if unplaced:
        lines.append(f"off line, node not known: CPUs {unplaced}")
    return "\n".join([*lines, *_legend(set(labels.values()), legend or {}, width)]) + "\n"


def _legend(used: set[str], legend: Mapping[str, str], width: int) -> list[str]:
    meanings = _MEANINGS | dict(legend)
    ordered = sorted(used, key=lambda label: (label in _MEANINGS, label))
    # Blanks inside an entry must not be where a line is folded.
    entries = [f"{label} {meanings.get(label, '?')}".replace(" ", _HARD_BLANK) for label in ordered]
    folded = textwrap.wrap("   ".join(entries), width, break_on_hyphens=False)
    return [line.replace(_HARD_BLANK, " ") for line in folded]


def _cells(topology: Topology, here: CPUSet, lost: CPUSet, labels: Mapping[int, str]) -> list[str]:
    parts: list[str] = []
    for group in topology.l3_groups:
        cores = [core & here & group for core in topology.cores if core & here & group]
        if cores and parts:
            parts.append("|")
        parts += ["".join(labels[cpu] for cpu in core) for core in cores]
    return parts + [labels[cpu] for cpu in lost]


def _row(head: str, cells: list[str], width: int) -> list[str]:
    fits = len(head) <= width // 2
    indent = " " * (len(head) if fits else 6)
    rows = textwrap.wrap(" ".join(cells), width - len(indent), break_on_hyphens=False)
    first = head + rows.pop(0) if fits else head.rstrip()
    return [first, *(indent + row for row in rows)]

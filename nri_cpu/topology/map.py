"""Draws the machine as text: socket by socket, node by node, its cores side by side, a cell for each CPU.

Two scales. Letters, for any machine: a core is a word with a letter for each of its threads. Numbers, for small ones: a
core is a column, its threads stand below each other with their numbers, and the letter behind each. A bar parts L3
caches. Where there are several types of cores, each has rows of its own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology.model import CoreType, Topology

SHARED, RESERVED, OFFLINE = ".", "R", "x"
BAR = "|"
_MEANINGS = {SHARED: "shared", RESERVED: "reserved", OFFLINE: "off line"}
# Before a band of letters: room for a CPU's number.
_INDENT = 10

# Label and text -> text in the label's colour.
Paint = Callable[[str, str], str]


def render(
    topology: Topology,
    who: Mapping[int, str],
    legend: Mapping[str, str] | None = None,
    width: int = 80,
    *,
    numbers: bool = False,
    paint: Paint | None = None,
) -> str:
    """The map, in lines of at most `width` columns, with a legend of the labels that occur.

    `who`: CPU -> one-letter label; a CPU that it leaves out is shared, or off line. `legend`: label -> what it means,
    empty for what needs no word; one that is too long for a line is not cut. `numbers`: the larger scale. Offline CPUs
    stand at the end of their NUMA node, since the kernel tells their core no longer, and where that node has several
    sockets below all. Rows of CPUs begin with blanks, no other line does.
    """
    offline = topology.present - topology.online
    labels = {cpu: who.get(cpu, SHARED) for cpu in topology.online} | dict.fromkeys(offline, OFFLINE)
    drawing = _Drawing(topology, labels, width, numbers, paint or (lambda label, text: text))
    lines = [*drawing.rows(), *drawing.legend(_MEANINGS | dict(legend or {}))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Column:
    """A core, as so many rows of CPUs, or with no CPUs at all the bar between two L3 caches."""

    cpus: tuple[tuple[int, ...], ...]
    width: int


class _Drawing:
    """A map while it is drawn. `labels`: of all CPUs that are present; the rest as `render` has it.

    `rows` and `legend` give its lines, whose ends may be blanks.
    """

    def __init__(self, topology: Topology, labels: Mapping[int, str], width: int, numbers: bool, paint: Paint) -> None:
        self._topology = topology
        self._labels = labels
        self._width = width
        self._numbers = numbers
        self._paint = paint
        self._digits = len(str(max(topology.present, default=0)))
        self._types = _types(topology)

    def rows(self) -> Iterator[str]:
        placed, others = self._offline()
        # Lists longer than that get a line of their own.
        lists = [str(node) for node in self._topology.nodes.values() if len(str(node)) <= self._width // 3]
        widest = 0 if self._numbers else max(map(len, lists), default=0)
        for socket, in_socket in self._topology.sockets.items():
            yield f"socket {socket}"
            for node, in_node in self._topology.nodes.items():
                if here := in_node & in_socket:
                    lost = placed.get(node, EMPTY)
                    cpus = "" if self._numbers else str(here | lost)
                    yield from self._node(f"  node {node:<3} {cpus:<{widest}}  ", here, lost)
        for place, unplaced in others.items():
            # Blanks to fold a long list at.
            told = str(unplaced).replace(",", ", ") if len(str(unplaced)) > self._width // 2 else str(unplaced)
            yield from textwrap.wrap(f"off line, {place}: CPUs {told}", self._width, break_on_hyphens=False)

    def _offline(self) -> tuple[Mapping[int, CPUSet], Mapping[str, CPUSet]]:
        """CPUs off line: by their node those that are drawn in it, and the others by what is known of their place."""
        sockets = self._topology.sockets.values()
        placed: dict[int, CPUSet] = {}
        others: dict[str, CPUSet] = {}
        for number in self._topology.present - self._topology.online:
            cpu = CPUSet([number])
            node = self._topology.offline_nodes.get(number)
            in_node = EMPTY if node is None else self._topology.nodes.get(node, EMPTY)
            if node is not None and sum(not in_node.isdisjoint(socket) for socket in sockets) == 1:
                placed[node] = placed.get(node, EMPTY) | cpu
                continue
            place = "node not known" if node is None else f"node {node}{', socket not known' if in_node else ''}"
            others[place] = others.get(place, EMPTY) | cpu
        return placed, others

    def _node(self, head: str, here: CPUSet, lost: CPUSet) -> Iterator[str]:
        parts = {name: here & cpus for name, cpus in self._types.items() if here & cpus}
        if len(self._types) == 1:
            yield from self._block(head, self._columns(here, lost))
            return
        yield head.rstrip()
        last = list(parts)[-1]
        for name, cpus in parts.items():
            yield from self._block(f"    {name:<8}  ", self._columns(cpus, lost if name == last else EMPTY))

    def _columns(self, here: CPUSet, lost: CPUSet) -> list[_Column]:
        columns: list[_Column] = []
        for group in self._topology.l3_groups:
            cores = [core & here & group for core in self._topology.cores if not core.isdisjoint(here & group)]
            if cores and columns:
                columns.append(_Column((), 1))
            columns += [self._column(core) for core in cores]
        return columns + [self._column(CPUSet([cpu])) for cpu in lost]

    def _column(self, core: CPUSet) -> _Column:
        if self._numbers:
            return _Column(tuple((cpu,) for cpu in core), self._digits + 1)
        return _Column((tuple(core),), len(core))

    def _block(self, head: str, columns: Sequence[_Column]) -> Iterator[str]:
        """The columns behind their head, in as many bands as the width asks for."""
        if self._numbers:
            for number, band in enumerate(_bands(columns, self._width - len(head))):
                # A row below another is that of siblings, also where other cores have some.
                if number and self._topology.smt_enabled:
                    yield ""
                yield from self._band(head, band)
                head = " " * len(head)
            return
        if _breadth(columns) <= self._width - len(head):
            yield from self._band(head, columns)
            return
        # The head gets a line of its own, and each band begins with its first CPU.
        yield cut(head.rstrip(), self._width)
        for band in _bands(columns, self._width - _INDENT):
            yield from self._band(f"{band[0].cpus[0][0]:>{_INDENT - 2}}  ", band)

    def _band(self, head: str, band: Sequence[_Column]) -> Iterator[str]:
        for row in range(max(len(column.cpus) for column in band)):
            yield head + " ".join(self._cells(column, row) for column in band)
            head = " " * len(head)

    def _cells(self, column: _Column, row: int) -> str:
        if not column.cpus:
            return BAR
        if row >= len(column.cpus):
            return " " * column.width
        return "".join(self._cell(cpu) for cpu in column.cpus[row])

    def _cell(self, cpu: int) -> str:
        label = self._labels[cpu]
        if not self._numbers:
            return self._paint(label, label)
        return self._paint(label, f"{cpu:>{self._digits}}{' ' if label == SHARED else label}")

    def legend(self, meanings: Mapping[str, str]) -> Iterator[str]:
        ordered = sorted(set(self._labels.values()), key=lambda label: (label in _MEANINGS, label))
        alone = {SHARED: "a number alone:"} if self._numbers else {}
        entries = [
            (label, f"{alone.get(label, label)} {meanings.get(label, '?')}")
            for label in ordered
            if meanings.get(label, "?")
        ]
        for line in _folded(entries, self._width):
            yield "   ".join(self._paint(label, entry) for label, entry in line)


def _types(topology: Topology) -> dict[str, CPUSet]:
    """The CPUs of each type of core that occurs."""
    found = {str(kind): CPUSet(cpu.id for cpu in topology.cpus.values() if cpu.core_type is kind) for kind in CoreType}
    return {name: cpus for name, cpus in found.items() if cpus}


def _bands(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """The columns in bands of at most `width`, each of at least one, no bar at an end; rather parted at a bar."""
    groups: list[list[_Column]] = [[]]
    for column in columns:
        if column.cpus:
            groups[-1].append(column)
        else:
            groups.append([])
    bands: list[list[_Column]] = [[]]
    for group in groups:
        joined = [*bands[-1], *([_Column((), 1)] if bands[-1] else []), *group]
        if _breadth(joined) <= width or not bands[-1]:
            bands[-1] = joined
        else:
            bands.append(list(group))
        while _breadth(bands[-1]) > width and len(bands[-1]) > 1:
            fitting = max(1, sum(_breadth(bands[-1][: end + 1]) <= width for end in range(len(bands[-1]))))
            bands[-1:] = [bands[-1][:fitting], bands[-1][fitting:]]
    return bands


def _breadth(columns: Sequence[_Column]) -> int:
    """Of columns with a blank between each."""
    return sum(column.width + 1 for column in columns) - 1


def cut(text: str, width: int) -> str:
    """The text in at most `width` columns, with its end as a sign that some is missing."""
    return text if len(text) <= width else text[: width - 1] + "…" if width > 0 else ""


def _folded(entries: Sequence[tuple[str, str]], width: int) -> Iterator[list[tuple[str, str]]]:
    """Labels and what is said of them, with three blanks between, in lines of at most `width` or of one entry."""
    line: list[tuple[str, str]] = []
    used = 0
    for label, entry in entries:
        if line and used + 3 + len(entry) > width:
            yield line
            line, used = [], 0
        used += len(entry) + (3 if line else 0)
        line.append((label, entry))
    if line:
        yield line

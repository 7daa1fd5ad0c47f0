"""Figures of a bench: samples of several rounds, set against those of a peer, as JSON lines and as tables.

This kind of machine is noisy, so a figure is made of rounds in which both sides took turns: the best round says what
the code can do, the median what it does. The ratio is that of the medians.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

OURS = "nri-cpu"


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that is measured. `goal` is the most that it may be; with gated_by_peer it is the peer's median."""

    name: str
    unit: str
    peer: str | None = None
    goal: float | None = None
    gated_by_peer: bool = False


@dataclass(slots=True)
class Rounds:
    """What each round measured, by side."""

    figure: Figure
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: str, value: float) -> None:
        self.values.setdefault(side, []).append(value)

    def line(self) -> dict[str, object]:
        """As a JSON object: min and median of ours and of the peer, their ratio, whether the goal is met."""
        ours = self.values[OURS]
        line: dict[str, object] = {
            "figure": self.figure.name,
            "unit": self.figure.unit,
            "min": _short(min(ours)),
            "median": _short(median(ours)),
            "rounds": len(ours),
        }
        goal = self.figure.goal
        if self.figure.peer:
            peers = self.values[self.figure.peer]
            line |= {"peer": self.figure.peer, "peer_min": _short(min(peers)), "peer_median": _short(median(peers))}
            line["ratio"] = _short(median(ours) / median(peers))
            goal = median(peers) if self.figure.gated_by_peer else goal
        if goal is not None:
            line |= {"goal": _short(goal), "met": median(ours) <= goal}
        return line


def percentile(samples: Sequence[float], percent: int) -> float:
    """The sample below which `percent` of all lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


@dataclass(slots=True)
class Latency:
    """Milliseconds of calls, and of the peer's on the same input. The median is to be `goal` at most, or the peer's."""

    name: str
    peer: str | None = None
    goal: float | None = None
    gated_by_peer: bool = False
    ours: list[float] = field(default_factory=list)
    peers: list[float] = field(default_factory=list)

    def line(self) -> dict[str, object]:
        """As a JSON object: median and greatest of ours and of the peer, ratio of medians, whether the goal is met."""
        line: dict[str, object] = {
            "figure": self.name,
            "unit": "ms",
            "p50": _short(median(self.ours)),
            "max": _short(max(self.ours)),
            "calls": len(self.ours),
        }
        goal = self.goal
        if self.peer:
            peers = median(self.peers)
            line |= {"peer": self.peer, "peer_p50": _short(peers), "peer_max": _short(max(self.peers))}
            line["ratio"] = _short(median(self.ours) / peers)
            goal = min(peers, peers if goal is None else goal) if self.gated_by_peer else goal
        if goal is not None:
            line |= {"goal": _short(goal), "met": median(self.ours) <= goal}
        return line


def json_lines(rows: Iterable[Rounds | Latency], context: dict[str, object]) -> str:
    """One JSON object a line, each with the context (versions, sizes)."""
    return "\n".join(json.dumps(row.line() | context) for row in rows)


def table(rows: Iterable[Rounds]) -> str:
    """Figures of rounds, for people."""
    head = ["figure", "unit", "min", "median", "peer", "min", "median", "ratio", "goal"]
    keys = ("figure", "unit", "min", "median", "peer", "peer_min", "peer_median", "ratio")
    return _columns([head, *(_cells(row.line(), keys) for row in rows)], words=(0, 1, 4))


def latency_table(rows: Iterable[Latency]) -> str:
    """Figures of calls, for people."""
    head = ["milliseconds", "p50", "max", "peer", "p50", "max", "ratio", "goal"]
    keys = ("figure", "p50", "max", "peer", "peer_p50", "peer_max", "ratio")
    return _columns([head, *(_cells(row.line(), keys) for row in rows)], words=(0, 3))


def _columns(cells: Sequence[Sequence[str]], words: Sequence[int]) -> str:
    """Lines of aligned columns: those of words to the left, those of numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = [
        "  ".join(c.ljust(w) if i in words else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in text)


def _cells(line: dict[str, object], keys: Sequence[str]) -> list[str]:
    met = {True: "met", False: "MISSED", None: ""}[line.get("met")]  # type: ignore[index]
    return [str(line.get(key, "")) for key in keys] + [met]


def _short(value: float) -> float:
    return float(f"{value:.3g}")

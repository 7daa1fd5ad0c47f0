"""Figures of both processes: hooks, start and memory beside a bare Go plugin's, Prepare beside the disk alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench import hooks
from tests.bench.figures import OURS, Figure, Rounds, percentile
from tests.bench.prepare import Companion, disk, prepare_and_unprepare
from tests.bench.sides import Floor, Running, Side, running

PEER = Floor.name


def _hook(name: str) -> dict[int, Figure]:
    """p50, which is to be the peer's or less, and p99, which on a busy machine is that of the scheduler."""
    return {50: Figure(f"{name}, p50", "ms", PEER, gated_by_peer=True), 99: Figure(f"{name}, p99", "ms", PEER)}


SHARED = _hook("CreateContainer, shared")
FIRST = _hook("CreateContainer, first of a claim")
AGAIN = _hook("CreateContainer, claim's container again")
STOP = _hook("StopContainer")
SYNCHRONIZE = Figure("Synchronize", "ms", PEER, gated_by_peer=True)
START = Figure("start to synchronized", "ms", PEER, goal=150)
MEMORY = Figure("resident memory after Synchronize", "MiB", PEER, goal=32)
THREADS = Figure("threads", "", PEER)
DISK = "disk alone"
PREPARE = {
    50: Figure("NodePrepareResources, p50", "ms", DISK, goal=5),
    99: Figure("NodePrepareResources, p99", "ms", DISK),
}
UNPREPARE = {
    50: Figure("NodeUnprepareResources, p50", "ms", DISK),
    99: Figure("NodeUnprepareResources, p99", "ms", DISK),
}


class Processes:
    """Rounds in which both sides take turns."""

    def __init__(self, sides: Sequence[Side], options: argparse.Namespace) -> None:
        self._sides = list(sides)
        self._options = options
        self.rows = {
            figure: Rounds(figure)
            for figure in (
                *(f for hook in (SHARED, FIRST, AGAIN, STOP) for f in hook.values()),
                *(SYNCHRONIZE, START, MEMORY, THREADS),
                *(f for call in (PREPARE, UNPREPARE) for f in call.values()),
            )
        }

    def round(self) -> None:
        """Start both, time each hook of one and then of the other; the next round begins with the other."""
        options = self._options
        with ExitStack() as stack:
            both = [
                stack.enter_context(running(side, options.nri, options.pods, options.containers))
                for side in self._sides
            ]
            for one in both:
                self._start(one)
            for one in both:
                hooks.shared(one, options.warm_up)
            for one in both:
                times = hooks.shared(one, options.cycles)
                self._add(SHARED, one.side.name, times["CreateContainer"])
                self._add(STOP, one.side.name, times["StopContainer"])
            for one in both:
                updates = options.pods * options.containers
                self._add(FIRST, one.side.name, hooks.first_of_a_claim(one, options.claims, updates))
            for one in both:
                self._add(AGAIN, one.side.name, hooks.restarted(one, options.cycles))
        self._sides.reverse()

    def prepare(self, companion: Companion, directory: Path) -> None:
        """Time dra-cpu, and the disk below it."""
        prepares, unprepares = prepare_and_unprepare(companion, self._options.claims)
        alone = disk(directory, self._options.claims)
        for figures, samples in (PREPARE, prepares), (UNPREPARE, unprepares):
            self._add(figures, OURS, samples)
            self._add(figures, DISK, alone)

    def _start(self, one: Running) -> None:
        self.rows[START].add(one.side.name, one.start_ms)
        self.rows[SYNCHRONIZE].add(one.side.name, one.synchronize_ms)
        self.rows[MEMORY].add(one.side.name, one.memory_mib())
        self.rows[THREADS].add(one.side.name, one.threads())
        if one.n_updates != self._options.pods * self._options.containers:
            raise hooks.WrongAnswerError(f"{one.side.name}: Synchronize brought {one.n_updates} updates")

    def _add(self, figures: dict[int, Figure], side: str, samples: Sequence[float]) -> None:
        for percent, figure in figures.items():
            self.rows[figure].add(side, percentile(samples, percent))

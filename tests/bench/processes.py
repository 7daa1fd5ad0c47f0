"""Figures of nri-cpu as a process: hooks, start and memory, beside a bare plugin's in Go."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack

from tests.bench import hooks
from tests.bench.figures import Figure, Rounds, percentile
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

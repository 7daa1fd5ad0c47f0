"""The bench (hack/bench): figures of hooks, start and memory, each beside a bare Go plugin's."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from google.protobuf.internal import api_implementation

from tests.bench import hooks
from tests.bench.figures import Figure, Rounds, json_lines, percentile, table
from tests.bench.sides import Floor, Ours, Running, Side, running
from tests.nri_runtime.build import NEWEST, VERSIONS, BuildError, programs

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


class Bench:
    """Rounds in which both sides take turns."""

    def __init__(self, sides: Sequence[Side], options: argparse.Namespace) -> None:
        self._sides = list(sides)
        self._options = options
        self.rows = {
            figure: Rounds(figure)
            for group in (SHARED, FIRST, AGAIN, STOP, {0: SYNCHRONIZE, 1: START, 2: MEMORY, 3: THREADS})
            for figure in group.values()
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
                self._hook(SHARED, one, times["CreateContainer"])
                self._hook(STOP, one, times["StopContainer"])
            for one in both:
                updates = options.pods * options.containers
                self._hook(FIRST, one, hooks.first_of_a_claim(one, options.claims, updates))
            for one in both:
                self._hook(AGAIN, one, hooks.restarted(one, options.cycles))
        self._sides.reverse()

    def _start(self, one: Running) -> None:
        self.rows[START].add(one.side.name, one.start_ms)
        self.rows[SYNCHRONIZE].add(one.side.name, one.synchronize_ms)
        self.rows[MEMORY].add(one.side.name, one.memory_mib())
        self.rows[THREADS].add(one.side.name, one.threads())
        if one.n_updates != self._options.pods * self._options.containers:
            raise hooks.WrongAnswerError(f"{one.side.name}: Synchronize brought {one.n_updates} updates")

    def _hook(self, figures: dict[int, Figure], one: Running, samples: Sequence[float]) -> None:
        for percent, figure in figures.items():
            self.rows[figure].add(one.side.name, percentile(samples, percent))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("hack/bench", description=__doc__)
    parser.add_argument(
        "--nri", choices=VERSIONS, default=NEWEST, help="version of the runtime's library (%(default)s)"
    )
    for name, default, text in (
        ("rounds", 8, "in which both sides take turns"),
        ("cycles", 300, "lives of a container per round and hook"),
        ("claims", 40, "fresh claims per round"),
        ("warm-up", 30, "lives of a container before the clock runs"),
        ("pods", 110, "on the node"),
        ("containers", 3, "in each pod"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (%(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Print JSON lines and a table; returns the exit code."""
    options = _options(arguments)
    try:
        programs(options.nri)
    except BuildError as error:
        print(f"hack/bench: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="nri-cpu-bench-") as directory:
        bench = Bench([Ours(Path(directory)), Floor()], options)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            bench.round()
    context: dict[str, object] = {
        "nri": options.nri,
        "pods": options.pods,
        "containers": options.pods * options.containers,
        "python": platform.python_version(),
        "protobuf": api_implementation.Type(),
    }
    rows = list(bench.rows.values())
    print(json_lines(rows, context), "", table(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

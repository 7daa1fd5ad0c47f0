"""Figures of dra-cpu as a process: its calls with claims from a real API server, and from files; start, memory, rest.

The goals of calls are what the Go driver for CPUs took on a machine of this kind, where nothing that it wrote was
durable: docs/performance.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from loguru import logger

from hack.wait import wait_until
from tests.bench.claims import COUNT, Files, Source
from tests.bench.figures import OURS, Figure, Rounds, percentile
from tests.bench.plane import ApiServer
from tests.bench.prepare import Companion, companion, disk
from tests.protocol.fake_kubelet import FakeKubelet
from tests.unit.dra.publisher_scene import HOUR, Scene, grouped

# Figures of Prepare and of Unprepare, by percentile.
_Pair: TypeAlias = tuple[Mapping[int, Figure], Mapping[int, Figure]]

DISK = "disk alone"
MANY = 100

_START_LIMIT = 60.0
_PAUSE = 0.02
# What is not asked within this time is not asked until somebody does something: twice the publisher's shortest round.
_QUIET = 2.0


def _call(name: str, **goals: float) -> dict[int, Figure]:
    """Some of a call's percentiles, beside the disk's, each with a goal if there is one."""
    percents = {"min": 0, "p50": 50, "p99": 99}
    shown = [name for name in percents if name in goals or name != "min"]
    return {percents[one]: Figure(f"{name}, {one}", "ms", DISK, goals.get(one)) for one in shown}


FROM_API = _call("Prepare, claim from the API server", min=4.7, p50=5.6, p99=8.2)
FROM_FILE = _call("Prepare, claim from a file", p50=5)
UNPREPARE = _call("Unprepare", p50=1.3)
MANY_FROM_API = _call(f"Prepare, {MANY} claims in a call, from the API server")
MANY_FROM_FILE = _call(f"Prepare, {MANY} claims in a call, from a file")
MANY_UNPREPARE = _call(f"Unprepare, {MANY} claims in a call")
BURST = Figure(f"Prepare, {COUNT} claims in {COUNT} calls at once", "s", goal=50)
START = Figure("start to registered and published", "s", goal=2)
MEMORY = Figure("resident memory at rest", "MiB", goal=64)
THREADS = Figure("threads at rest", "")
THREADS_BUSY = Figure(f"threads after {COUNT} calls at once", "")
HOURLY = Figure("API requests an hour at rest, in virtual time", "", goal=6)  # a watch lasts ten minutes or longer


def memory_after(cycles: int) -> Figure:
    return Figure(f"resident memory after {cycles} prepared and unprepared", "MiB", goal=64)


def growth(cycles: int) -> Figure:
    """Of memory: it is to be flat, whatever the first tenth of the claims has brought in."""
    return Figure(f"the same, to that after the first {cycles // 10}", "ratio", goal=1.05)


def requests_in(seconds: int) -> Figure:
    return Figure(f"API requests in {seconds} s at rest, by its own count", "", goal=0)


class CompanionBench:
    """Rounds, then once what takes long. `host`: the machine's files; `options`: claims, calls, prepares, rest."""

    def __init__(self, directory: Path, host: Path, server: ApiServer, options: argparse.Namespace) -> None:
        self._directory = directory
        self._host = host
        self._server = server
        self._files = Files(directory / "claims")
        self._options = options
        self._after = memory_after(options.prepares)
        self._growth = growth(options.prepares)
        self._at_rest = requests_in(options.rest)
        calls = (FROM_API, FROM_FILE, UNPREPARE, MANY_FROM_API, MANY_FROM_FILE, MANY_UNPREPARE)
        figures = (
            *(figure for call in calls for figure in call.values()),
            *(BURST, START, MEMORY, self._after, self._growth, THREADS, THREADS_BUSY, self._at_rest, HOURLY),
        )
        self.rows = {figure: Rounds(figure) for figure in figures}

    def round(self) -> None:
        """Both sources of claims in turn, each with a dra-cpu of its own, and the disk below them."""
        with self._registered() as dra_cpu:
            self._add(THREADS, dra_cpu.threads())
            self._add(MEMORY, dra_cpu.memory_mib())
            self._calls(dra_cpu, self._server, (FROM_API, UNPREPARE), (MANY_FROM_API, MANY_UNPREPARE))
            self._add(BURST, dra_cpu.prepare_at_once(self._server.claims))
            self._add(THREADS_BUSY, dra_cpu.threads())
            dra_cpu.unprepare(self._server.claims)
        with companion(self._directory / "from-files", self._host, self._files.arguments) as dra_cpu:
            self._calls(dra_cpu, self._files, (FROM_FILE, {}), (MANY_FROM_FILE, {}))

    def once(self) -> None:
        """Requests at rest, and memory after many claims."""
        with self._registered() as dra_cpu:
            before = self._requests_when_quiet()
            time.sleep(self._options.rest)
            self._add(self._at_rest, self._server.requests() - before)
            first = self._options.prepares // 10
            dra_cpu.one_by_one(self._server.claims, first)
            early = dra_cpu.memory_mib()
            dra_cpu.one_by_one(self._server.claims, self._options.prepares - first)
            self._add(self._after, dra_cpu.memory_mib())
            self._add(self._growth, dra_cpu.memory_mib() / early)
        self._add(HOURLY, requests_an_hour())

    @contextmanager
    def _registered(self) -> Iterator[Companion]:
        """A dra-cpu that is new to a kubelet and to the API server, as soon as it is no more."""
        self._server.remove_slices()
        directory = self._directory / "from-server"
        kubelet = FakeKubelet(directory / "kubelet")
        with kubelet.running(), companion(directory, self._host, self._server.arguments) as dra_cpu:
            kubelet.plugin("dra.cpu")
            wait_until("published slices", self._server.published_devices, _START_LIMIT, _PAUSE)
            self._add(START, time.perf_counter() - dra_cpu.started)
            yield dra_cpu

    def _requests_when_quiet(self) -> int:
        """How many there have been when what the registration brings about has ended. Raises TimeoutError."""
        last, since = -1, 0.0

        def quiet() -> bool:
            nonlocal last, since
            if (now := self._server.requests()) != last:
                last, since = now, time.monotonic()
            return time.monotonic() - since >= _QUIET

        wait_until("an end of dra-cpu's requests", quiet, _START_LIMIT, 0.5)
        return last

    def _calls(self, dra_cpu: Companion, source: Source, one: _Pair, many: _Pair) -> None:
        """One claim in a call, and many."""
        for claims, cycles, (prepare, unprepare) in (
            ([[each] for each in source.claims], self._options.claims, one),
            ([source.claims[:MANY]], self._options.calls, many),
        ):
            times = []
            for number in range(cycles):
                asked = claims[number % len(claims)]
                source.hold(asked)
                times.append((dra_cpu.prepare(asked), dra_cpu.unprepare(asked)))
            alone = disk(self._directory, cycles, len(claims[0]))
            self._samples(prepare, [first for first, _ in times], alone)
            self._samples(unprepare, [second for _, second in times], alone)

    def _samples(self, figures: Mapping[int, Figure], samples: Sequence[float], alone: Sequence[float]) -> None:
        for percent, figure in figures.items():
            self.rows[figure].add(OURS, percentile(samples, percent))
            self.rows[figure].add(DISK, percentile(alone, percent))

    def _add(self, figure: Figure, value: float) -> None:
        self.rows[figure].add(OURS, value)


def requests_an_hour() -> int:
    """What dra-cpu's publisher asks of an API server on which nothing happens, once its slices are there."""
    scene = Scene()
    scene.publisher.want(grouped())
    logger.disable("dra")  # that is of this process, and nobody's
    scene.run(2 * HOUR)
    logger.enable("dra")
    return scene.server.count(since=HOUR).total()

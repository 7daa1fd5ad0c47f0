"""The bench (hack/bench): figures of both processes, of the choice of CPUs and of pods, beside a peer's where there
is one."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from google.protobuf.internal import api_implementation

from hack.go import BuildError
from hack.kube import cluster
from hack.kube.build import version
from hack.node.errors import NodeError
from tests.bench import plane
from tests.bench.allocation import Allocation, big_machine
from tests.bench.companion import CompanionBench
from tests.bench.figures import Figure, Rounds, json_lines, latency_table, table
from tests.bench.pods import Pods
from tests.bench.processes import Processes
from tests.bench.sides import Floor, Ours
from tests.kubelet_allocator.build import program
from tests.kubelet_allocator.driver import Kubelet
from tests.nri_runtime.build import NEWEST, VERSIONS, programs
from tests.unit.topology.machines import write_sysfs

# A part runs all of its rounds and returns its figures as JSON lines and as a table.
_Part: TypeAlias = Callable[[argparse.Namespace], tuple[str, str]]

# A made-up /sys lies in memory, as the real one does, where the system has such a place.
_MEMORY = Path("/dev/shm")


def _processes(options: argparse.Namespace) -> tuple[str, str]:
    with _directory() as directory:
        bench = Processes([Ours(directory), Floor()], options)
        for number in range(options.rounds):
            _progress("processes", number, options)
            bench.round()
    context: dict[str, object] = {
        "nri": options.nri,
        "pods": options.pods,
        "containers": options.pods * options.containers,
        "protobuf": api_implementation.Type(),
    }
    return _shown(bench.rows, context)


def _companion(options: argparse.Namespace) -> tuple[str, str]:
    with _directory() as directory, _directory(_memory()) as memory, plane.api_server(directory) as server:
        bench = CompanionBench(directory, write_sysfs(memory, big_machine()), server, options)
        for number in range(options.rounds):
            _progress("companion", number, options)
            bench.round()
        _report(f"companion: {options.prepares} claims, one after the other")
        bench.once()
    return _shown(bench.rows, {"kubernetes": version()})


def _pods(options: argparse.Namespace) -> tuple[str, str]:
    with cluster.start(report=_report) as started:
        bench = Pods(started, options.pairs)
        for number in range(options.rounds):
            _progress("pods", number, options)
            bench.round()
    return _shown(bench.rows, {"kubernetes": version()})


def _allocation(options: argparse.Namespace) -> tuple[str, str]:
    with _directory(_memory()) as directory, Kubelet() as kubelet:
        bench = Allocation(directory, options.requests)
        for number in range(options.rounds):
            _progress("allocation", number, options)
            bench.round(kubelet)
    return json_lines(bench.rows, _versions()), latency_table(bench.rows)


def _shown(rows: Mapping[Figure, Rounds], context: dict[str, object]) -> tuple[str, str]:
    return json_lines(rows.values(), context | _versions()), table(rows.values())


def _memory() -> Path | None:
    return _MEMORY if _MEMORY.is_dir() else None


@contextmanager
def _directory(parent: Path | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nri-cpu-bench-", dir=parent) as name:
        yield Path(name)


def _versions() -> dict[str, object]:
    return {"python": platform.python_version()}


def _progress(part: str, number: int, options: argparse.Namespace) -> None:
    _report(f"{part}: round {number + 1} of {options.rounds}")


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_PARTS: Mapping[str, _Part] = MappingProxyType(
    {"processes": _processes, "companion": _companion, "allocation": _allocation, "pods": _pods}
)
# What makes all that a part needs, if need be.
_BUILDS: Mapping[str, Callable[[argparse.Namespace], object]] = MappingProxyType(
    {
        "processes": lambda options: programs(options.nri),
        "companion": lambda _options: plane.prepare(_report),
        "allocation": lambda _options: program(),
        "pods": lambda _options: cluster.prepare(report=_report),
    }
)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("hack/bench", description=__doc__)
    parser.add_argument("--only", choices=_PARTS, help="one part of the bench (all of them)")
    parser.add_argument(
        "--nri", choices=VERSIONS, default=NEWEST, help="version of the runtime's library (%(default)s)"
    )
    for name, default, text in (
        ("rounds", 8, "in which both sides take turns"),
        ("cycles", 300, "lives of a container per round and hook"),
        ("claims", 40, "claims per round, one after the other"),
        ("calls", 10, "with many claims each, per round"),
        ("prepares", 10_000, "claims, one after the other, between two looks at dra-cpu's memory"),
        ("pairs", 3, "of pods with a claim and without, per round"),
        ("rest", 60, "seconds in which dra-cpu's requests are counted while it has nothing to do"),
        ("warm-up", 30, "lives of a container before the clock runs"),
        ("pods", 110, "on the node"),
        ("containers", 3, "in each pod"),
        ("requests", 6, "for CPUs, per round and case"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (%(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Print JSON lines and tables; returns the exit code."""
    options = _options(arguments)
    parts = [options.only] if options.only else list(_PARTS)
    try:
        for part in parts:
            _BUILDS[part](options)
    except (BuildError, NodeError, TimeoutError) as error:
        print(f"hack/bench: {error}", file=sys.stderr)
        return 1
    lines, tables = [], []
    for part in parts:
        line, shown = _PARTS[part](options)
        lines.append(line)
        tables.append(shown)
    print(*lines, sep="\n")
    for shown in tables:
        print("", shown, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

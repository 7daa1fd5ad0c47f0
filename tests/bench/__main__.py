"""The bench (hack/bench): figures of both processes and of the choice of CPUs, each beside a peer's."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from google.protobuf.internal import api_implementation

from hack.go import BuildError
from tests.bench.allocation import Allocation
from tests.bench.figures import json_lines, latency_table, table
from tests.bench.prepare import companion
from tests.bench.processes import Processes
from tests.bench.sides import Floor, Ours
from tests.kubelet_allocator.build import program
from tests.kubelet_allocator.driver import Kubelet
from tests.nri_runtime.build import NEWEST, VERSIONS, programs

# A part runs all of its rounds and returns its figures as JSON lines and as a table.
_Part: TypeAlias = Callable[[argparse.Namespace], tuple[str, str]]

# A made-up /sys lies in memory, as the real one does, where the system has such a place.
_MEMORY = Path("/dev/shm")


def _processes(options: argparse.Namespace) -> tuple[str, str]:
    with ExitStack() as stack:
        directory = stack.enter_context(_directory())
        ours = Ours(directory)
        bench = Processes([ours, Floor()], options)
        dra_cpu = stack.enter_context(companion(directory / "dra-cpu", ours.host))
        for number in range(options.rounds):
            _progress("processes", number, options)
            bench.round()
            bench.prepare(dra_cpu, directory)
    context: dict[str, object] = {
        "nri": options.nri,
        "pods": options.pods,
        "containers": options.pods * options.containers,
        "protobuf": api_implementation.Type(),
    }
    rows = list(bench.rows.values())
    return json_lines(rows, context | _versions()), table(rows)


def _allocation(options: argparse.Namespace) -> tuple[str, str]:
    with _directory(_MEMORY if _MEMORY.is_dir() else None) as directory, Kubelet() as kubelet:
        bench = Allocation(directory, options.requests)
        for number in range(options.rounds):
            _progress("allocation", number, options)
            bench.round(kubelet)
    return json_lines(bench.rows, _versions()), latency_table(bench.rows)


@contextmanager
def _directory(parent: Path | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nri-cpu-bench-", dir=parent) as name:
        yield Path(name)


def _versions() -> dict[str, object]:
    return {"python": platform.python_version()}


def _progress(part: str, number: int, options: argparse.Namespace) -> None:
    print(f"{part}: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)


_PARTS: Mapping[str, _Part] = MappingProxyType({"processes": _processes, "allocation": _allocation})


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("hack/bench", description=__doc__)
    parser.add_argument("--only", choices=_PARTS, help="one part of the bench (all of them)")
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
        ("requests", 6, "for CPUs, per round and case"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (%(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Print JSON lines and tables; returns the exit code."""
    options = _options(arguments)
    parts = [options.only] if options.only else list(_PARTS)
    try:
        if "processes" in parts:
            programs(options.nri)
        if "allocation" in parts:
            program()
    except BuildError as error:
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

"""Builds the programs of this folder against several versions of NRI; hack/nri-runtime is its command line.

What is built is kept in the cache, so that only the first build (minutes) and those after a change cost anything. Only
the standard library is used: this must run before there is an environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hack import cache
from hack.go import BuildError, Sources, exit_code, report

# containerd 1.7.24 has NRI 0.6.1, 2.0 and 2.1 have 0.8.0, 2.4.2 has 0.12.3; 0.12.5 is the newest that is served. The
# ttrpc beside it is that of the same containerd, as far as Go 1.24 builds it. Version: the module file that pins it.
MODULES = {"0.6.1": "nri-0.6.1.mod", "0.8.0": "nri-0.8.0.mod", "0.12.5": "go.mod"}
VERSIONS = tuple(MODULES)
NEWEST = VERSIONS[-1]

SOURCES = Sources(Path(__file__).parent, oldest_go=(1, 24))


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs that were built against one version of NRI."""

    runtime: Path
    floor: Path


def programs(version: str) -> Programs:
    """Paths of the programs for that NRI version, built if need be; raises BuildError."""
    if version not in MODULES:
        raise BuildError(f"no NRI version {version!r}; there are {', '.join(VERSIONS)}")
    key = cache.key_of(version, SOURCES.contents())
    folder = cache.entry("nri-runtime", key, lambda out: _build(version, out), report)
    return Programs(folder / "runtime", folder / "floor")


def check() -> None:
    """gofmt and go vet, with every version; raises BuildError."""
    SOURCES.check_format()
    go = SOURCES.find_go()
    for module in MODULES.values():
        SOURCES.run([go, "vet", f"-modfile={module}", "./..."])


def _build(version: str, folder: Path) -> None:
    go = SOURCES.find_go()
    report(f"building the NRI {version} runtime")
    SOURCES.run(
        [go, "build", "-trimpath", "-ldflags=-s -w", f"-modfile={MODULES[version]}", "-o", f"{folder}/", "./..."]
    )


USAGE = """usage: hack/nri-runtime build            build for all versions of NRI, print the programs' paths
       hack/nri-runtime check            gofmt and go vet
       hack/nri-runtime run VERSION ...  run the runtime of that version (tests/nri_runtime/README.md)"""


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return exit_code("hack/nri-runtime", lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    match arguments:
        case ["build"]:
            for built in map(programs, VERSIONS):
                print(built.runtime, built.floor, sep="\n")
        case ["check"]:
            check()
        case ["run", version, *rest]:
            runtime = programs(version).runtime
            os.execv(runtime, [str(runtime), *rest])
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    return 0

"""Builds the program of this folder, which is the kubelet's allocator; hack/kubelet-allocator is its command line.

What is built is kept in the cache: the first build takes minutes, for it compiles a good part of Kubernetes. Only the
standard library is used: this must run before there is an environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hack import cache
from hack.go import Sources, exit_code, report

SOURCES = Sources(Path(__file__).parent, oldest_go=(1, 26))

# link.go says why the check of linked names is off; without symbols the program has a third of its size.
_LDFLAGS = "-s -w -checklinkname=0"
_NAME = "kubelet-allocator"


def program() -> Path:
    """Path of the program, built if need be; raises BuildError."""
    return cache.entry(_NAME, cache.key_of(_LDFLAGS, SOURCES.contents()), _build, report) / _NAME


def _build(folder: Path) -> None:
    """gofmt and go vet too: what they need of Kubernetes is then compiled once, and only here."""
    SOURCES.check_format()
    go = SOURCES.find_go()
    report("building the kubelet's allocator; this takes some minutes, once")
    SOURCES.run([go, "build", "-trimpath", f"-ldflags={_LDFLAGS}", "-o", f"{folder / _NAME}", "."])
    SOURCES.run([go, "vet", "-trimpath", "."])


USAGE = """usage: hack/kubelet-allocator build   build it, print its path
       hack/kubelet-allocator check   gofmt and go vet, which are part of the build
       hack/kubelet-allocator run     run it: requests on standard input (tests/kubelet_allocator/README.md)"""


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return exit_code(f"hack/{_NAME}", lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    match arguments:
        case ["build"]:
            print(program())
        case ["check"]:
            program()
        case ["run"]:
            os.execv(program(), [_NAME])
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    return 0

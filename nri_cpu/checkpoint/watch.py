"""Wakes its reader when something may have changed in the directory of our files, by inotify(7).

Only a hint, so that a new checkpoint is noticed between hooks: a directory that is swapped behind a symbolic link, or
one whose ancestors are renamed, makes no event. Whoever must know asks CheckpointFile.poll.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from inotify_simple import INotify, flags

from nri_cpu.checkpoint.errors import CheckpointUnreadable

_CONTENT = flags.CLOSE_WRITE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE
_GONE = flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT | flags.IGNORED
_DIRECTORY_MASK = _CONTENT | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
_ANCESTOR_MASK = flags.CREATE | flags.MOVED_TO | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
# Names that writers use on their way: the file itself makes an event of its own.
_NOISE = (".tmp", ".lock")


class DirectoryWatch:
    """Watches the directory `path`, which may be absent, removed, replaced and made again.

    Raises CheckpointUnreadable when the system gives no watch (limits fs.inotify.*); polling still works then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._directory: int | None = None  # watch descriptor of the directory while it is there
        self._ancestor: int | None = None  # else that of the deepest directory above it that is there
        try:
            self._inotify = INotify(nonblocking=True)
        except OSError as error:
            raise self._refusal(error) from error
        try:
            self._arm()
        except CheckpointUnreadable:
            self._inotify.close()
            raise

    def fileno(self) -> int:
        """For the event loop: readable when `read` has something to say."""
        descriptor: int = self._inotify.fileno()
        return descriptor

    def read(self) -> bool:
        """Whether something may have changed since the last call; never waits.

        Raises CheckpointUnreadable when the directory came back and can't be watched any more.
        """
        changed = False
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                changed = True
            elif event.wd == self._directory:
                if event.mask & _GONE:
                    self._drop(event.wd)
                    self._directory = None
                changed = changed or not event.name.endswith(_NOISE)
            elif event.wd == self._ancestor and event.mask & _GONE:
                self._forget_ancestor()
        if self._directory is None:
            self._arm()
            changed = changed or self._directory is not None
        return changed

    def close(self) -> None:
        self._inotify.close()

    def _arm(self) -> None:
        """Watch the directory or, where there is none, whatever above it will see it come."""
        while (found := self._watch(self._path, _DIRECTORY_MASK)) is None:
            above = next(
                (wd for parent in self._path.parents if (wd := self._watch(parent, _ANCESTOR_MASK)) is not None), None
            )
            if above == self._ancestor:
                return  # nothing came between the last two looks
            self._forget_ancestor()
            self._ancestor = above
        self._directory = found
        self._forget_ancestor()

    def _forget_ancestor(self) -> None:
        if self._ancestor is not None:
            self._drop(self._ancestor)
            self._ancestor = None

    def _watch(self, path: Path, mask: int) -> int | None:
        try:
            watch: int = self._inotify.add_watch(path, mask)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._refusal(error) from error
        return watch

    def _drop(self, watch: int) -> None:
        with contextlib.suppress(OSError):  # the kernel was first: its directory is gone
            self._inotify.rm_watch(watch)

    def _refusal(self, error: OSError) -> CheckpointUnreadable:
        return CheckpointUnreadable(
            f"{self._path} can't be watched: {error.strerror}; raise the limits fs.inotify.max_user_instances and "
            "max_user_watches"
        )

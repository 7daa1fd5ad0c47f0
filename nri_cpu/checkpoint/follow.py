"""Follows the checkpoint: one stat tells whether it is a new one.

A file is the one read last if device and inode are the same; its descriptor stays open, so that the inode can't be
given to another file (timestamps alone tick too slowly: 4 ms). Size and mtime are compared as well, at no cost, for the
sake of someone who repairs a file in place.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from nri_cpu.checkpoint import codec, files
from nri_cpu.checkpoint.errors import CheckpointError
from nri_cpu.checkpoint.model import Checkpoint


class CheckpointFile:
    """The checkpoint at `path` as it changes.

    A file that is missing, unreadable or corrupt is never an empty checkpoint: it is an error (fault B2). What was last
    read is its reader's to keep.
    """

    __slots__ = ("_complaint", "_opened", "_path", "_seen")

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        self._seen: tuple[int, int, int, int] | None = None  # of the file that _opened is
        self._opened: int | None = None
        self._complaint: str | None = None

    def poll(self) -> Checkpoint | None:
        """The new content, or None when nothing changed since the last call.

        Raises CheckpointError once for each new bad state: the same complaint about the same file is not repeated.
        """
        try:
            now = os.stat(self._path)  # noqa: PTH116  # in every hook: Path.stat takes twice as long
        except OSError as error:
            self._complain_of(error)
            return None
        if _identity(now) == self._seen:
            return None
        try:
            opened = files.open_regular(self._path)
        except CheckpointError as error:
            self._complain(error)
            return None
        return self._read(opened)

    def skip(self) -> None:
        """The file that is there now is no news: its one writer knows what it has written."""
        self.close()
        with contextlib.suppress(CheckpointError):  # the next poll says so
            opened = files.open_regular(self._path)
            self._keep(opened, _identity(os.fstat(opened)))

    def close(self) -> None:
        """Let go of the file; a later poll starts afresh, with what it has to complain of as well."""
        self._keep(None, None)
        self._complaint = None

    def _read(self, opened: int) -> Checkpoint | None:
        now = os.fstat(opened)  # before reading: what is written into the file meanwhile is news for the next poll
        try:
            raw = files.read_opened(opened, self._path)
        except CheckpointError as error:
            os.close(opened)
            self._complain(error)
            return None
        self._keep(opened, _identity(now))
        self._complaint = None
        # What this raises is not repeated: the file has been seen now.
        return files.parsed(self._path, codec.checkpoint_from_bytes, raw)[0]

    def _complain_of(self, error: OSError) -> None:
        try:
            files.refuse_read(self._path, error)
        except CheckpointError as ours:
            self._complain(ours)

    def _complain(self, error: CheckpointError) -> None:
        """A state in which the file could not be read at all: looked at anew with each poll, complained of once."""
        self._keep(None, None)
        if self._complaint != str(error):
            self._complaint = str(error)
            raise error

    def _keep(self, opened: int | None, seen: tuple[int, int, int, int] | None) -> None:
        if self._opened is not None:
            os.close(self._opened)
        self._opened, self._seen = opened, seen


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

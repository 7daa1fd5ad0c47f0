"""Reading files that others may have put there: what is no regular file is refused, and keeps nobody waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NotRegularError(Exception):
    """A FIFO, socket or device where a file belongs."""


def read_regular(path: Path, limit: int) -> bytes:
    """All bytes, or `limit` + 1 of a file that has more. Raises OSError, also for a directory, and NotRegularError."""
    # O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(opened).st_mode
    if not stat.S_ISREG(mode):
        os.close(opened)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise NotRegularError
    with os.fdopen(opened, "rb") as file:
        return file.read(limit + 1)

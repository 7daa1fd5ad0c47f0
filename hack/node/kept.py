"""Programs of which nothing is left when whoever started them has gone: a keeper for each, and directories that live as
long as a lock on them is held."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hack.node.tools import search_path

_KEEPER = Path(__file__).with_name("keeper.py")


class Kept:
    """A running program under a keeper (keeper.py), which kills it, and removes `directory` after it, at close or when
    this process is gone. `lock` is the descriptor of a locked directory, which the keeper holds too.

    The program's output goes to `log`. `handed` are descriptors that it gets.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        lock: int,
        log: Path,
        handed: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        keeper = [sys.executable, "-I", "-S", str(_KEEPER), str(directory), str(os.getpid()), str(lock)]
        with log.open("ab") as output:
            self._keeper: subprocess.Popen[bytes] | None = subprocess.Popen(
                [*keeper, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "PATH": search_path(), **(env or {})},
                pass_fds=(lock, *handed),
                start_new_session=True,  # Ctrl-C is the owner's
            )

    @property
    def pid(self) -> int:
        """The keeper's process id."""
        return self._keeper.pid if self._keeper else 0

    def ended(self) -> bool:
        """Whether the program has ended by itself. (Its keeper stays, for the logs' sake, until close.)"""
        return self._keeper is None or _has_dead_child(self._keeper.pid)

    def close(self) -> None:
        """Kill the program and return when it is gone, and its directory. May be called twice."""
        if self._keeper:
            self._keeper.communicate(b"end")  # not only its end: a forked child may hold the pipe open
            self._keeper = None


def _has_dead_child(pid: int) -> bool:
    """Whether a child of this process is a zombie."""
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
    return False


def directories(prefix: str) -> list[Path]:
    """This user's directories of this kind, kept or abandoned."""
    found = Path(tempfile.gettempdir()).glob(f"{prefix}*")
    return sorted(path for path in found if path.lstat().st_uid == os.getuid())


def locked_directory(prefix: str) -> tuple[Path, int]:
    """A new directory, and the descriptor that holds its lock: the flock says that it is in use. Abandoned ones of its
    kind are removed."""
    for path in directories(prefix):
        _if_abandoned(path, shutil.rmtree)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        lock = os.open(path, os.O_RDONLY)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(lock).st_ino:
                return path, lock
        os.close(lock)  # another process took it for abandoned before it was locked


def is_kept(directory: Path) -> bool:
    """Whether somebody, its keeper, holds the lock of this directory."""
    return not _if_abandoned(directory, lambda _path: None)


def _if_abandoned(path: Path, act: Callable[[Path], object]) -> bool:
    """Call `act` while we hold the lock of a directory that nobody else holds; whether that was so."""
    with suppress(OSError):
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            act(path)
            return True
        finally:
            os.close(lock)
    return False

"""dra-cpu that kills itself at a step of a call: a program for tests, put into a node instead of the command.

Its arguments are those of dra-cpu. While there is a file ORDER with "prepare:2" in it, the next Prepare kills the
process by SIGKILL just before its second step, and says in TOLD what that step was. Steps are what changes a file or
its safety on disk (fsync, rename, unlink), and after the last of these the answer. The order counts once, and what
dra-cpu does at its start counts for nothing.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra.cli import main
from dra.prepare.preparer import Preparer

ORDER = "/run/kill_at"
TOLD = "/run/killed_before"

_CALLS = ("fsync", "rename", "unlink")


class Steps:
    """What stands between dra-cpu and its files, and between a call and its answer."""

    def __init__(self) -> None:
        self._left = 0
        self._unlink = os.unlink

    def set_up(self) -> None:
        """Put itself in the way of the steps, and of the calls that they are steps of."""
        for name in _CALLS:
            setattr(os, name, self._counted(name, getattr(os, name)))
        for name in ("prepare", "unprepare"):
            setattr(Preparer, name, self._watched(name, getattr(Preparer, name)))

    def _step(self, what: str) -> None:
        self._left -= 1
        if self._left == 0:
            Path(TOLD).write_text(what)
            os.kill(os.getpid(), signal.SIGKILL)

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            # A rename's second argument is where the file will be; the others have one.
            self._step(f"{name} {file_name(arguments[name == 'rename'])}")
            return call(*arguments, **named)

        return counted

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            self._left = self._ordered(name)
            result = call(*arguments, **named)
            self._step("answer")
            self._left = 0
            return result

        return watched

    def _ordered(self, name: str) -> int:
        try:
            call, number = Path(ORDER).read_text().split(":")
        except FileNotFoundError:
            return 0
        if call != name:
            return 0
        self._unlink(ORDER)
        return int(number)


def file_name(file: Any) -> str:
    """The name of a file given as path or descriptor; a temporary file is called after the one that it will be."""
    path = Path(f"/proc/self/fd/{file}").readlink() if isinstance(file, int) else Path(file)
    return re.sub(r"^\.(.*)\.[0-9a-f]+\.tmp$", r"\1", path.name)


if __name__ == "__main__":
    Steps().set_up()
    sys.exit(main())

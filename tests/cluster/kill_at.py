"""dra-cpu that kills itself: a program for tests, put into a node instead of the command.

KILL_AT=unlink:2 kills it by SIGKILL just before the second os.unlink that Prepare or Unprepare makes; what it does at
its start counts for nothing. Arguments are those of dra-cpu.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from dra.cli import main
from dra.prepare.preparer import Preparer


class Step:
    """The call to die before: armed by the first Prepare or Unprepare."""

    def __init__(self, name: str, number: int) -> None:
        self._name = name
        self._left = number
        self._armed = False

    def set_up(self) -> None:
        """Put itself in the way of the call, and of those that arm it."""
        setattr(os, self._name, self._counted(getattr(os, self._name)))
        for method in ("prepare", "unprepare"):
            setattr(Preparer, method, self._arming(getattr(Preparer, method)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            if self._armed:
                self._left -= 1
                if not self._left:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return counted

    def _arming(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def armed(*arguments: Any, **named: Any) -> Any:
            self._armed = True
            return method(*arguments, **named)

        return armed


if __name__ == "__main__":
    name, number = os.environ["KILL_AT"].split(":")
    Step(name, int(number)).set_up()
    sys.exit(main())

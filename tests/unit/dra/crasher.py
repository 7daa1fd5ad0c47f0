"""Kills a dra-cpu at each of its system calls that touch a file, one copy of the world for each.

Run as a program: `python -m tests.unit.dra.crasher WORLD COPIES SCENARIO`. WORLD is a Rig's directory; copy number n of
it, COPIES/n, is left as a kill before system call number n leaves it. The last one is of a run that was not killed.
A process of its own, since it forks: pytest has threads.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loguru import logger

from tests.unit.dra.rig import Rig

KILLED = 9
_CALLS = ("open", "write", "fsync", "rename", "unlink", "mkdir")


def prepare(rig: Rig) -> None:
    rig.outcome(rig.claim(2))


def prepare_two(rig: Rig) -> None:
    rig.outcome(rig.claim(2), rig.claim(3))


def prepare_again(rig: Rig) -> None:
    rig.outcome(rig.claim(1))


def prepare_in_vain(rig: Rig) -> None:
    shutil.rmtree(rig.cdi.path)
    rig.cdi.path.write_text("no directory")
    rig.outcome(rig.claim(2))
    rig.cdi.path.unlink()


def unprepare(rig: Rig) -> None:
    rig.unprepare(rig.claim(1))


def start(rig: Rig) -> None:
    rig.start()


def main(world: Path, copies: Path, scenario: Callable[[Rig], None]) -> None:
    number = 0
    while True:
        number += 1
        copy = copies / str(number)
        shutil.copytree(world, copy)
        child = os.fork()
        if not child:
            _die_at(number, scenario, copy)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != KILLED:
            sys.exit(status)


def _die_at(number: int, scenario: Callable[[Rig], None], world: Path) -> None:
    left = number

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os._exit(KILLED)
            return call(*args, **named)

        return counting

    for name in _CALLS:
        setattr(os, name, counted(getattr(os, name)))
    try:
        scenario(Rig(world))
    except BaseException:
        logger.exception("the scenario failed")
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    logger.remove()
    logger.add(sys.stderr, level="ERROR")
    main(Path(sys.argv[1]), Path(sys.argv[2]), globals()[sys.argv[3]])

"""keeper.py DIRECTORY PARENT LOCK COMMAND...: runs a program (QEMU, etcd, ...), and sees that nothing is left of it.

The program is killed and the directory removed when standard input ends (the owner closes it), or when the process
PARENT is gone, however it went. When the keeper itself is killed, the kernel kills the program (PR_SET_PDEATHSIG); the
directory, no longer locked by descriptor LOCK, is then removed by the next start of its kind. Other descriptors that
are handed over go to the program.

Standard library only, and little of it: one starts with every program.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys

_PR_SET_PDEATHSIG = 1
_STDIN, _FIRST_OTHER, _LAST = 0, 3, 1024


def main() -> int:
    directory, parent, lock = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    program = _start(sys.argv[4:], lock)
    os.closerange(_FIRST_OTHER, lock)
    os.closerange(lock + 1, _LAST)
    _wait_for_the_end(parent)
    with contextlib.suppress(ProcessLookupError):
        os.kill(program, signal.SIGKILL)
    os.waitpid(program, 0)
    shutil.rmtree(directory, ignore_errors=True)
    return 0


def _start(command: list[str], lock: int) -> int:
    prctl = ctypes.CDLL(None).prctl
    keeper = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.close(lock)
        os.dup2(os.open(os.devnull, os.O_RDONLY), _STDIN)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:
            os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    finally:
        os._exit(127)


def _wait_for_the_end(parent: int) -> None:
    """Return when standard input or the parent ends. When the program does, its owner may still want its logs."""
    watched = select.poll()
    watched.register(_STDIN, select.POLLIN)
    try:
        watched.register(os.pidfd_open(parent), select.POLLIN)  # becomes readable when the process ends
    except ProcessLookupError:
        return
    # Before the descriptor was open, the parent may have gone, and its id may belong to another by now.
    if os.getppid() == parent:
        watched.poll()


sys.exit(main())

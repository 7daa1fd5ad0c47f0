"""How a process that serves ends: by a signal, or since a thread of it has ended that should not (fault A37)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, NoReturn

from loguru import logger

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ending:
    """While it is entered, by the main thread, SIGTERM and SIGINT end what happens in it, and so does the failure of
    any thread.

    Until `keep`, a signal ends the process at once, whatever it waits for: what it writes may be cut off at any place
    anyway. From then on the signal is kept for `wait`, and a second one ends it at once.

    Handlers, not blocked signals: a mask would be inherited by programs that are started, and what signals do without a
    handler the kernel keeps from the first process of a container.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self._signalled = False
        self._kept = False
        # The one queue that a signal's handler may put into, whatever it interrupts.
        self._news: SimpleQueue[None] = SimpleQueue()
        self._before: list[Any] = []
        self._hook: Any = None

    def __enter__(self) -> Ending:
        self._hook, threading.excepthook = threading.excepthook, self._failed
        self._before = [signal.signal(number, self._signal) for number in _SIGNALS]
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, handler in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)
        threading.excepthook = self._hook

    def keep(self) -> None:
        """From now on there is something that must not be left at any place: sockets are about to be made."""
        self._kept = True

    def wait(self, seconds: float) -> bool:
        """Whether the end has come, which is waited for so long; `failure` says which thread has failed, where that is
        the reason. Not for long: a signal in the moment before the system call, or one that another thread is given,
        is noticed after it."""
        if not self._over():
            with contextlib.suppress(Empty):
                self._news.get(timeout=seconds)
        return self._over()

    def _over(self) -> bool:
        return self._signalled or self.failure is not None

    def _signal(self, number: int, _: FrameType | None) -> None:
        if self._signalled:
            leave(128 + number)
        self._signalled = True
        if not self._kept:
            os.write(2, b"dra-cpu: ended by a signal before it served\n")  # the log may be what was interrupted
            leave(0)
        self._news.put(None)

    def _failed(self, failure: threading.ExceptHookArgs) -> None:
        name = failure.thread.name if failure.thread else "unknown"
        logger.opt(exception=failure.exc_value).error(
            "the thread {} has failed, which is a fault of dra-cpu itself", name
        )
        if self.failure is None:
            self.failure = f"its thread {name} has failed: {failure.exc_type.__name__}; the log says where"
            self._news.put(None)


def leave(code: int) -> NoReturn:
    """Ends the process now. Threads are not waited for, as Python does: one that reads from an API server that hangs
    would keep the process for longer than anybody gives it, and what it reads is of no use any more."""
    os._exit(code)

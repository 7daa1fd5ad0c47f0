"""How a process that serves ends: by a signal, or since a thread of it has ended that should not (fault A37)."""

from __future__ import annotations

import os
import signal
import threading
from types import TracebackType
from typing import Any

from loguru import logger

_SIGNALS = {signal.SIGTERM, signal.SIGINT}


class Ending:
    """While it is entered, SIGTERM and SIGINT are kept for `wait`, and so is the failure of any thread.

    Enter it before there is any other thread: one that takes the signal would leave the main thread asleep.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self._over = False
        self._hook: Any = None

    def __enter__(self) -> Ending:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._hook, threading.excepthook = threading.excepthook, self._failed
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        threading.excepthook = self._hook

    def wait(self, seconds: float | None = None) -> bool:
        """Whether the end has come, within so many seconds if they are given; then a second signal kills, by its own
        effect. `failure` says which thread has failed, where that is the reason."""
        if seconds is None:
            signal.sigwait(_SIGNALS)
        elif signal.sigtimedwait(_SIGNALS, seconds) is None:
            return False
        self._over = True
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return True

    def _failed(self, failure: threading.ExceptHookArgs) -> None:
        name = failure.thread.name if failure.thread else "unknown"
        logger.opt(exception=failure.exc_value).error(
            "the thread {} has failed, which is a fault of dra-cpu itself", name
        )
        if self.failure is None:
            self.failure = f"its thread {name} has failed: {failure.exc_type.__name__}; the log says where"
            if not self._over:
                os.kill(os.getpid(), signal.SIGTERM)

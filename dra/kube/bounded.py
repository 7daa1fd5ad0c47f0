"""Calls that know no time limit, as those of the system's resolver, and are not waited for any longer than that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Bounded(Generic[T]):
    """One call, which another thread may cut off."""

    def __init__(self) -> None:
        self._outcome: SimpleQueue[tuple[T, ...] | BaseException] = SimpleQueue()

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """What `function` gives or raises; TimeoutError after `seconds`, or what `cut_off` was given.

        It runs in a thread of its own, which is left to its end: nothing can interrupt it.
        """

        def run() -> None:
            try:
                self._outcome.put((function(),))
            except BaseException as error:
                self._outcome.put(error)

        threading.Thread(target=run, name="bounded", daemon=True).start()
        try:
            outcome = self._outcome.get(timeout=max(seconds, 0.0))
        except Empty:
            raise TimeoutError from None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome[0]

    def cut_off(self, error: Exception) -> None:
        """What waits for it, or will, ends with `error` at once. Never blocks."""
        self._outcome.put(error)

"""Time for tests of what takes hours: it passes only while the code under test waits, and then at once.

One thread: what is to happen meanwhile is on the agenda, and done by the wait that it falls into.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from dra.slices.pace import Clock


class VirtualTime(Clock):
    def __init__(self) -> None:
        self._now = 0.0
        self._number = itertools.count()  # of two at the same time the one that was put first is done first
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._agenda, (seconds, next(self._number), action))

    def every(self, seconds: float, action: Callable[[], object]) -> None:
        def again() -> None:
            action()
            self.at(self._now + seconds, again)

        self.at(seconds, again)

    def now(self) -> float:
        return self._now

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        ends = None if seconds is None else self._now + seconds
        while not event.is_set():
            if self._agenda and (ends is None or self._agenda[0][0] <= ends):
                when, _, action = heapq.heappop(self._agenda)
                self._now = max(self._now, when)
                action()
            elif ends is not None:
                self._now = ends
                return False
            else:
                raise AssertionError("waits for ever, and nothing is on the agenda")
        return True

    def jitter(self) -> float:
        return 1.0

"""How often: delays that grow while there is trouble and are never the same on all nodes, and the clock they go by."""

from __future__ import annotations

import random
import threading
import time

_GROWTH = 2.0
# Nodes that lost one API server at the same moment come back to it spread over half the delay.
_JITTER = 0.25


class Clock:
    """Time as it is; tests have one of their own."""

    def now(self) -> float:
        """Seconds since any moment, never going back."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """Until `event` is set, `seconds` at most, None for ever; whether it is."""
        return event.wait(seconds)

    def jitter(self) -> float:
        """A factor about 1."""
        return random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311  # no secret


class Backoff:
    """Delays from `first` to `limit` seconds, each twice the one before."""

    def __init__(self, first: float, limit: float, clock: Clock) -> None:
        self._first = first
        self._limit = limit
        self._clock = clock
        self._delay = first

    def next(self) -> float:
        delay, self._delay = self._delay, min(self._delay * _GROWTH, self._limit)
        return delay * self._clock.jitter()

    def reset(self) -> None:
        self._delay = self._first


class Repairs:
    """Delays before what others did is undone: short while that is rare, growing while somebody does it each time.

    Rare is what comes a minute after the last one was undone.
    """

    _RARE = 60.0

    def __init__(self, first: float, limit: float, clock: Clock) -> None:
        self._backoff = Backoff(first, limit, clock)
        self._clock = clock
        self._rare_from = 0.0

    def next(self) -> float:
        now = self._clock.now()
        if now >= self._rare_from:
            self._backoff.reset()
        delay = self._backoff.next()
        self._rare_from = now + delay + self._RARE
        return delay

    def reset(self) -> None:
        self._backoff.reset()

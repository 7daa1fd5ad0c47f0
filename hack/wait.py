"""Waiting for something that nobody announces: the demo, the box and the tests all wait here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE = 0.01  # seconds


def wait_until(what: str, ready: Callable[[], T | None], limit: float = 20, pause: float = _PAUSE) -> T:
    """Ask `ready` until it gives something true, and return that; after `limit` seconds TimeoutError names `what`.

    `pause` is the time between two questions, in seconds.
    """
    end = time.monotonic() + limit
    while not (found := ready()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {limit:g} s")
        time.sleep(pause)
    return found

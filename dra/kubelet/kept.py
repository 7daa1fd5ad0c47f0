"""A socket of ours that somebody removes is served anew: nobody else would, and a kubelet that starts, or has taken its
going for our end, must find us (fault K7)."""

from __future__ import annotations

from collections.abc import Callable

from loguru import logger

from dra.kubelet.server import ServerError, UnixServer
from dra.slices.pace import Clock, Repairs

# Seconds from the look that finds the socket gone to the new one: at first, and while somebody removes it each time.
_FIRST, _LONGEST = 0.5, 60.0


class KeptSocket:
    """The socket of `server`, which serves. `gone` is called before each new one."""

    def __init__(self, server: UnixServer, gone: Callable[[], None] = lambda: None, clock: Clock | None = None) -> None:
        self._server = server
        self._gone = gone
        self._clock = clock or Clock()
        self._repairs = Repairs(_FIRST, _LONGEST, self._clock)
        self._due: float | None = None  # when it is served anew
        self._problem = ""

    def look(self) -> None:
        """To be called each second. What stands in the way of a new socket is told once, and tried again."""
        now = self._clock.now()
        if self._server.is_there():
            self._due = None
        elif self._due is None:
            self._due = now + self._repairs.next()
        elif self._due <= now:
            self._serve(now)

    def _serve(self, now: float) -> None:
        self._gone()
        try:
            self._server.start()
        except ServerError as error:
            self._due = now + self._repairs.next()
            if str(error) != self._problem:
                self._problem = str(error)
                logger.error("somebody has removed the socket {}, and {}", self._server.path, error)
        else:
            self._due = None
            self._problem = ""
            logger.warning("somebody has removed the socket {}: it is served anew", self._server.path)

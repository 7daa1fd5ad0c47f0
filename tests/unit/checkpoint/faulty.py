"""An `os` whose n-th call goes wrong: by an error of the system, or by the death of the process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

SYSCALLS = ("open", "write", "fsync", "close", "rename", "unlink", "fstat", "read")


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class FaultyOS:
    """Stands for the module `os`. Call number `fail_at` (from 0) raises `error`; if Killed, so does each after it.

    calls: the names of the calls so far. partial: os.write takes one byte at a time.
    """

    def __init__(
        self, fail_at: int | None = None, error: BaseException | None = None, *, partial: bool = False
    ) -> None:
        self.calls: list[str] = []
        self._fail_at = fail_at
        self._error = error
        self._partial = partial

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._wrapped(name, real) if name in SYSCALLS else real

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            if self._error is not None and self._fail_at is not None:
                gone = isinstance(self._error, Killed) and number > self._fail_at
                if number == self._fail_at or gone:
                    if name == "close" and not isinstance(self._error, Killed):
                        real(*args, **kwargs)  # Linux closes the descriptor whatever close(2) says
                    raise self._error
            if name == "write" and self._partial:
                args = (args[0], args[1][:1])
            return real(*args, **kwargs)

        return call

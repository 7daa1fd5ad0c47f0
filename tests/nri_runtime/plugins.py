"""Processes of plugins under test: any command, and the Go plugin of this folder."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.nri_runtime.build import programs
from tests.nri_runtime.driver import LIMIT, NothingCame, NriRuntime, Option, flags


class Plugin:
    """A plugin's process, killed at the end of the `with` block; it dies with the process that started it."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        self._said = tempfile.TemporaryFile("a+")  # noqa: SIM115 - __exit__ closes it
        # setpriv (util-linux) lets the kernel kill the plugin when its parent ends, and is then the plugin itself.
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._said.close()

    @property
    def said(self) -> str:
        """What it wrote so far to standard output and standard error."""
        self._said.seek(0)
        return self._said.read()

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait(LIMIT)

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.wait()

    def wait(self, limit: float = LIMIT) -> int:
        """Wait for the end and return the exit code; raises NothingCame."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise NothingCame(f"{self.process.args!r} has not ended after {limit} s; it said: {self.said}") from None


def floor(runtime: NriRuntime, **options: Option) -> Plugin:
    """The Go plugin over the library's own stub of the runtime's version; options are its flags (floor/main.go)."""
    return Plugin([programs(runtime.version).floor, f"-socket={runtime.socket}", *flags(options)])

"""Calls dra-cpu in this process, on a machine that is a directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra import cli
from nri_cpu import command


@dataclass(frozen=True, slots=True)
class Done:
    """What a call came to."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line on stderr."""
        return self.err.splitlines()[-1]


class DraCpu:
    """`config`: stands for the default file, which is not there unless a test writes it."""

    def __init__(self, capsys: pytest.CaptureFixture[str], host: Path, config: Path) -> None:
        self._capsys = capsys
        self.host = host
        self.config = config

    def __call__(self, *arguments: str) -> Done:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOST_ROOT", str(self.host))
            patch.setattr(command, "CONFIG", self.config)
            try:
                code = cli.main(list(arguments))
            except SystemExit as error:
                code = int(str(error.code))
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        return Done(code, out, err)


def environment(host: Path) -> dict[str, str]:
    """Of a process on the machine that is a directory."""
    return {**os.environ, "HOST_ROOT": str(host)}

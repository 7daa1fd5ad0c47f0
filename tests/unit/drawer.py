"""Calls nri-cpu topology, in this process and on a terminal, on a machine that is a directory."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from nri_cpu import cli, command
from nri_cpu.checkpoint.codec import checkpoint_to_bytes
from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord
from nri_cpu.cpuset import CPUSet
from tests.unit.checkpoint.samples import BOOT
from tests.unit.topology.machines import box, write_sysfs


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str


class Drawer:
    """`nri-cpu topology` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], directory: Path) -> None:
        self._capsys = capsys
        self.checkpoint = directory / "state/checkpoint.json"
        self.config = directory / "config.yaml"
        self.host = write_sysfs(directory / "host", box())
        self.configured("")

    def configured(self, text: str) -> None:
        """The default configuration, which names the checkpoint too."""
        self.config.write_text(f"checkpoint: {self.checkpoint}\n{text}")

    def has(self, *claims: ClaimRecord, reserved: str = "") -> None:
        self.checkpoint.parent.mkdir(exist_ok=True)
        held = Checkpoint(CPUSet.parse(reserved), {claim.uid: claim for claim in claims})
        self.checkpoint.write_bytes(checkpoint_to_bytes(held, BOOT))

    def __call__(self, *arguments: str) -> Done:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOST_ROOT", str(self.host))
            patch.setattr(command, "CONFIG", self.config)
            try:
                code = cli.main(["topology", *arguments])
            except SystemExit as error:
                code = int(str(error.code))
        return Done(code, *self._capsys.readouterr())

    def json(self) -> Any:
        done = self("-o", "json")
        assert done.code == 0
        return json.loads(done.out)


def drawer(directory: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Drawer]:
    """For a fixture: the command, on the node in a box; the log is ours again behind it."""
    yield Drawer(capsys, directory)
    logger.remove()
    logger.add(sys.__stderr__)  # type: ignore[arg-type]  # it is there


def on_a_terminal(topology: Drawer, columns: int = 80, **environment: str) -> str:
    """What the command prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "HOST_ROOT": str(topology.host), "COLUMNS": str(columns), "TERM": "xterm", **environment}
    arguments = [sys.executable, "-m", "nri_cpu", "topology", "--config", str(topology.config)]
    with subprocess.Popen(arguments, stdout=theirs, env=env) as process:
        os.close(theirs)
        parts = []
        while part := _read(ours):
            parts.append(part)
        assert process.wait(30) == 0
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""

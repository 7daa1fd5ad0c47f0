"""The two sides of the bench: nri-cpu, whose claims come from a checkpoint, and the Go floor, which believes env."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from nri_cpu.checkpoint.codec import checkpoint_to_bytes
from nri_cpu.checkpoint.files import replace
from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord
from nri_cpu.cpuset import EMPTY, CPUSet
from tests.bench import proc
from tests.bench.figures import OURS
from tests.nri_runtime.build import programs
from tests.nri_runtime.driver import NothingCame, NriRuntime
from tests.nri_runtime.plugins import Plugin

CPUS = 512
BOOT = "00000000-1111-2222-3333-444444444444"


class Side(Protocol):
    """A plugin of which hooks are timed."""

    name: str

    def command(self, runtime: NriRuntime) -> Sequence[str | Path]: ...

    def environment(self) -> dict[str, str]: ...

    def prepare(self, claims: Sequence[ClaimRecord]) -> None:
        """From now on these are the prepared claims."""


class Floor:
    """The Go plugin."""

    name = "Go floor"

    def command(self, runtime: NriRuntime) -> Sequence[str | Path]:
        return [programs(runtime.version).floor, f"-socket={runtime.socket}", f"-cpus=0-{CPUS - 1}"]

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def prepare(self, claims: Sequence[ClaimRecord]) -> None:
        """It learns of a claim from the env of a container."""


class Ours:
    """nri-cpu, on a machine of 512 CPUs that is made of two files."""

    name = OURS

    def __init__(self, directory: Path) -> None:
        self.host = directory / "host"
        for path, text in {
            "sys/devices/system/cpu/online": f"0-{CPUS - 1}\n",
            "proc/sys/kernel/random/boot_id": f"{BOOT}\n",
        }.items():
            file = self.host / path
            file.parent.mkdir(parents=True)
            file.write_text(text)
        self._checkpoint = directory / "state" / "checkpoint.json"
        self._checkpoint.parent.mkdir(mode=0o700)
        self.prepare([])

    def command(self, runtime: NriRuntime) -> Sequence[str | Path]:
        return [
            Path(sys.executable).with_name("nri-cpu"),
            "run",
            f"--socket={runtime.socket}",
            f"--checkpoint={self._checkpoint}",
        ]

    def environment(self) -> dict[str, str]:
        return os.environ | {"HOST_ROOT": str(self.host)}

    def prepare(self, claims: Sequence[ClaimRecord]) -> None:
        checkpoint = Checkpoint(reserved=EMPTY, claims={claim.uid: claim for claim in claims})
        replace(self._checkpoint, checkpoint_to_bytes(checkpoint, BOOT))


class Running:
    """A side's plugin, synchronized with a runtime of its own that has so many pods and containers."""

    def __init__(self, side: Side, runtime: NriRuntime, plugin: Plugin, started: int) -> None:
        self.side = side
        self.runtime = runtime
        self._plugin = plugin
        try:
            synchronized = runtime.wait_synchronized()
        except NothingCame as error:
            raise NothingCame(f"{error}; {side.name} said: {plugin.said or 'nothing'}") from None
        (ready,) = runtime.events("plugin_ready")
        self.n_updates: int = synchronized.fields["n_updates"]
        self.synchronize_ms: float = synchronized.fields["elapsed_ns"] / 1e6
        self.start_ms: float = (ready.fields["t"] - started) / 1e6

    def memory_mib(self) -> float:
        """Resident memory of the plugin, of all of its processes (there is one)."""
        return proc.memory_mib(self._plugin.process.pid)

    def threads(self) -> int:
        return proc.threads(self._plugin.process.pid)


@contextmanager
def running(side: Side, version: str, pods: int, containers: int) -> Iterator[Running]:
    """Start a runtime with that many made-up pods, of that many containers each, and the side's plugin in it."""
    side.prepare([])
    with NriRuntime(version, pods=pods, containers=containers, id_bytes=64) as runtime:
        started = time.time_ns()
        with Plugin(side.command(runtime), side.environment()) as plugin:
            yield Running(side, runtime, plugin, started)


def claim(number: int) -> ClaimRecord:
    """A claim for four CPUs, as two cores of two threads; claims with numbers next to each other are disjoint."""
    first = 2 * (number % (CPUS // 4))
    cpus = CPUSet([first, first + 1, first + CPUS // 2, first + CPUS // 2 + 1])
    return ClaimRecord(
        uid=str(uuid.uuid4()),
        namespace="bench",
        name=f"claim-{number}",
        pod_uids=(f"uid-claimed-{number}",),
        cpus=cpus,
        preparation=uuid.uuid4().hex,
        prepared_at="2026-01-01T00:00:00Z",
        devices=(),
    )

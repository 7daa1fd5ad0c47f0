"""nri-cpu as a process, with the files that it lives on: a list of CPUs on line, a checkpoint that the test writes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hack.wait import wait_until
from nri_cpu.checkpoint.codec import checkpoint_to_bytes
from nri_cpu.checkpoint.files import ensure_directory, write_durably
from nri_cpu.checkpoint.locks import held_by_other
from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord
from nri_cpu.cpuset import CPUSet
from tests.nri_runtime.driver import NriRuntime
from tests.nri_runtime.plugins import Plugin


class Machine:
    """A directory with /sys and the files of both processes."""

    def __init__(self, directory: Path, online: str = "0-15", reserved: str = "") -> None:
        self.root = directory
        self.checkpoint = directory / "state" / "checkpoint.json"
        self.reserved = CPUSet.parse(reserved)
        self.claims: dict[str, ClaimRecord] = {}
        (directory / "sys/devices/system/cpu").mkdir(parents=True)
        (directory / "proc/sys/kernel/random").mkdir(parents=True)
        (directory / "proc/sys/kernel/random/boot_id").write_text("11111111-2222-4333-8444-555555555555\n")
        self.set_online(online)
        ensure_directory(self.checkpoint.parent)
        self.write()

    def set_online(self, cpus: str) -> None:
        (self.root / "sys/devices/system/cpu/online").write_text(f"{cpus}\n")

    def write(self) -> None:
        raw = checkpoint_to_bytes(Checkpoint(self.reserved, dict(self.claims)), "11111111-2222-4333-8444-555555555555")
        write_durably(self.checkpoint, raw)

    def prepare(self, claim: ClaimRecord) -> ClaimRecord:
        """Prepare as dra-cpu does; `record` of tests.unit.policy.desk makes claims."""
        self.claims[claim.uid] = claim
        self.write()
        return claim

    def unprepare(self, claim: ClaimRecord) -> None:
        del self.claims[claim.uid]
        self.write()

    @property
    def plugin_is_in_the_runtime(self) -> bool:
        return held_by_other(self.checkpoint.with_name("synchronized.lock"))

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "nri_cpu", "run", "--checkpoint", str(self.checkpoint), *arguments]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "HOST_ROOT": str(self.root)}

    def start_plugin(self, socket: Path) -> Plugin:
        return Plugin(self.command("--socket", str(socket)), self.environment())

    def join(self, runtime: NriRuntime) -> Plugin:
        """Start the plugin and wait until the runtime asks it."""
        mark = runtime.mark()
        plugin = self.start_plugin(runtime.socket)
        try:
            runtime.wait_synchronized(after=mark)
            wait_until("synchronized.lock", lambda: self.plugin_is_in_the_runtime)
        except BaseException as error:
            error.add_note(f"the plugin said: {plugin.said}")
            plugin.kill()
            raise
        return plugin

"""QEMU's monitor protocol, spoken over a socket that QEMU was started with (QEMU: docs/interop/qmp-spec.rst)."""

from __future__ import annotations

import json
import re
import shlex
import socket
import time
from typing import Any

from hack.node.errors import QemuError

# A forwarded port of "info usernet": the port that was bound on the host stands before the guest's address.
_FORWARD = re.compile(r"TCP\[HOST_FORWARD\] +\d+ +127\.0\.0\.1 +(\d+)")


class Monitor:
    """One monitor connection. Every method raises QemuError when QEMU refuses, or has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def open(self) -> None:
        """Read the greeting and leave negotiation mode."""
        self._next()
        self.execute("qmp_capabilities")

    def close(self) -> None:
        self._lines.close()
        self._connection.close()

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run one command and return what it returns; events that come meanwhile are dropped."""
        message = json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"
        try:
            self._connection.sendall(message)
        except OSError as error:
            raise QemuError(f"QEMU is gone: {command}: {error}") from error
        while "event" in (answer := self._next()):
            pass
        if "error" in answer:
            raise QemuError(f"QEMU refused {command}: {answer['error'].get('desc')}")
        return answer.get("return")

    def wait_for_end(self) -> None:
        """Return when QEMU has ended."""
        try:
            while True:
                self._next()
        except QemuError:
            pass

    def forwarded_port(self) -> int:
        """The loopback port that the host's kernel chose for the one forwarded port."""
        text = self.execute("human-monitor-command", **{"command-line": "info usernet"})
        found = _FORWARD.search(text)
        if not found or found[1] == "0":
            raise QemuError(f"QEMU does not tell which port it forwards: {text!r}")
        return int(found[1])

    def load(self, path: str) -> None:
        """Load a frozen state into a machine that was started for it, and let it run."""
        self._share_memory_files()
        self.execute("migrate-incoming", uri=f"exec:cat {shlex.quote(path)}")
        self._wait_for_migration()
        self.execute("cont")

    def save(self, path: str) -> None:
        """Freeze the machine and write its state; its memory stays in the files it lies in. QEMU ends."""
        self._share_memory_files()
        self.execute("stop")
        self.execute("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        self.execute("migrate", uri=f"exec:cat > {shlex.quote(path)}")
        self._wait_for_migration()
        self.execute("quit")
        self.wait_for_end()

    def _share_memory_files(self) -> None:
        self.execute("migrate-set-capabilities", capabilities=[{"capability": "x-ignore-shared", "state": True}])

    def _wait_for_migration(self) -> None:
        while (status := self.execute("query-migrate").get("status")) != "completed":
            if status in ("failed", "cancelled"):
                raise QemuError("QEMU could not write or read the machine's state")
            time.sleep(0.01)

    def _next(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except OSError as error:
            raise QemuError(f"QEMU is gone: {error}") from error
        if not line:
            raise QemuError("QEMU has ended")
        message: dict[str, Any] = json.loads(line)
        return message

"""`dra-cpu run` as a process, for tests."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra.kubelet import dra_pb2 as pb
from dra.kubelet import health_pb2
from hack.wait import wait_until
from nri_cpu.checkpoint.files import read_checkpoint
from nri_cpu.cpuset import CPUSet
from tests.protocol.fake_kubelet import HEALTH
from tests.unit.dra.apiserver import FakeApiServer
from tests.unit.dra.manifests import NODE
from tests.unit.topology.machines import box, write_sysfs

# Of two pods.
ONE, OTHER = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
NO_PLUGIN = "requirePlugin: false\n"
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node"


class Running:
    """A dra-cpu that runs: what it has logged so far, and its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def said(self, words: str, since: int = 0) -> str:
        """The first line after `since` lines with these words, once there is one; fails when it ends before."""

        def found() -> str | None:
            line = next((line for line in self.lines[since:] if words in line), None)
            if not line and not self._reader.is_alive():
                pytest.fail(f"no {words!r} in {self.text}")
            return line

        return wait_until(words, found)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code after this signal."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """The exit code, once it has ended by itself."""
        code = self.process.wait(30)
        self._reader.join()
        return code

    def _read(self) -> None:
        assert self.process.stderr
        with self.process.stderr as log:
            self.lines.extend(log)


class Companion:
    """A process with a machine, a kubelet root and directories of its own."""

    def __init__(self, directory: Path, kubelet_root: Path) -> None:
        self.directory = directory
        self.kubelet_root = kubelet_root
        self.checkpoint = directory / "state/checkpoint.json"
        self.cdi = directory / "cdi"
        self.claims = directory / "claims"
        self.socket = kubelet_root / "plugins/dra.cpu/dra.sock"
        self.claims.mkdir()
        self.host = write_sysfs(directory / "host", box())
        self.extra_path = ""

    def arguments(self, *more: str) -> list[str]:
        return [
            "run",
            *("--kubelet-root-dir", str(self.kubelet_root), "--hostname-override", NODE),
            *("--checkpoint", str(self.checkpoint), "--cdi-dir", str(self.cdi), *more),
        ]

    @contextlib.contextmanager
    def running(self, *more: str) -> Iterator[subprocess.Popen[str]]:
        process = self._start(*(more or ("--claims-dir", str(self.claims))))
        try:
            assert process.stderr
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "serving the kubelet" in line:
                    break
            else:
                pytest.fail("".join(lines))
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextlib.contextmanager
    def started(self, *more: str, before: str = "") -> Iterator[Running]:
        """A dra-cpu that may not serve yet; `before`: Python that runs in it first, to break it."""
        process = self._start(*more, before=before)
        running = Running(process)
        try:
            yield running
        finally:
            process.kill()
            running.ended()

    def _start(self, *more: str, before: str = "") -> subprocess.Popen[str]:
        environment = {"HOST_ROOT": str(self.host), "PYTHONPATH": f"{self.extra_path}:{Path.cwd()}"}
        script = f"{before}\nimport sys\nfrom dra.cli import main\nsys.exit(main())"
        command = [sys.executable, "-c", script, *self.arguments(*more)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)

    def call(self, method: str, *uids: str, name: str = "one", timeout: float = 30) -> Any:
        kind = f"Node{method}Resources"
        request = getattr(pb, f"{kind}Request")(claims=[pb.Claim(namespace="default", uid=u, name=name) for u in uids])
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            raw: Any = channel.unary_unary(f"{SERVICE}{method}Resources")
            answer = raw(request.SerializeToString(), timeout=timeout, wait_for_ready=True)
        return getattr(pb, f"{kind}Response").FromString(answer).claims

    def prepared(self) -> dict[str, CPUSet]:
        return {key: record.cpus for key, record in read_checkpoint(self.checkpoint)[0].claims.items()}


def arguments(companion: Companion, server: FakeApiServer) -> tuple[str, ...]:
    config = companion.directory / "config.yaml"
    config.write_text(NO_PLUGIN)
    return "--kubeconfig", str(server.kubeconfig(companion.directory)), "--config", str(config)


def sockets(companion: Companion) -> list[str]:
    return sorted(path.name for path in companion.kubelet_root.rglob("*") if path.is_socket())


class HealthStream:
    """What a kubelet would know: the last report by device."""

    def __init__(self, channel: grpc.Channel, version: str) -> None:
        raw: Any = channel.unary_stream(HEALTH[version])
        self._call = raw(b"", wait_for_ready=True)
        self.reports: list[dict[str, tuple[str, str]]] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for raw in self._call:
                report = health_pb2.NodeWatchResourcesResponse.FromString(raw)
                self.reports.append(
                    {
                        device.device.device_name: (health_pb2.HealthStatus.Name(device.health), device.message)
                        for device in report.devices
                    }
                )
        self.ended.set()

    def close(self) -> None:
        self._call.cancel()
        self._thread.join()

    def health(self, device: str) -> str:
        return self.reports[-1][device][0] if self.reports and device in self.reports[-1] else ""


@contextlib.contextmanager
def health(socket: Path, version: str = "v1.DRAResourceHealth") -> Iterator[HealthStream]:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stream = HealthStream(channel, version)
        try:
            yield stream
        finally:
            stream.close()


def put_off_line(companion: Companion, cpus: str) -> None:
    """These CPUs of the node in a box, and no others, are off line from now on."""
    gone = CPUSet.parse(cpus)
    files = companion.host / "sys/devices/system/cpu"
    for cpu in range(16):
        (files / f"cpu{cpu}/online").write_text("0\n" if cpu in gone else "1\n")
    (files / "online").write_text(f"{CPUSet(range(16)) - gone}\n")

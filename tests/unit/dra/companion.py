"""`dra-cpu run` as a process, for tests."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra.kubelet import dra_pb2 as pb
from nri_cpu.checkpoint.files import read_checkpoint
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.manifests import NODE
from tests.unit.topology.machines import box, write_sysfs

SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node"


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
        arguments = self.arguments(*(more or ("--claims-dir", str(self.claims))))
        environment = {"HOST_ROOT": str(self.host), "PYTHONPATH": f"{self.extra_path}:{Path.cwd()}"}
        command = [sys.executable, "-m", "dra", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
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

    def call(self, method: str, *uids: str, name: str = "one") -> Any:
        kind = f"Node{method}Resources"
        request = getattr(pb, f"{kind}Request")(claims=[pb.Claim(namespace="default", uid=u, name=name) for u in uids])
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            raw: Any = channel.unary_unary(f"{SERVICE}{method}Resources")
            answer = raw(request.SerializeToString(), timeout=30, wait_for_ready=True)
        return getattr(pb, f"{kind}Response").FromString(answer).claims

    def prepared(self) -> dict[str, CPUSet]:
        return {key: record.cpus for key, record in read_checkpoint(self.checkpoint)[0].claims.items()}

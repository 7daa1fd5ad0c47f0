"""A dra-cpu process as the kubelet sees it, over its socket: how long its calls take, the disk alone beside them.

The disk alone is one file of the checkpoint's size written, synced and renamed, with its directory: what a Prepare
that is durable can't do without.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import grpc

from dra.kubelet.dra_pb2 import (
    Claim,
    NodePrepareResourcesRequest,
    NodePrepareResourcesResponse,
    NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
)
from hack.wait import wait_until
from nri_cpu.checkpoint.codec import checkpoint_to_bytes
from nri_cpu.checkpoint.files import write_durably
from nri_cpu.checkpoint.model import Checkpoint
from nri_cpu.cpuset import EMPTY
from tests.bench import proc
from tests.bench.claims import NODE
from tests.bench.sides import BOOT, claim
from tests.nri_runtime.driver import LIMIT
from tests.nri_runtime.plugins import Plugin

_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"

# How long the kubelet waits for an answer. Seconds.
_KUBELET_LIMIT = 45.0

# The claims of the bench take every CPU.
_CONFIG = f"""\
apiVersion: v1alpha1
cpuDeviceMode: grouped
groupBy: numanode
hostnameOverride: {NODE}
minSharedCPUs: 0
requirePlugin: false
"""

_Answer: TypeAlias = NodePrepareResourcesResponse | NodeUnprepareResourcesResponse


class NotPreparedError(Exception):
    """dra-cpu did not do what is being timed, so the time means nothing."""


class Companion:
    """A dra-cpu that serves. `started`: when its process was, by time.perf_counter."""

    def __init__(self, process: Plugin, started: float, channel: grpc.Channel) -> None:
        self.started = started
        self._process = process
        self._prepare = channel.unary_unary(
            f"{_SERVICE}/NodePrepareResources",
            NodePrepareResourcesRequest.SerializeToString,
            NodePrepareResourcesResponse.FromString,
        )
        self._unprepare = channel.unary_unary(
            f"{_SERVICE}/NodeUnprepareResources",
            NodeUnprepareResourcesRequest.SerializeToString,
            NodeUnprepareResourcesResponse.FromString,
        )

    def prepare(self, claims: Sequence[Claim]) -> float:
        """Milliseconds of one call with these claims."""
        begin = time.perf_counter()
        answer = self._prepare(NodePrepareResourcesRequest(claims=claims), timeout=_KUBELET_LIMIT)
        took = (time.perf_counter() - begin) * 1e3
        _check(claims, answer)
        return took

    def unprepare(self, claims: Sequence[Claim]) -> float:
        """Milliseconds of one call with these claims."""
        begin = time.perf_counter()
        answer = self._unprepare(NodeUnprepareResourcesRequest(claims=claims), timeout=_KUBELET_LIMIT)
        took = (time.perf_counter() - begin) * 1e3
        _check(claims, answer)
        return took

    def prepare_at_once(self, claims: Sequence[Claim]) -> float:
        """Seconds until all are prepared, with a call for each, all of them at the same time over one connection: as
        the kubelet does it, which has a thread for each pod."""
        begin = time.perf_counter()
        calls = [
            self._prepare.future(NodePrepareResourcesRequest(claims=[each]), timeout=_KUBELET_LIMIT) for each in claims
        ]
        answers = [call.result() for call in calls]
        took = time.perf_counter() - begin
        for each, answer in zip(claims, answers, strict=True):
            _check([each], answer)
        return took

    def one_by_one(self, claims: Sequence[Claim], cycles: int) -> tuple[list[float], list[float]]:
        """Milliseconds of each Prepare and Unprepare, of one claim after the other."""
        times = []
        for number in range(cycles):
            one = [claims[number % len(claims)]]
            times.append((self.prepare(one), self.unprepare(one)))
        return [prepare for prepare, _ in times], [unprepare for _, unprepare in times]

    def memory_mib(self) -> float:
        return proc.memory_mib(self._process.process.pid)

    def threads(self) -> int:
        return proc.threads(self._process.process.pid)


@contextmanager
def companion(directory: Path, host: Path, arguments: Sequence[str]) -> Iterator[Companion]:
    """Start dra-cpu with `arguments`, its files and the kubelet's root in `directory`, on the machine below `host`.

    What an earlier one left there is found again. No plugin is needed.
    """
    directory.mkdir(exist_ok=True)
    config = directory / "config.yaml"
    config.write_text(_CONFIG)
    command: list[str | Path] = [
        Path(sys.executable).with_name("dra-cpu"),
        "run",
        f"--config={config}",
        f"--kubelet-root-dir={directory / 'kubelet'}",
        f"--checkpoint={directory / 'state' / 'checkpoint.json'}",
        f"--cdi-dir={directory / 'cdi'}",
        *arguments,
    ]
    socket = directory / "kubelet" / "plugins" / "dra.cpu" / "dra.sock"
    started = time.perf_counter()
    with Plugin(command, os.environ | {"HOST_ROOT": str(host)}) as process:
        wait_until("dra-cpu's socket", lambda: socket.exists() or process.process.poll() is not None, LIMIT)
        if process.process.poll() is not None:
            raise NotPreparedError(f"dra-cpu has ended; it said: {process.said}")
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            try:
                grpc.channel_ready_future(channel).result(LIMIT)
            except grpc.FutureTimeoutError:
                raise NotPreparedError(f"dra-cpu does not serve; it said: {process.said}") from None
            yield Companion(process, started, channel)
        if code := process.terminate():
            raise NotPreparedError(f"dra-cpu ended with {code}; it said: {process.said}")


def disk(directory: Path, cycles: int, claims: int = 1) -> list[float]:
    """Milliseconds of each durable write of a checkpoint with so many claims."""
    records = {(one := claim(number)).uid: one for number in range(claims)}
    raw = checkpoint_to_bytes(Checkpoint(reserved=EMPTY, claims=records), BOOT)
    times = []
    for _ in range(cycles):
        begin = time.perf_counter()
        write_durably(directory / "durable", raw)
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def _check(claims: Sequence[Claim], answer: _Answer) -> None:
    for each in claims:
        if each.uid not in answer.claims:
            raise NotPreparedError(f"dra-cpu said nothing of claim {each.name}")
        said = answer.claims[each.uid]
        if said.error or (isinstance(answer, NodePrepareResourcesResponse) and not answer.claims[each.uid].devices):
            raise NotPreparedError(f"claim {each.name}: {said.error or 'no devices'}")

"""Times of dra-cpu's Prepare and Unprepare as the kubelet sees them: over gRPC, claims from files, checkpoint durable.

Beside them stands the disk alone: one file of a checkpoint's size written, synced and renamed, with its directory.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
from tests.bench.sides import BOOT, claim
from tests.nri_runtime.driver import LIMIT
from tests.nri_runtime.plugins import Plugin

NODE = "bench"
_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"

_CONFIG = f"""\
apiVersion: v1alpha1
cpuDeviceMode: grouped
groupBy: numanode
hostnameOverride: {NODE}
requirePlugin: false
"""


class Companion:
    """A dra-cpu that serves, as a kubelet sees it."""

    def __init__(self, channel: grpc.Channel, claims: Path) -> None:
        self.claims = claims
        self.prepare = channel.unary_unary(
            f"{_SERVICE}/NodePrepareResources",
            NodePrepareResourcesRequest.SerializeToString,
            NodePrepareResourcesResponse.FromString,
        )
        self.unprepare = channel.unary_unary(
            f"{_SERVICE}/NodeUnprepareResources",
            NodeUnprepareResourcesRequest.SerializeToString,
            NodeUnprepareResourcesResponse.FromString,
        )


@contextmanager
def companion(directory: Path, host: Path) -> Iterator[Companion]:
    """Start dra-cpu, its files in `directory`, on the machine below `host`: claims from files, no plugin needed."""
    claims = directory / "claims"
    claims.mkdir(parents=True)
    config = directory / "config.yaml"
    config.write_text(_CONFIG)
    command: list[str | Path] = [
        Path(sys.executable).with_name("dra-cpu"),
        "run",
        f"--config={config}",
        f"--claims-dir={claims}",
        f"--kubelet-root-dir={directory / 'kubelet'}",
        f"--checkpoint={directory / 'state' / 'checkpoint.json'}",
        f"--cdi-dir={directory / 'cdi'}",
    ]
    socket = directory / "kubelet" / "plugins" / "dra.cpu" / "dra.sock"
    with Plugin(command, os.environ | {"HOST_ROOT": str(host)}) as process:
        wait_until("dra-cpu's socket", lambda: socket.exists() or process.process.poll() is not None, LIMIT)
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            try:
                grpc.channel_ready_future(channel).result(LIMIT)
            except grpc.FutureTimeoutError:
                raise RuntimeError(f"dra-cpu does not serve; it said: {process.said}") from None
            yield Companion(channel, claims)


def prepare_and_unprepare(companion: Companion, cycles: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each NodePrepareResources and NodeUnprepareResources of one fresh claim of four CPUs."""
    prepares, unprepares = [], []
    for number in range(cycles):
        ref = Claim(namespace="bench", uid=str(uuid.uuid4()), name=f"claim-{number}")
        manifest = companion.claims / "claim.json"
        manifest.write_text(json.dumps(_manifest(ref)))
        begin = time.perf_counter()
        prepared = companion.prepare(NodePrepareResourcesRequest(claims=[ref]), timeout=LIMIT)
        prepares.append((time.perf_counter() - begin) * 1e3)
        answer = prepared.claims[ref.uid]
        if answer.error or not answer.devices:
            raise RuntimeError(f"dra-cpu did not prepare a claim: {answer.error or 'no devices'}")
        begin = time.perf_counter()
        unprepared = companion.unprepare(NodeUnprepareResourcesRequest(claims=[ref]), timeout=LIMIT)
        unprepares.append((time.perf_counter() - begin) * 1e3)
        if unprepared.claims[ref.uid].error:
            raise RuntimeError(f"dra-cpu did not unprepare a claim: {unprepared.claims[ref.uid].error}")
    return prepares, unprepares


def disk(directory: Path, cycles: int) -> list[float]:
    """Milliseconds of each durable write of a checkpoint with one claim."""
    raw = checkpoint_to_bytes(Checkpoint(reserved=EMPTY, claims={(one := claim(0)).uid: one}), BOOT)
    times = []
    for _ in range(cycles):
        begin = time.perf_counter()
        write_durably(directory / "durable", raw)
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def _manifest(ref: Claim) -> dict[str, object]:
    result = {"request": "cpus", "driver": "dra.cpu", "pool": NODE, "device": "cpudevnuma000"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
        "status": {"allocation": {"devices": {"results": [result | {"consumedCapacity": {"dra.cpu/cpu": "4"}}]}}},
    }

"""The product on a node in a box: both processes, claims as files, and what is true there by /proc and cgroups."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from dra.kubelet import dra_pb2 as pb
from hack.node.access import Box, Daemon
from hack.node.cri.client import Container, Cri
from hack.node.errors import ChannelError, NodeError
from hack.wait import wait_until
from nri_cpu.checkpoint.codec import checkpoint_from_bytes
from nri_cpu.checkpoint.locks import SYNCHRONIZED
from nri_cpu.checkpoint.model import Checkpoint
from nri_cpu.cpuset import CPUSet

STATE = "/var/lib/dra-cpu"
CHECKPOINT = f"{STATE}/checkpoint.json"
CLAIMS = "/etc/dra-cpu/claims"
DRA_SOCKET = "/var/lib/kubelet/plugins/dra.cpu/dra.sock"
CDI = "/var/run/cdi"

# Python starts slowly under emulation, the more so on a busy machine. Seconds.
_START_LIMIT = 120.0


class PrepareError(NodeError):
    """dra-cpu's own words about a claim that it did not prepare, or not unprepare."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim as the scheduler leaves it: so many CPUs of one NUMA node's device."""

    name: str
    device: str
    cpus: int
    uid: str
    namespace: str = "default"

    def manifest(self, node_name: str) -> str:
        request = {"name": "cpus", "exactly": {"deviceClassName": "dra.cpu"}}
        result = {
            "request": "cpus",
            "driver": "dra.cpu",
            "pool": node_name,
            "device": self.device,
            "consumedCapacity": {"dra.cpu/cpu": str(self.cpus)},
            "shareID": str(uuid.uuid5(uuid.UUID(self.uid), "share")),
        }
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": self.name, "namespace": self.namespace, "uid": self.uid},
            "spec": {"devices": {"requests": [request]}},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
        return json.dumps(claim, indent=2)


class Product:
    """dra-cpu and nri-cpu in a box. The packages must have been installed there.

    `kubeconfig`: a file in the box; claims come from that API server, and otherwise from files.
    """

    def __init__(self, box: Box, kubeconfig: str = "") -> None:
        self.box = box
        self.kubeconfig = kubeconfig
        self.plugin: Daemon | None = None
        self.companion: Daemon | None = None
        self._name = box.run("hostname").text
        self.box.run(["mkdir", "-p", CLAIMS])

    # Processes

    def start_companion(self, *arguments: str) -> Daemon:
        """dra-cpu; returns when it takes connections."""
        source = ("--kubeconfig", self.kubeconfig) if self.kubeconfig else ("--claims-dir", CLAIMS)
        command = ["dra-cpu", "run", *source, *arguments]
        self.companion = self.box.daemon("dra-cpu", command)
        self._wait(self.companion, "dra-cpu's socket", self.companion_serves)
        return self.companion

    def start_plugin(self, *arguments: str) -> Daemon:
        """nri-cpu, connecting to the runtime's socket; returns when it is in the runtime."""
        self.plugin = self.box.daemon("nri-cpu", ["nri-cpu", "run", *arguments])
        self._wait(self.plugin, "nri-cpu in the runtime", self.plugin_is_in_the_runtime)
        return self.plugin

    def companion_serves(self) -> bool:
        """Whether somebody takes connections at its socket, whose file outlives a killed dra-cpu and a reboot."""
        try:
            self.box.channel.connect(DRA_SOCKET).close()
        except ChannelError:
            return False
        return True

    def plugin_is_in_the_runtime(self) -> bool:
        """By the lock that nri-cpu holds while it is."""
        lock = f"{STATE}/{SYNCHRONIZED}"
        return self.box.run(f"test -e {lock} && ! flock -n -s {lock} true", check=False).code == 0

    def wait_for_plugin(self) -> None:
        """Wait until nri-cpu is in the runtime, whoever started it."""
        wait_until("nri-cpu in the runtime", self.plugin_is_in_the_runtime, _START_LIMIT)

    def _wait(self, daemon: Daemon, what: str, happened: Callable[[], bool]) -> None:
        def or_dead() -> bool:
            return happened() or not daemon.alive()

        wait_until(what, or_dead, _START_LIMIT)
        if not daemon.alive():
            raise NodeError(f"{daemon.name} has ended: {daemon.output()[-1000:]}")

    # Claims

    def claim(self, name: str, cpus: int, device: str = "cpudevnuma000") -> Claim:
        """A new claim, allocated, as a file that dra-cpu reads."""
        claim = Claim(name, device, cpus, str(uuid.uuid4()))
        self.box.write(f"{CLAIMS}/{name}.json", claim.manifest(self._name))
        return claim

    def prepare(self, claim: Claim) -> tuple[str, ...]:
        """NodePrepareResources as by the kubelet; the CDI devices. Raises PrepareError, or NodeError without answer."""
        with self._kubelet() as channel:
            asked = pb.NodePrepareResourcesRequest(claims=[_claim(claim)])
            got: pb.NodePrepareResourcesResponse = call(
                channel, "NodePrepareResources", asked, pb.NodePrepareResourcesResponse
            )
        answer = got.claims[claim.uid]
        if answer.error:
            raise PrepareError(answer.error)
        return tuple(dict.fromkeys(name for device in answer.devices for name in device.cdi_device_ids))

    def unprepare(self, claim: Claim) -> None:
        """NodeUnprepareResources. Raises PrepareError, or NodeError without answer."""
        with self._kubelet() as channel:
            asked = pb.NodeUnprepareResourcesRequest(claims=[_claim(claim)])
            got: pb.NodeUnprepareResourcesResponse = call(
                channel, "NodeUnprepareResources", asked, pb.NodeUnprepareResourcesResponse
            )
        if got.claims[claim.uid].error:
            raise PrepareError(got.claims[claim.uid].error)

    @contextmanager
    def _kubelet(self) -> Iterator[grpc.Channel]:
        with self.box.serve(DRA_SOCKET) as path:
            options = [("grpc.default_authority", "localhost")]
            channel = grpc.insecure_channel(f"unix:{path}", options=options)
            try:
                yield channel
            finally:
                channel.close()

    # What is true

    def checkpoint(self) -> Checkpoint:
        return checkpoint_from_bytes(self.box.read(CHECKPOINT))[0]

    def cpus_of(self, claim: Claim) -> CPUSet:
        """The claim's CPUs by the checkpoint; raises KeyError when it isn't prepared."""
        return self.checkpoint().claims[claim.uid].cpus

    def allowed(self, cri: Cri, containers: Sequence[Container]) -> dict[str, CPUSet]:
        """Where each container's first process may run, by the kernel: /proc/<pid>/status. By container id."""
        pids = [cri.pid(container) for container in containers]
        files = " ".join(f"/proc/{pid}/status" for pid in pids)
        lines = self.box.run(f"grep -h ^Cpus_allowed_list: {files}").text.splitlines()
        return {
            container.id: CPUSet.parse(line.split(":", 1)[1]) for container, line in zip(containers, lines, strict=True)
        }

    def cgroup_cpus(self, pid: int) -> CPUSet:
        """cpuset.cpus.effective of the process's cgroup."""
        path = f"/sys/fs/cgroup$(cut -d: -f3 /proc/{pid}/cgroup)/cpuset.cpus.effective"
        return CPUSet.parse(self.box.run(f"cat {path}").text)


def first_instruction(cri: Cri, container: Container) -> CPUSet:
    """Where the container's program found that it may run, before it did anything else."""

    def lines() -> list[str]:
        return [line for line in cri.logs(container).splitlines() if line.startswith("Cpus_allowed_list:")]

    wait_until(f"the first words of container {container.name}", lambda: bool(lines()), 60)
    return CPUSet.parse(lines()[0].split(":", 1)[1])


def _claim(claim: Claim) -> pb.Claim:
    return pb.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)


def call(channel: grpc.Channel, method: str, request: Any, reply: Any) -> Any:
    """A call of the kubelet to dra-cpu; raises NodeError when it is not answered."""
    stub = channel.unary_unary(
        f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=reply.FromString,
    )
    try:
        return stub(request, timeout=60)
    except grpc.RpcError as error:
        raise NodeError(f"dra-cpu has not answered {method}: {error.code().name}: {error.details()}") from error

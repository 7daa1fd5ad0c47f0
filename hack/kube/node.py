"""A node of the cluster: a box with a kubelet that joins the control plane, and the product on it."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from hack.kube import deploy
from hack.kube.api import Api, Object
from hack.kube.control_plane import SERVICE_ADDRESS
from hack.kube.errors import ClusterError
from hack.node.access import CONTAINERD, Daemon
from hack.node.node import Node
from hack.product import Product
from hack.wait import wait_until

KUBELET_PORT = 10250

# Of every box, in QEMU's user network.
_ADDRESS = "10.0.2.15"

_DIRECTORY = "/etc/kubernetes"
# The kubelet's own.
KUBECONFIG = f"{_DIRECTORY}/kubelet.kubeconfig"
_CONFIG = f"{_DIRECTORY}/kubelet.yaml"

# As for containerd (hack/node/guest/run-containerd).
_ENVIRONMENT = {"GOMAXPROCS": "4"}

# Under emulation a kubelet takes ten to thirty seconds until its node is ready, and more on a busy machine.
_LIMIT = 180.0


class KubeNode:
    """A box that is up, and its node once `start_kubelet` was called. `files` are the node's certificate and key, and
    the authority's. What waits raises TimeoutError, all else NodeError."""

    def __init__(self, name: str, box: Node, api: Api, gates: Mapping[str, bool]) -> None:
        self.name = name
        self.box = box
        self.kubelet: Daemon | None = None
        self._api = api
        self._gates = gates
        self._started = 0.0
        box.write("/etc/hostname", f"{name}\n")
        box.run(["hostname", name])
        self.product = Product(box, kubeconfig=deploy.KUBECONFIG)

    def install(self, kubeconfig: str, certificate: Path, key: Path, authority: Path) -> None:
        """Put the kubelet's credentials and configuration into the box."""
        self.box.write(KUBECONFIG, kubeconfig, 0o600)
        for name, path in (("node.crt", certificate), ("node.key", key), ("ca.crt", authority)):
            self.box.write(f"{_DIRECTORY}/{name}", path.read_bytes(), 0o600)
        self.box.write(_CONFIG, json.dumps(kubelet_configuration(self._gates)))

    def start_kubelet(self) -> Daemon:
        """Start it; wait_ready waits."""
        self._started = time.time()
        self.kubelet = self.box.daemon(
            "kubelet",
            [
                *("kubelet", f"--config={_CONFIG}", f"--kubeconfig={KUBECONFIG}"),
                *(f"--hostname-override={self.name}", f"--node-ip={_ADDRESS}"),
            ],
            _ENVIRONMENT,
        )
        return self.kubelet

    def stop_kubelet(self, signal_number: int = signal.SIGTERM) -> None:
        """End the kubelet; containers go on."""
        if self.kubelet:
            self.kubelet.kill(signal_number)
            self.kubelet = None

    def wait_ready(self, limit: float = _LIMIT) -> Object:
        """Wait until the node is ready by the kubelet that was started last; the Node."""

        def now() -> bool:
            return self._renewed_since_start() or not self._alive()

        wait_until(f"the lease of node {self.name}", now, limit, pause=0.1)
        if not self._alive():
            said = self.kubelet.output()[-2000:] if self.kubelet else "not started"
            raise ClusterError(f"the kubelet of {self.name} has ended: {said}")
        return self._api.wait("Node", self.name, is_ready, limit=limit)

    def _alive(self) -> bool:
        return self.kubelet is not None and self.kubelet.alive()

    def _renewed_since_start(self) -> bool:
        """A node may be called ready by what an earlier kubelet told; only the living one renews the lease."""
        lease = self._api.find("Lease", self.name, "kube-node-lease")
        if lease is None:
            return False
        renewed = datetime.strptime(lease["spec"]["renewTime"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
        return renewed.timestamp() > self._started


def is_ready(node: Object) -> bool:
    """Whether the Node's condition Ready is True."""
    conditions = node["status"].get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def network(port: int) -> str:
    """Options of QEMU's user network: the API server's address in the box is joined to this loopback port, and is all
    that the box reaches."""
    relay = f"{sys.executable} -I -S {Path(__file__).with_name('relay.py')} {port}"
    return f"guestfwd=tcp:{SERVICE_ADDRESS}:443-cmd:{relay.replace(',', ',,')}"


def kubelet_configuration(gates: Mapping[str, bool]) -> Object:
    """KubeletConfiguration: as short periods as the emulated CPUs bear, nothing that the box has no program for."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
        "cgroupDriver": "cgroupfs",
        "port": KUBELET_PORT,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{_DIRECTORY}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{_DIRECTORY}/node.crt",
        "tlsPrivateKeyFile": f"{_DIRECTORY}/node.key",
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "5s",
        "volumeStatsAggPeriod": "-1s",
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "enforceNodeAllocatable": ["pods"],
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "50Mi"},
        "featureGates": dict(gates),
    }

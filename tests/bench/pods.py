"""How long a pod takes to run, with a claim and without one, on the same node of a cluster in a box, in turns.

The node is emulated, so all of it takes some ten times as long as on a machine; what counts is the difference. The
kubelet's own metrics say which part of it is its calls of dra-cpu.
"""

from __future__ import annotations

import http.client
import re
import ssl
import time
from statistics import median
from typing import Any

from dra.devices import DRIVER
from hack.kube.cluster import Cluster
from hack.kube.control_plane import ADMIN
from hack.kube.node import KUBELET_PORT
from hack.wait import wait_until
from tests.bench.figures import OURS, Figure, Rounds
from tests.cluster.manifests import container, pod, simple
from tests.cluster.stage import Stage

PLAIN = "without"
RUNNING = Figure("pod with a claim, from created to running", "s", PLAIN)
ADDED = Figure("what the claim adds", "s")
PREPARE = Figure("of it the kubelet's call of NodePrepareResources", "s")

_LIMIT = 180.0
_PAUSE = 0.02
_CPUS = 2


class Pods:
    """Rounds on a cluster of which the first node gets the product."""

    def __init__(self, cluster: Cluster, pairs: int) -> None:
        self._api = cluster.api
        self._pairs = pairs
        stage = Stage(cluster)
        stage.set_up()
        self._node = stage.node
        self._tls = ssl.create_default_context(cafile=str(cluster.directory / "certificates" / "ca.crt"))
        admin = cluster.directory / "certificates" / ADMIN
        self._tls.load_cert_chain(admin.with_suffix(".crt"), admin.with_suffix(".key"))
        self._number = 0
        self.rows = {figure: Rounds(figure) for figure in (RUNNING, ADDED, PREPARE)}
        self._claimed("warm-up")
        self._plain("warm-up")

    def round(self) -> None:
        """Pairs of pods, one after the other; each pair begins with the other kind."""
        before = self._calls()
        claimed, plain = [], []
        for _ in range(self._pairs):
            name = f"pod-{self._number}"
            if self._number % 2:
                claimed.append(self._claimed(name))
            plain.append(self._plain(name))
            if not self._number % 2:
                claimed.append(self._claimed(name))
            self._number += 1
        self.rows[RUNNING].add(OURS, median(claimed))
        self.rows[RUNNING].add(PLAIN, median(plain))
        self.rows[ADDED].add(OURS, median(claimed) - median(plain))
        self.rows[PREPARE].add(OURS, (self._calls() - before) / self._pairs)

    def _claimed(self, name: str) -> float:
        """Seconds of a pod with a claim that is there before it, not yet allocated."""
        claim, manifest = simple(name, _CPUS)
        self._api.create(claim)
        try:
            return self._run(manifest)
        finally:
            self._api.delete("ResourceClaim", name)
            self._api.wait_gone("ResourceClaim", name)

    def _plain(self, name: str) -> float:
        """Seconds of a pod that has nothing else different."""
        return self._run(pod(name, container("main")))

    def _run(self, manifest: dict[str, Any]) -> float:
        """Seconds from its creation until it runs; it is gone when this returns."""
        name = manifest["metadata"]["name"]

        def runs() -> bool:
            return bool(self._api.get("Pod", name)["status"].get("phase") == "Running")

        began = time.monotonic()
        self._api.create(manifest)
        wait_until(f"pod {name} running", runs, _LIMIT, _PAUSE)
        took = time.monotonic() - began
        self._api.delete("Pod", name)
        self._api.wait_gone("Pod", name)
        return took

    def _calls(self) -> float:
        """Seconds that the kubelet has spent in NodePrepareResources so far."""
        raw = self._node.box.channel.connect(KUBELET_PORT)
        with self._tls.wrap_socket(raw, server_hostname=self._node.name) as secured:
            connection = http.client.HTTPConnection(self._node.name)
            connection.sock = secured
            connection.request("GET", "/metrics")
            return seconds_in("NodePrepareResources", connection.getresponse().read().decode())


def seconds_in(method: str, metrics: str) -> float:
    """Of a kubelet's `metrics`: seconds in this method of our driver's, all calls together."""
    pattern = rf'^dra_grpc_operations_duration_seconds_sum{{(.*method_name="[^"]*{method}".*)}} (\S+)$'
    found = re.findall(pattern, metrics, re.M)
    return sum(float(value) for labels, value in found if f'driver_name="{DRIVER}"' in labels)

"""The product on a cluster as it is deployed (hack/kube/deploy.py), which a scenario changes and restores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hack.kube import deploy
from hack.node.access import Daemon
from hack.node.errors import NodeError
from hack.wait import wait_until
from nri_cpu.cpuset import CPUSet
from tests.cluster.manifests import container, pod

if TYPE_CHECKING:
    from hack.kube.cluster import Cluster
    from hack.kube.node import KubeNode

# A shared container that is always there, whose place shows what the shared pool is.
BYSTANDER = "bystander"

_LIMIT = 180.0


class Stage:
    """A cluster whose first node has the product, with what it was started with. What waits raises TimeoutError."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node: KubeNode = cluster.nodes[0]
        self.product = self.node.product
        self._usual = False

    def set_up(self, *arguments: str) -> None:
        """Deploy and start everything."""
        deploy.deploy(self.cluster.api)
        deploy.install(self.cluster, self.node)
        self.product.start_plugin()
        self.companion(*arguments)
        self.cluster.api.apply(pod(BYSTANDER, container("main")), "default")
        self.cluster.api.wait("Pod", BYSTANDER, lambda now: now["status"]["phase"] == "Running", limit=_LIMIT)

    def companion(
        self, *arguments: str, program: Sequence[str] = ("dra-cpu",), env: Mapping[str, str] | None = None
    ) -> Daemon:
        """End dra-cpu, if it runs, and start it with these arguments; returns when the kubelet has registered it.

        `program`: what to run in its place.
        """
        if self.product.companion and self.product.companion.alive():
            self.product.companion.kill(15)
        log = "/var/log/dra-cpu.log"
        before = int(self.node.box.run(f"touch {log} && wc -c < {log}").text)
        command = [*program, "run", "--kubeconfig", deploy.KUBECONFIG, *arguments]
        daemon = self.product.companion = self.node.box.daemon("dra-cpu", command, env)
        self._usual = not arguments and not env

        def registered() -> bool:
            said = daemon.output()[before:]
            if not daemon.alive():
                raise NodeError(f"dra-cpu has ended: {said[-2000:]}")
            return "the kubelet has registered dra.cpu" in said

        wait_until("dra-cpu's registration with the kubelet", registered, _LIMIT, 0.2)
        return daemon

    def restore(self) -> None:
        """Bring everything back up that a scenario has taken away, as it was set up."""
        box = self.node.box
        if not self.cluster.api.ready():
            self.cluster.start_apiserver()
        box.online(CPUSet.parse(box.read("/sys/devices/system/cpu/present").decode()) - box.online_cpus())
        if not (self.node.kubelet and self.node.kubelet.alive()):
            self.node.start_kubelet()
            self.node.wait_ready()
        if not self.product.plugin_is_in_the_runtime():
            self.product.start_plugin()
        if not self._usual or not (self.product.companion and self.product.companion.alive()):
            self.companion()


def token(cluster: Cluster, node: str) -> str:
    """A token of dra-cpu's service account; `node` is the node it is bound to, empty for one that is free."""
    return deploy.token(cluster.api, *deploy.ACCOUNT, node)

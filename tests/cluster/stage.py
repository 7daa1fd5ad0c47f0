"""The product on a cluster as it is deployed: what deploy/ holds is applied, and dra-cpu has a service account's token.

The token is bound to the node, as a pod's is, since deploy/rbac.yaml lets it write only that node's slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hack.node.access import Daemon
from hack.node.errors import NodeError
from hack.wait import wait_until
from nri_cpu.cpuset import CPUSet
from tests.cluster.manifests import container, pod

if TYPE_CHECKING:
    from hack.kube.cluster import Cluster
    from hack.kube.node import KubeNode

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ACCOUNT = ("kube-system", "dra-cpu")
KUBECONFIG = "/etc/dra-cpu/kubeconfig"

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
        for name in ("rbac.yaml", "deviceclass.yaml"):
            for manifest in yaml.safe_load_all((DEPLOY / name).read_text()):
                self.cluster.api.apply(manifest, manifest["metadata"].get("namespace", ""))
        self.node.box.install_project()
        self.node.box.write(KUBECONFIG, yaml.safe_dump(bound_kubeconfig(self.cluster, self.node.name)), 0o600)
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
        command = [*program, "run", "--kubeconfig", KUBECONFIG, *arguments]
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


def bound_kubeconfig(cluster: Cluster, node: str) -> Any:
    """A kubeconfig for dra-cpu in the node's box, with a token that names the node."""
    namespace, name = ACCOUNT
    found = yaml.safe_load(cluster.service_account_kubeconfig(namespace, name))
    found["users"][0]["user"]["token"] = token(cluster, node)
    return found


def token(cluster: Cluster, node: str) -> str:
    """A token of dra-cpu's service account; `node` is the node it is bound to, empty for one that is free."""
    namespace, name = ACCOUNT
    bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node}} if node else {}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": bound}
    answer = cluster.api.request("POST", path, {**wanted, "spec": {**bound, "expirationSeconds": 24 * 3600}})
    return str(answer["status"]["token"])

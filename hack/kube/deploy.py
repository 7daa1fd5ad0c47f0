"""The product on a cluster as it is deployed: what deploy/ holds, and credentials of dra-cpu's service account.

Its tokens are bound to a node, as a pod's are, since deploy/rbac.yaml lets it write only that node's slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from hack.kube.api import Api
from hack.node.image import PROJECT

if TYPE_CHECKING:
    from hack.kube.cluster import Cluster
    from hack.kube.node import KubeNode

# Namespace and name of the service account in deploy/rbac.yaml.
ACCOUNT = ("kube-system", "dra-cpu")

# In the box: what `dra-cpu run --kubeconfig` is given.
KUBECONFIG = "/etc/kubernetes/dra-cpu.conf"

_MANIFESTS = tuple(PROJECT / "deploy" / name for name in ("rbac.yaml", "deviceclass.yaml"))
_TOKEN_SECONDS = 24 * 3600


def deploy(api: Api) -> None:
    """Apply what deploy/ has: rights, policy, device class."""
    for path in _MANIFESTS:
        for manifest in yaml.safe_load_all(path.read_text()):
            api.apply(manifest, manifest["metadata"].get("namespace", ""))


def install(cluster: Cluster, node: KubeNode) -> None:
    """Put the project into the node's box, and dra-cpu's credentials for this node; `deploy` must have been called."""
    node.box.install_project()
    node.box.write(KUBECONFIG, cluster.service_account_kubeconfig(*ACCOUNT, node=node.name), 0o600)


def token(api: Api, namespace: str, name: str, node: str = "") -> str:
    """A new token of a service account that is there, for a day; `node` is the node it is bound to, if any."""
    bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node}} if node else {}
    wanted = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {**bound, "expirationSeconds": _TOKEN_SECONDS},
    }
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    return str(api.request("POST", path, wanted)["status"]["token"])

"""The real API server does what the fake one does in unit tests, and lets a service account in by its token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra.kube.client import Client
from dra.kube.credentials import service_account
from dra.kube.slices import NodeSlices
from dra.slices.api import ApiError, ForbiddenError
from hack.kube.cluster import Cluster
from hack.wait import wait_until
from tests.unit.dra.api_scenarios import SCENARIOS, Ground, a_watch_can_not_start_too_long_ago

# A test may have to start the cluster, on a machine that is busy with other things.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "rules": [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list"]}],
}


@pytest.fixture
def ground(cluster: Cluster, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(cluster.kubeconfig, tmp_path)
    yield made
    made.clean()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_the_real_server_does_as_the_fake_one(ground: Ground, scenario: Callable[[Ground], None]) -> None:
    scenario(ground)


def test_features_that_the_kubelet_declared_are_told(cluster: Cluster, ground: Ground) -> None:
    declared = cluster.api.get("Node", cluster.nodes[0].name)["status"].get("declaredFeatures", [])
    assert ground.source.slices(cluster.nodes[0].name).node().declared_features == frozenset(declared)


def test_an_api_server_that_was_started_again_has_forgotten_the_past(cluster: Cluster, ground: Ground) -> None:
    ground.api.list()  # a connection that is kept
    cluster.stop_apiserver()
    with pytest.raises(ApiError, match=r"^GET http.*/resourceslices failed: Connection refused$"):
        ground.api.list()
    cluster.start_apiserver()
    ground.api.list()
    a_watch_can_not_start_too_long_ago(ground)


def test_a_service_account_may_do_what_its_role_says_by_its_newest_token(
    cluster: Cluster, namespace: str, ground: Ground, tmp_path: Path
) -> None:
    def token(name: str) -> str:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        sent = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
        return str(cluster.api.request("POST", path, sent)["status"]["token"])

    for name in ("one", "two"):
        cluster.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, namespace)
    host, _, port = ground.client.server.removeprefix("https://").rpartition(":")
    (tmp_path / "ca.crt").write_text(cluster.api.get("ConfigMap", "kube-root-ca.crt", namespace)["data"]["ca.crt"])
    (tmp_path / "token").write_text(token("one"))
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    api = NodeSlices(Client(service_account(environment, tmp_path), "dra-cpu/test"), ground.node)

    with pytest.raises(ForbiddenError, match=f"needs the verb list on .*: .*{namespace}:one"):
        api.list()
    role = f"{namespace}-list"
    cluster.api.create({**ROLE, "metadata": {"name": role}})
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "one"}],
    }
    cluster.api.create(binding)
    try:
        wait_until("the role", lambda: _may(api))
        with pytest.raises(ForbiddenError, match="needs the verb create on resourceslices"):
            api.create(ground.manifest())
        (tmp_path / "token").write_text(token("two"))
        assert not _may(api)
        (tmp_path / "token").write_text(token("one"))
        assert _may(api)
        cluster.api.delete("ServiceAccount", "one", namespace)
        wait_until("the end of the token", lambda: _refusal(api).endswith(": Unauthorized"))
    finally:
        cluster.api.delete("ClusterRoleBinding", role)
        cluster.api.delete("ClusterRole", role)


def _may(api: NodeSlices) -> bool:
    try:
        api.list()
    except ForbiddenError:
        return False
    return True


def _refusal(api: NodeSlices) -> str:
    try:
        api.list()
    except ApiError as error:
        return str(error)
    return ""

"""What dra-cpu may do by deploy/rbac.yaml: all that it does, and nothing on other nodes."""

from __future__ import annotations

import http.client
import json
import ssl

import pytest

from tests.cluster.manifests import API, claim, request
from tests.cluster.scenario import Scenario
from tests.cluster.stage import token

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SLICES = f"/apis/{API}/resourceslices"


class Account:
    """Requests with a token of dra-cpu's account."""

    def __init__(self, scenario: Scenario, node: str) -> None:
        self.port = scenario.api.port
        self.token = token(scenario.cluster, node)
        self.tls = ssl.create_default_context()
        self.tls.check_hostname = False
        self.tls.verify_mode = ssl.CERT_NONE  # on the loopback, and the token is thrown away

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Status and message."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.tls, timeout=30)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()).get("message", "")
        finally:
            connection.close()


def one_slice(name: str, node: str, driver: str = "dra.cpu") -> dict[str, object]:
    pool = {"name": f"{name}-pool", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": []}
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def test_a_node_writes_and_deletes_its_own_slices_only(scenario: Scenario) -> None:
    here, free = Account(scenario, scenario.node.name), Account(scenario, "")
    scenario.api.create(one_slice("elsewhere", "node2"))
    try:
        for account, body, words in (
            (here, one_slice("foreign", "node2"), "dra-cpu on node node1 may write only slices of that node"),
            (here, one_slice("other", "node1", "test.example"), "only slices of driver dra.cpu"),
            (free, one_slice("free", "node1"), "names no node"),
        ):
            status, message = account.ask("POST", SLICES, body)
            assert (status, words in message) == (403, True), message
        status, message = here.ask("DELETE", f"{SLICES}/elsewhere")
        assert (status, "only slices of that node" in message) == (403, True), message
        changed = {**scenario.api.get("ResourceSlice", "elsewhere"), "apiVersion": API}
        status, message = here.ask("PUT", f"{SLICES}/elsewhere", changed)
        assert (status, "only slices of that node" in message) == (403, True), message
    finally:
        scenario.api.delete("ResourceSlice", "elsewhere")


def test_the_account_reads_and_writes_nothing_else(scenario: Scenario) -> None:
    account = Account(scenario, scenario.node.name)
    for path in (
        "/api/v1/pods",
        "/api/v1/nodes",
        "/api/v1/namespaces/kube-system/secrets",
        f"/apis/{API}/resourceclaims",
        f"/apis/{API}/deviceclasses",
    ):
        assert account.ask("GET", path)[0] == 403, path
    node = f"/api/v1/nodes/{scenario.node.name}"
    assert account.ask("GET", node)[0] == 200
    scenario.apply(claim("app", request(cpus=1)))
    mine = f"/apis/{API}/namespaces/{scenario.namespace}/resourceclaims/app"
    assert account.ask("GET", mine)[0] == 200
    for method, path, kind, name in (
        ("PUT", mine, "ResourceClaim", "app"),
        ("PUT", f"{mine}/status", "ResourceClaim", "app"),
        ("PUT", node, "Node", scenario.node.name),
        ("PUT", f"{node}/status", "Node", scenario.node.name),
        ("PUT", f"/apis/{API}/deviceclasses/dra.cpu", "DeviceClass", "dra.cpu"),
    ):
        same = scenario.api.get(kind, name, scenario.namespace)
        assert account.ask(method, path, same)[0] == 403, path
        assert account.ask("DELETE", path.removesuffix("/status"))[0] == 403, path

"""The claims of the bench on a real API server with its etcd, and what dra-cpu is there: deployed as in a cluster.

No node, scheduler or controller runs: claims are allocated by the admin, the Node is an object. dra-cpu has its service
account's rights, with a token that is bound to the node. The API server counts its requests apart from all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from dra.devices import DRIVER
from dra.kubelet.dra_pb2 import Claim
from hack.kube import build
from hack.kube.api import Api, Object
from hack.kube.control_plane import ControlPlane
from hack.kube.deploy import ACCOUNT, deploy, token
from hack.node.tools import TO_CERTIFY, Report, need
from tests.bench.claims import COUNT, NODE, allocated, named

# Its own flow of requests (flowcontrol.apiserver.k8s.io), which metrics of the API server name.
_FLOW = "bench-dra-cpu"
_DISPATCHED = re.compile(rf'^apiserver_flowcontrol_dispatched_requests_total{{.*flow_schema="{_FLOW}".*}} (\S+)$', re.M)
# Makers of claims at the same time.
_MAKERS = 4


class ApiServer:
    """A Source. `arguments` name a kubeconfig in `directory`; every method raises NodeError."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._api: Api = plane.api()
        self._plane = plane
        kubeconfig = directory / "dra-cpu.kubeconfig"
        self.arguments = (f"--kubeconfig={kubeconfig}",)
        self._deploy()
        kubeconfig.write_text(plane.authority.kubeconfig_with_token(plane.server, token(self._api, *ACCOUNT, NODE)))
        with ThreadPoolExecutor(_MAKERS) as pool:
            self.claims = list(pool.map(self._claim, range(COUNT)))

    def hold(self, claims: object) -> None:
        """All are there always."""

    def published_devices(self) -> int:
        """How many devices of ours slices have."""
        slices = self._api.list("ResourceSlice", fieldSelector=f"spec.driver={DRIVER}")
        return sum(len(each["spec"]["devices"]) for each in slices)

    def remove_slices(self) -> None:
        for each in self._api.list("ResourceSlice"):
            self._api.delete("ResourceSlice", each["metadata"]["name"])

    def requests(self) -> int:
        """Requests of dra-cpu since the API server's start, each watch one."""
        return requests_in(self._api.text("/metrics"))

    def _deploy(self) -> None:
        deploy(self._api)
        self._api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self._api.apply(_flow())
        self._api.wait("FlowSchema", _FLOW, lambda flow: flow["status"].get("conditions"))

    def _claim(self, number: int) -> Claim:
        wanted = allocated(number)
        made = self._api.create({key: value for key, value in wanted.items() if key != "status"})
        self._api.replace({**made, "status": wanted["status"]}, sub="status")
        return named(made)


def requests_in(metrics: str) -> int:
    """Of an API server's `metrics`: requests of dra-cpu that were let in."""
    return int(sum(map(float, _DISPATCHED.findall(metrics))))


def prepare(report: Report) -> None:
    """Build what is needed. Raises hack.go.BuildError or NodeError."""
    need(TO_CERTIFY, report)
    build.programs()


@contextmanager
def api_server(directory: Path) -> Iterator[ApiServer]:
    """Start etcd and the API server, and put into it what dra-cpu needs. Raises NodeError or TimeoutError."""
    plane = ControlPlane(build.programs(), {})
    try:
        plane.start_storage()
        plane.start_apiserver()
        plane.wait_ready(plane.api())
        yield ApiServer(plane, directory)
        plane.check_alive()
    finally:
        plane.close()


def _flow() -> Object:
    """The FlowSchema of dra-cpu's requests; the one that service accounts have at first serves them as well."""
    namespace, name = ACCOUNT
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True, "namespaces": ["*"]}
    subject = {"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": name}}
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": _FLOW},
        "spec": {
            "matchingPrecedence": 500,
            "priorityLevelConfiguration": {"name": "workload-low"},
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [
                {
                    "subjects": [subject],
                    "resourceRules": [everything],
                    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                }
            ],
        },
    }

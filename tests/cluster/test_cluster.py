"""The cluster in a box keeps its promises: pods run, it obeys, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hack.kube import build, control_plane
from hack.kube import cluster as kube
from hack.kube.cluster import Cluster
from hack.kube.errors import ApiError, ClusterError
from hack.kube.node import KubeNode, is_ready
from hack.node import kept, qemu
from hack.wait import wait_until
from tests.cluster import manifests
from tests.cluster.conftest import StartCluster, create_namespace
from tests.cluster.manifests import container

# A test may have to start a cluster, on a machine that is busy with other things.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PROJECT = Path(__file__).parents[2]


def pod(name: str, *command: str, **spec: Any) -> dict[str, Any]:
    """A pod with a network of its own."""
    main = container("main", command=command or ("sleep", "100000"))
    return manifests.pod(name, main, **{"hostNetwork": False, **spec})


def is_running(found: dict[str, Any]) -> bool:
    return bool(found["status"]["phase"] == "Running")


def run_pod(cluster: Cluster, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
    cluster.api.create(manifest, namespace)
    return cluster.api.wait("Pod", manifest["metadata"]["name"], is_running, namespace)


def kubectl(cluster: Cluster, *arguments: str) -> str:
    command = [str(cluster.programs / "kubectl"), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_node_is_ready_and_is_the_machine(cluster: Cluster, kube_node: KubeNode) -> None:
    node = cluster.api.get("Node", kube_node.name)
    assert is_ready(node)
    assert node["status"]["capacity"]["cpu"] == "16"
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{build.version()}"
    assert {a["address"] for a in node["status"]["addresses"]} == {"10.0.2.15", kube_node.name}


def test_a_pod_runs_says_something_and_goes(cluster: Cluster, namespace: str) -> None:
    found = run_pod(cluster, namespace, pod("one", "sh", "-c", "echo hello; exec sleep 100000"))
    assert found["status"]["podIP"].startswith("10.85.")
    assert kubectl(cluster, "logs", "-n", namespace, "one") == "hello\n"
    assert kubectl(cluster, "exec", "-n", namespace, "one", "--", "nproc") == "16\n"
    cluster.api.delete("Pod", "one", namespace)
    cluster.api.wait_gone("Pod", "one", namespace)


def test_pods_and_the_node_reach_each_other(cluster: Cluster, kube_node: KubeNode, namespace: str) -> None:
    probe = {"exec": {"command": ["true"]}}
    manifest = pod("one")
    manifest["spec"]["containers"][0]["readinessProbe"] = probe
    address = run_pod(cluster, namespace, manifest)["status"]["podIP"]
    kube_node.box.run(["ping", "-c", "1", "-W", "20", address])
    cluster.api.wait("Pod", "one", is_ready, namespace)


def test_a_pod_on_the_nodes_network_reaches_the_api_server_as_in_any_cluster(
    cluster: Cluster, kube_node: KubeNode, namespace: str
) -> None:
    run_pod(cluster, namespace, pod("one", hostNetwork=True))
    words = kubectl(cluster, "exec", "-n", namespace, "one", "--", "env").split()
    facts = dict(word.split("=", 1) for word in words)
    address = (facts["KUBERNETES_SERVICE_HOST"], facts["KUBERNETES_SERVICE_PORT"])
    assert address == (control_plane.SERVICE_ADDRESS, "443")
    source = (
        "import json, ssl, urllib.request; c = ssl.create_default_context(cafile='/etc/kubernetes/ca.crt');"
        f"print(json.load(urllib.request.urlopen('https://{address[0]}/version', context=c))['gitVersion'])"
    )
    assert kube_node.box.run(["python3", "-c", source]).text == f"v{build.version()}"


def test_nothing_else_is_reached_from_the_box(cluster: Cluster, kube_node: KubeNode) -> None:
    # QEMU's host address stands for the loopback of this machine, where the API server listens too.
    source = (
        "import socket, sys; s = socket.socket(); s.settimeout(3); print(s.connect_ex((sys.argv[1], int(sys.argv[2]))))"
    )
    port = cluster.api.port
    for where in (("10.0.2.2", str(port)), (control_plane.SERVICE_ADDRESS, str(port)), ("10.0.2.3", "53")):
        assert kube_node.box.run(["python3", "-c", source, *where]).text != "0"


# Prints the server's answer to who has the kubeconfig, which is JSON.
LIST_NODES = """
import base64, json, ssl, urllib.error, urllib.request
config = json.load(open("/tmp/driver.kubeconfig"))
cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
tls = ssl.create_default_context(cadata=authority)
headers = {"Authorization": "Bearer " + user["token"]}
request = urllib.request.Request(cluster["server"] + "/api/v1/nodes", headers=headers)
try:
    urllib.request.urlopen(request, context=tls)
except urllib.error.HTTPError as error:
    print(error.code, json.load(error)["message"])
"""


def test_a_service_accounts_kubeconfig_works_in_the_box_with_its_rights_alone(
    cluster: Cluster, kube_node: KubeNode, namespace: str
) -> None:
    cluster.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "driver"}}, namespace)
    text = cluster.service_account_kubeconfig(namespace, "driver")
    kube_node.box.write("/tmp/driver.kubeconfig", text)
    said = kube_node.box.run(["python3", "-c", LIST_NODES]).text
    assert said.startswith("403 ")
    assert f'User "system:serviceaccount:{namespace}:driver" cannot list' in said


def test_the_api_server_goes_and_comes_back(cluster: Cluster, kube_node: KubeNode, namespace: str) -> None:
    run_pod(cluster, namespace, pod("before"))
    cluster.stop_apiserver()
    with pytest.raises(ClusterError, match="no answer"):
        cluster.api.get("Pod", "before", namespace)
    cluster.start_apiserver()
    assert is_running(cluster.api.get("Pod", "before", namespace))
    run_pod(cluster, namespace, pod("after"))


def test_the_kubelet_goes_and_comes_back(cluster: Cluster, kube_node: KubeNode, namespace: str) -> None:
    run_pod(cluster, namespace, pod("before"))
    kube_node.stop_kubelet(signal.SIGKILL)
    kube_node.start_kubelet()
    kube_node.wait_ready()
    assert is_running(cluster.api.get("Pod", "before", namespace))
    run_pod(cluster, namespace, pod("after"))


def test_the_client_tells_what_the_server_says(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(ApiError, match='pods "none" not found') as caught:
        cluster.api.get("Pod", "none", namespace)
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")
    assert cluster.api.find("Pod", "none", namespace) is None
    with pytest.raises(ClusterError, match="has no Nonsense"):
        cluster.api.get("Nonsense", "one", namespace)
    with pytest.raises(ApiError, match="422 Invalid"):
        cluster.api.create({**pod("Bad_Name")}, namespace)


def test_the_client_changes_objects_by_patch_apply_and_replace(cluster: Cluster, namespace: str) -> None:
    api = cluster.api
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}
    api.create({**settings, "data": {"a": "1"}}, namespace)
    api.patch("ConfigMap", "one", {"data": {"b": "2"}}, namespace)
    api.patch("ConfigMap", "one", [{"op": "remove", "path": "/data/a"}], namespace)
    assert api.get("ConfigMap", "one", namespace)["data"] == {"b": "2"}
    api.apply({**settings, "data": {"b": "3"}}, namespace)
    found = api.get("ConfigMap", "one", namespace)
    assert found["data"] == {"b": "3"}
    api.replace({**found, "data": {"c": "4"}}, namespace)
    listed = api.list("ConfigMap", namespace, fieldSelector="metadata.name=one")
    assert [each["data"] for each in listed] == [{"c": "4"}]
    api.delete("ConfigMap", "one", namespace)
    api.delete("ConfigMap", "one", namespace)
    api.wait_gone("ConfigMap", "one", namespace)


def test_gates_reach_all_programs_and_two_nodes_run_pods(start_cluster: StartCluster) -> None:
    gate = "DRANodeAllocatableResources"
    cluster = start_cluster(gates={gate: True}, nodes=2)
    assert [node.name for node in cluster.nodes] == ["node1", "node2"]
    for node in cluster.nodes:
        assert gate in cluster.api.get("Node", node.name)["status"]["declaredFeatures"]
    metrics = cluster.api.text("/metrics")
    assert f'kubernetes_feature_enabled{{name="{gate}",stage="ALPHA"}} 1' in metrics
    create_namespace(cluster, "both")
    for node in cluster.nodes:
        found = run_pod(cluster, "both", pod(node.name, nodeName=node.name))
        assert found["spec"]["nodeName"] == node.name
        assert kubectl(cluster, "exec", "-n", "both", node.name, "--", "nproc") == "16\n"
    cluster.nodes[1].box.reboot()
    cluster.nodes[1].start_kubelet()
    cluster.nodes[1].wait_ready()
    run_pod(cluster, "both", pod("again", nodeName="node2"))


def test_a_program_that_does_not_start_is_told_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "PREFIX", f"nri-cpu-no-gate-{os.getpid()}-")
    with pytest.raises(ClusterError, match=r"has ended: .*unrecognized feature gate: NoSuchGate"):
        kube.start(gates={"NoSuchGate": True})
    assert not kept.directories(control_plane.PREFIX)


# Holds a cluster as long as its standard input is open: not longer than the test's process lives.
OWNER = """
import sys
from hack.kube.cluster import start
cluster = start()
print(cluster.directory, cluster.nodes[0].box.directory, cluster.api.port, flush=True)
sys.stdin.read()
"""
PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "qemu-system-x86_64", "relay.py")


def test_nothing_is_left_when_the_starter_is_killed() -> None:
    pipe = subprocess.PIPE
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=PROJECT, stdin=pipe, stdout=pipe, text=True)
    assert owner.stdout
    try:
        *words, port = owner.stdout.readline().split()
        found = processes_of(*words, f"relay.py {port}")
    finally:
        owner.kill()
        owner.communicate()
    directories = [Path(word) for word in words]
    names = {Path(word).name for command in found.values() for word in command.split()}
    assert set(PROGRAMS) <= names
    wait_until("the end of directories", lambda: not any(path.exists() for path in directories), 60)
    wait_until("the end of programs", lambda: not any(Path(f"/proc/{pid}").exists() for pid in found), 60)
    assert not set(directories) & {*kept.directories(control_plane.PREFIX), *kept.directories(qemu.PREFIX)}


def processes_of(*marks: str) -> dict[int, str]:
    """Process id -> command line, of the processes that have one of the marks in it."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):  # it has ended, or is none
            command = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
            if any(mark in command for mark in marks):
                found[int(entry.name)] = command
    return found

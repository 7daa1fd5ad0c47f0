"""Promise: what a node and its API say is read as it is, whatever else they say."""

from __future__ import annotations

import json
from typing import Any

from hack.node.cri import cri_pb2 as pb
from nri_cpu.cpuset import CPUSet
from tests.cluster import observe
from tests.cluster.facts import Allocated

SHELL = """online 0-15
container 1f
written 0-1
cpus 0-1
Cpus_allowed_list:\t0-1
DRA_CPUSET_u=0-1
NRI_CPU_PREPARATION_u=secret
Cpus_allowed_list:\t0-1
container 2f
written
cpus 0-15
Cpus_allowed_list:\t0-15
container 3f
written 0-15
cpus 0-15
"""


def claim(uid: str, *results: dict[str, Any]) -> dict[str, Any]:
    allocation = {"devices": {"results": [{"driver": "dra.cpu", "pool": "node", **result} for result in results]}}
    return {"metadata": {"namespace": "ns", "name": uid, "uid": uid}, "status": {"allocation": allocation}}


def test_the_kernels_word_is_taken_apart_and_a_container_without_processes_is_none() -> None:
    online, cgroups = observe.kernel_facts(SHELL)
    assert online == CPUSet.parse("0-15")
    assert cgroups.keys() == {"1f", "2f"}
    assert cgroups["1f"].allowed == {CPUSet.parse("0-1")}
    assert cgroups["1f"].env == {"DRA_CPUSET_u": "0-1", "NRI_CPU_PREPARATION_u": "secret"}
    assert (cgroups["2f"].written, cgroups["2f"].cpus) == (CPUSet(), CPUSet.parse("0-15"))


def test_a_containers_claims_are_those_with_cpus_by_name_by_template_and_by_extended_resource() -> None:
    pod = {
        "metadata": {"namespace": "ns", "uid": "pod"},
        "spec": {
            "resourceClaims": [{"name": "one", "resourceClaimName": "a"}, {"name": "two"}, {"name": "gpu"}],
            "initContainers": [{"name": "init", "resources": {"claims": [{"name": "one"}]}}],
            "containers": [
                {"name": "main", "resources": {"claims": [{"name": "two", "request": "r"}, {"name": "gpu"}]}},
                {"name": "extended"},
                {"name": "shared"},
            ],
        },
        "status": {
            "resourceClaimStatuses": [{"name": "two", "resourceClaimName": "b"}, {"name": "gpu"}],
            "extendedResourceClaimStatus": {
                "resourceClaimName": "c",
                "requestMappings": [{"containerName": "extended"}],
            },
        },
    }
    claims = {("ns", uid): claim(uid, {"device": "d"}) for uid in ("a", "b", "c")}
    assert observe.claims_of_containers([pod], claims) == {
        ("pod", "init"): {"a"},
        ("pod", "main"): {"b"},
        ("pod", "extended"): {"c"},
        ("pod", "shared"): frozenset(),
    }


def test_allocations_are_those_of_this_driver_and_this_node() -> None:
    mine = claim("a", {"device": "g", "consumedCapacity": {"dra.cpu/cpu": "2"}}, {"device": "i"}, {"driver": "x"})
    others = [claim("b", {"pool": "other", "device": "g"}), {"metadata": {"uid": "c"}, "status": {}}, {"metadata": {}}]
    assert dict(observe.allocations([mine, *others], "node")) == {"a": Allocated("ns/a", (("g", 2), ("i", 1)))}


def test_offered_is_what_the_newest_slices_of_the_node_say() -> None:
    def published(generation: int, *devices: dict[str, Any], **spec: Any) -> dict[str, Any]:
        pool = {"name": "node", "generation": generation}
        return {"spec": {"driver": "dra.cpu", "nodeName": "node", "pool": pool, "devices": devices, **spec}}

    grouped = {"name": "g", "capacity": {"dra.cpu/cpu": {"value": "4"}}}
    slices = [
        published(1, {"name": "old"}),
        published(2, grouped),
        published(2, {"name": "i"}),
        published(3, nodeName="x"),
    ]
    assert observe.offered(slices, "node") == {"g": 4, "i": 1}
    assert observe.offered([], "node") == {}


def test_the_kubelets_checkpoint_names_the_claims_that_it_has_to_unprepare() -> None:
    states = {"a": {"dra.cpu": {}}, "b": {"other": {}}, "c": {"dra.cpu": {"Devices": [{"DeviceName": "g"}]}}}
    entries = [{"ClaimUID": uid, "DriverState": state} for uid, state in states.items()]
    raw = json.dumps({"Data": json.dumps({"ClaimInfoStateList": entries}), "Checksum": 1}).encode()
    assert dict(observe.kubelet_claims(raw)) == {"a": False, "c": True}
    assert list(observe.kubelet_claims(b"")) == []


def test_metadata_files_name_their_claim_in_the_first_of_their_versions() -> None:
    path = "var/lib/kubelet/plugins/dra.cpu/dra-device-metadata/file.json"
    content = json.dumps({"metadata": {"uid": "a"}}) + "\n" + json.dumps({"metadata": {"uid": "a"}})
    files = {path: content.encode(), "run/cdi/dra.cpu_metadata_b_cpus.json": b"{}"}
    assert list(observe.metadata_claims(files)) == ["a"]
    assert list(observe.mounted_claims(files)) == ["b"]


def test_a_container_that_runs_by_the_runtime_or_by_the_api_and_not_by_the_kernel_is_unseen() -> None:
    labels = {
        "io.kubernetes.pod.namespace": "ns",
        "io.kubernetes.pod.name": "pod",
        "io.kubernetes.container.name": "main",
    }
    known = [
        pb.Container(id="1f", state=pb.CONTAINER_RUNNING, labels=labels),
        pb.Container(id="2f", state=pb.CONTAINER_EXITED, labels=labels),
    ]

    def pod(node: str, state: str, container: str) -> dict[str, Any]:
        status = {"name": "main", "state": {state: {}}, "containerID": f"containerd://{container}"}
        spec = {"nodeName": node}
        return {
            "metadata": {"namespace": "ns", "name": "pod"},
            "spec": spec,
            "status": {"containerStatuses": [status]},
        }

    pods = [pod("node", "running", "1f"), pod("other", "running", "3f"), pod("node", "terminated", "2f")]
    waiting: dict[str, Any] = {"metadata": {}, "spec": {}}
    assert list(observe.unseen({"1f"}, known, [*pods, waiting], "node")) == []
    assert list(observe.unseen((), known, [*pods, waiting], "node")) == [
        "ns/pod/main (by the runtime)",
        "ns/pod/main (by the API)",
    ]


def test_the_runtimes_note_may_have_no_cpuset() -> None:
    spec = {"linux": {"resources": {"cpu": {"cpus": "0-3"}}}}
    assert observe.runtime_cpuset({"runtimeSpec": spec}) == CPUSet.parse("0-3")
    assert observe.runtime_cpuset({"runtimeSpec": {"linux": {"resources": {}}}}) == CPUSet()

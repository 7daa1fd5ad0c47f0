"""What needs feature gates that are off by default: CPUs that count against the node's (KEP-5517), lists as attributes
(KEP-5491); and the same options in a cluster without the gates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.manifests import Manifest, claim, container, pod, request, simple
from tests.cluster.scenario import Scenario, condition, is_unschedulable
from tests.cluster.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

GATES = {"DRANodeAllocatableResources": True, "DRAListTypeAttributes": True}
CONFIG = "/etc/dra-cpu/gates.yaml"
OPTIONS = "apiVersion: v1alpha1\npublishNodeAllocatableResourceMapping: true\nexposePCIeRoots: true\n"
INCLUDES = 'device.attributes["resource.kubernetes.io"].pcieRoot.includes("pci0000:00")'
GROUPS = {f"cpudevnuma{node:03}": 4 for node in range(4)}


def devices(scenario: Scenario) -> Iterator[Manifest]:
    for one in scenario.api.list("ResourceSlice"):
        if one["spec"]["driver"] == "dra.cpu":
            yield from one["spec"]["devices"]


@pytest.mark.fault("F-6")
def test_with_the_gates_claims_count_against_the_node_and_pcie_roots_can_be_chosen(start_cluster: StartCluster) -> None:
    cluster = start_cluster(gates=GATES)
    stage = Stage(cluster)
    cluster.nodes[0].box.write(CONFIG, OPTIONS)
    stage.set_up("--config", CONFIG)
    scenario = Scenario(stage, "gates")
    scenario.offers(GROUPS)
    mapping = {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}
    for device in devices(scenario):
        assert device["nodeAllocatableResources"] == {"cpu": {"mapping": mapping}}
    assert any("pci0000:00" in str(device["attributes"]) for device in devices(scenario))

    scenario.run(
        claim("near", request(cpus=3, where=[INCLUDES])),
        pod("near", container("main", "near"), claims=["near"]),
    )
    assert scenario.first("near") == scenario.cpus("near")
    told = scenario.pod("near")["status"]["nodeAllocatableResourceClaimStatuses"]
    assert [one["resourceClaimName"] for one in told] == ["near"]
    # 16 CPUs less 3 of the claim.
    scenario.apply(pod("too-much", container("main", resources={"requests": {"cpu": "14"}})))
    waiting = scenario.pod("too-much", is_unschedulable)
    assert "Insufficient cpu" in condition(waiting, "PodScheduled")["message"]
    # No more and no less: not the 4 of the device.
    scenario.run(pod("fits", container("main", resources={"requests": {"cpu": "13"}})))
    scenario.apply(pod("one-more", container("main", resources={"requests": {"cpu": "1"}})))
    waiting = scenario.pod("one-more", is_unschedulable)
    assert "Insufficient cpu" in condition(waiting, "PodScheduled")["message"]
    scenario.check()

    single = {f"cpudev{cpu:03}": 1 for cpu in range(16) if cpu not in scenario.cpus("near")}
    scenario.companion("--config", CONFIG, "--cpu-device-mode", "individual", offers=single)
    for device in devices(scenario):
        assert device["nodeAllocatableResources"] == {"cpu": {"mapping": {"deviceMultiplier": "1"}}}
    scenario.check()


@pytest.mark.fault("F-6")
def test_without_the_gates_the_same_options_are_told_once_and_claims_work(scenario: Scenario) -> None:
    scenario.box.write(CONFIG, OPTIONS)
    before = len(scenario.product.companion.output()) if scenario.product.companion else 0
    scenario.companion("--config", CONFIG, offers=GROUPS)
    for device in devices(scenario):
        assert "nodeAllocatableResources" not in device
        assert "pcieRoot" not in str(device)
    scenario.run(*simple("app", 2))
    assert scenario.first("app") == scenario.cpus("app")
    assert scenario.product.companion
    said = scenario.product.companion.output()[before:]
    for gate in GATES:
        assert len([line for line in said.splitlines() if gate in line]) == 1
    scenario.check()

"""What class and claim say about the choice of CPUs, and claims that can't be prepared: each hears why."""

from __future__ import annotations

import pytest

from tests.cluster.manifests import Manifest, choice, claim, container, device_class, exactly, opaque, pod, request
from tests.cluster.scenario import Scenario

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def with_pod(name: str, *requests: Manifest, **devices: object) -> tuple[Manifest, Manifest]:
    return claim(name, *requests, **devices), pod(name, container("main", name), claims=[name])


@pytest.mark.fault("A11", "A12", "B5")
def test_class_claim_and_alternative_say_how_their_cpus_are_chosen(scenario: Scenario) -> None:
    scenario.apply(device_class("whole-cores", opaque(fullPhysicalCores=True)))
    # Each on a NUMA node of its own, so that there is a choice.
    on = [[f'device.attributes["resource.kubernetes.io"].numaNode == {node}'] for node in range(4)]
    alternatives = choice("cpus", many=exactly(8, where=on[2]), few=exactly(2, where=on[2]))
    for_one = [opaque(["cpus/many"], fullPhysicalCores=True), opaque(["cpus/few"], strategy="spread")]
    scenario.run(
        *with_pod("whole", request(cpus=2, device_class="whole-cores", where=on[0])),
        *with_pod("spread", request(cpus=2, where=on[1]), config=[opaque(strategy="spread")]),
        *with_pod("either", alternatives, config=for_one),
        *with_pod(
            "both", request(cpus=4, device_class="whole-cores", where=on[3]), config=[opaque(["cpus"], alignL3=False)]
        ),
    )
    for name in ("whole", "spread", "either", "both"):
        assert scenario.first(name) == scenario.cpus(name)
    whole, spread, either = (sorted(cpu % 8 for cpu in scenario.cpus(name)) for name in ("whole", "spread", "either"))
    assert whole[0] == whole[1]  # siblings are n and n + 8
    assert spread[0] != spread[1]
    assert either[0] != either[1]
    assert [device.request for device in scenario.record("either").devices] == ["cpus/few"]
    assert scenario.record("both").options == {
        "cpus": {"strategy": "packed", "fullPhysicalCores": True, "alignL3": False}
    }
    scenario.check()


@pytest.mark.fault("A8", "B3", "B9", "U1")
def test_a_refused_claim_says_why_in_its_pods_events_and_changes_nothing(scenario: Scenario) -> None:
    scenario.api.patch(
        "Namespace", scenario.namespace, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    )
    everything = [request(f"node-{node}", 4) for node in range(4)]
    refused = {
        "half": (with_pod("half", request(cpus="1500m")), "1500m"),
        "admin": (with_pod("admin", request(adminAccess=True, allocationMode="All")), "adminAccess"),
        "odd": (with_pod("odd", request(cpus=3), config=[opaque(fullPhysicalCores=True)]), "2 threads per core"),
        "all": (with_pod("all", *everything), "shared"),
        "misspelt": (with_pod("misspelt", request(cpus=1), config=[opaque(strategi="spread")]), "strategi"),
        "named": (with_pod("named", request(cpus=1), config=[opaque(cpuset="3")]), "groupBy machine"),
    }
    before = scenario.product.checkpoint()
    for manifests, _ in refused.values():
        scenario.apply(*manifests)
        scenario.said(manifests[1]["metadata"]["name"], "FailedPrepareDynamicResources")
        scenario.api.delete("Pod", manifests[1]["metadata"]["name"], scenario.namespace)
    for name, (_, word) in refused.items():
        text = scenario.said(name, "FailedPrepareDynamicResources", word)
        assert f"{scenario.namespace}/{name}" in text
    assert scenario.product.checkpoint() == before
    scenario.check()

"""What the kubelet and the API do at the worst moment: away during Prepare, pods and claims that go by force."""

from __future__ import annotations

import time

import pytest

from hack.node.cri.client import CriError
from hack.product import PrepareError
from hack.wait import wait_until
from nri_cpu.cpuset import CPUSet
from tests.cluster.manifests import claim, container, pod, request, simple, template
from tests.cluster.scenario import LIMIT, Scenario

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LAST_NODE = ('device.attributes["resource.kubernetes.io"].numaNode == 3',)


@pytest.mark.fault("B14", "K4")
def test_a_prepare_without_plugin_or_api_server_is_refused_until_both_are_back(scenario: Scenario) -> None:
    assert scenario.product.plugin
    scenario.product.plugin.kill()
    scenario.apply(*simple("app", 2))
    said = scenario.said("app", "FailedPrepareDynamicResources", "nri-cpu is not in the container runtime")
    assert f"{scenario.namespace}/app" in said
    uid, before = scenario.uid("app"), scenario.product.checkpoint()
    scenario.cluster.stop_apiserver()
    scenario.product.start_plugin()
    minute = time.monotonic() + 60

    def refused_for_a_minute() -> bool:
        with pytest.raises(PrepareError, match="resourceclaims/app"):
            scenario.prepare("app", uid)
        assert scenario.product.checkpoint() == before
        return time.monotonic() > minute

    wait_until("a minute without API server", refused_for_a_minute, 2 * LIMIT, 1)
    scenario.cluster.start_apiserver()
    scenario.ready("app")
    assert scenario.first("app") == scenario.cpus("app")
    scenario.check()


@pytest.mark.fault("K2", "K5")
def test_after_a_forced_delete_a_claim_waits_until_the_old_container_has_ended(scenario: Scenario) -> None:
    scenario.run(
        template("old", request(cpus=4, where=LAST_NODE)),
        pod("old", container("main", "old"), templates=["old"]),
    )
    old = scenario.claim_of("old", "old")
    before, pid = scenario.record(old), scenario.pid("old")
    # The API forgets pod and claim while the container runs on, and its CPUs are promised to the next.
    scenario.node.stop_kubelet()
    scenario.delete("old", gracePeriodSeconds=0)
    scenario.api.wait_gone("ResourceClaim", old, scenario.namespace)
    scenario.apply(
        claim("next", request(cpus=4, where=LAST_NODE)), pod("next", container("main", "next"), claims=["next"])
    )
    scenario.pod("next", lambda now: now["spec"].get("nodeName"))
    with pytest.raises(PrepareError, match="cpudevnuma003") as refused:
        scenario.prepare("next")
    assert f"{scenario.namespace}/{old}" in str(refused.value)
    assert scenario.record(old) == before
    assert scenario.box.run(["grep", "^Cpus_allowed_list:", f"/proc/{pid}/status"]).text.split()[1] == str(before.cpus)
    scenario.check()
    # Unprepared all the same, its CPUs are the next one's; but nobody is let on them while the old container lives.
    scenario.unprepare(old, before.uid)
    devices = scenario.prepare("next")
    assert scenario.cpus("next") == before.cpus
    scenario.check(outlived={before.uid}, by_hand={scenario.uid("next")})
    with scenario.box.cri() as cri:
        sandbox = cri.sandbox("by-hand", namespace=scenario.namespace)
        try:
            with pytest.raises(CriError) as kept_out:
                cri.container(sandbox, "main", cdi_devices=devices)
        finally:
            cri.remove_sandbox(sandbox)
    assert f"on which container main of pod {scenario.namespace}/old still runs" in str(kept_out.value)
    scenario.check(outlived={before.uid}, by_hand={scenario.uid("next")})
    scenario.node.start_kubelet()
    scenario.node.wait_ready()
    scenario.ready("next")
    assert scenario.box.run(["test", "-e", f"/proc/{pid}"], check=False).code != 0
    assert scenario.first("next") == scenario.cpus("next") == before.cpus
    scenario.check()


@pytest.mark.fault("K3", "K5")
def test_a_claim_that_comes_again_under_its_name_is_another_one(scenario: Scenario) -> None:
    scenario.run(*simple("cpus", 2))
    before = scenario.record("cpus")
    # Against all rules the claim goes while its pod lives.
    scenario.api.delete("ResourceClaim", "cpus", scenario.namespace)
    scenario.api.patch("ResourceClaim", "cpus", {"metadata": {"finalizers": None}}, scenario.namespace)
    scenario.api.wait_gone("ResourceClaim", "cpus", scenario.namespace)
    scenario.apply(claim("cpus", request(cpus=2)), pod("next", container("main", "cpus"), claims=["cpus"]))
    # The kubelet waits for the end of the old one; another, or an older one, might not.
    scenario.said("next", "FailedPrepareDynamicResources", "cpus")
    uid = scenario.uid("cpus")
    scenario.prepare("cpus")
    claims = scenario.product.checkpoint().claims
    assert claims.keys() == {before.uid, uid}
    assert claims[uid].cpus.isdisjoint(before.cpus)
    with pytest.raises(PrepareError, match=uid):
        scenario.prepare("cpus", before.uid)
    assert scenario.product.checkpoint().claims == claims
    scenario.delete("cpus")
    assert scenario.product.checkpoint().claims == {uid: claims[uid]}
    scenario.ready("next")
    assert scenario.first("next") == claims[uid].cpus
    assert scenario.record("cpus") == claims[uid]
    scenario.check()


@pytest.mark.fault("A20", "R10")
def test_a_pod_that_writes_our_variables_by_hand_is_on_no_cpu_of_others(scenario: Scenario) -> None:
    unknown = [{"name": "DRA_CPUSET_00000000-0000-4000-8000-000000000000", "value": "0-15"}]
    broken = [{"name": "DRA_CPUSET_00000000-0000-4000-8000-000000000000", "value": "3-1"}]
    other = [{"name": "DRA_CPUSET_ASSIGNED", "value": "0-15"}]
    scenario.run(*simple("app", 2), pod("other", container("main", env=other)))
    scenario.apply(pod("unknown", container("main", env=unknown)), pod("broken", container("main", env=broken)))
    for name in ("unknown", "broken"):
        assert "00000000-0000-4000-8000-000000000000" in scenario.refused(name, "main")
    assert scenario.first("other") == CPUSet(range(16)) - scenario.cpus("app")
    scenario.check()

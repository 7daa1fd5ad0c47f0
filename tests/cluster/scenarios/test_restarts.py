"""Everything that can restart under running pods does: kubelet, runtime, both processes, the machine."""

from __future__ import annotations

import signal

import pytest

from tests.cluster.manifests import simple
from tests.cluster.scenario import Scenario, container_status, is_ready

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.fault("A19", "B2", "K7", "R3", "R6", "N7")
def test_no_restart_of_a_process_moves_or_disturbs_a_container(scenario: Scenario) -> None:
    scenario.run(*simple("app", 2), *simple("other", 3))
    pids = [scenario.pid(name) for name in ("app", "other")]
    scenario.check()

    def undisturbed() -> None:
        facts = scenario.check()  # against the one before: no claim has other CPUs now
        assert len(facts.exclusive) == 2
        assert [scenario.pid(name) for name in ("app", "other")] == pids

    assert scenario.product.plugin
    assert scenario.product.companion
    for daemon in (scenario.product.plugin, scenario.product.companion):
        daemon.kill()
    scenario.product.start_plugin()
    scenario.stage.companion()
    undisturbed()
    scenario.box.restart_containerd(signal.SIGKILL)
    scenario.product.wait_for_plugin()
    undisturbed()
    scenario.node.stop_kubelet()
    scenario.node.start_kubelet()
    scenario.node.wait_ready()
    undisturbed()
    scenario.run(*simple("late", 4))
    assert scenario.first("late") == scenario.cpus("late")
    assert len(scenario.check().exclusive) == 3


@pytest.mark.fault("A3", "K10")
def test_a_restarted_kubelet_prepares_a_claim_again_and_nothing_changes(scenario: Scenario) -> None:
    scenario.run(*simple("app", 2))
    before = scenario.record("app")
    uid = scenario.pod("app")["metadata"]["uid"]
    scenario.node.stop_kubelet(signal.SIGKILL)
    # It comes again with a new sandbox, and finds the CDI spec gone as well.
    with scenario.box.cri() as cri:
        cri.stop_sandbox(next(one.id for one in cri.sandboxes() if one.metadata.uid == uid))
    scenario.box.run(f"rm /var/run/cdi/*{before.uid}*")
    scenario.node.start_kubelet()
    scenario.node.wait_ready()
    scenario.pod("app", lambda now: container_status(now, "main")["restartCount"] > 0 and is_ready(now))
    assert scenario.first("app") == before.cpus
    assert scenario.record("app") == before
    scenario.check()


@pytest.mark.fault("K1", "B2")
def test_after_a_reboot_pods_run_on_the_cpus_that_their_claims_had(scenario: Scenario) -> None:
    scenario.run(*simple("app", 2), *simple("other", 3))
    before = {name: scenario.record(name) for name in ("app", "other")}
    scenario.check()
    scenario.box.reboot()
    scenario.node.start_kubelet()
    scenario.product.start_plugin()
    scenario.stage.companion()
    scenario.node.wait_ready()
    for name, record in before.items():
        scenario.pod(name, lambda now: container_status(now, "main")["restartCount"] > 0 and is_ready(now))
        assert scenario.record(name) == record
        assert scenario.first(name) == record.cpus
    assert len(scenario.check().exclusive) == 2

"""The node filled to its last CPU, and beyond."""

from __future__ import annotations

import pytest

from nri_cpu.cpuset import CPUSet
from tests.cluster.manifests import simple
from tests.cluster.scenario import Scenario, is_unschedulable
from tests.cluster.stage import BYSTANDER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.fault("A23", "B1", "P1", "P-1")
def test_claims_fill_the_node_then_wait_then_run_when_one_goes(scenario: Scenario) -> None:
    reserved = CPUSet.parse("0,8")
    full = {"cpudevnuma000": 2, "cpudevnuma001": 4, "cpudevnuma002": 4, "cpudevnuma003": 4}
    scenario.companion("--reserved-cpus", str(reserved), offers=full)
    sizes = {"a": 4, "b": 3, "c": 4, "d": 2, "e": 1}
    scenario.run(*(manifest for name, cpus in sizes.items() for manifest in simple(name, cpus)))
    scenario.apply(*simple("late", 2))
    scenario.pod("late", is_unschedulable)
    # Nothing is left for shared containers but the reserved CPUs.
    facts = scenario.check()
    assert facts.checkpoint.prepared == CPUSet(range(16)) - reserved
    assert facts.shared
    assert {container.cpus for container in facts.shared} == {reserved}
    gone = scenario.cpus("c")
    scenario.delete("c")
    scenario.ready("late")
    assert scenario.first("late") == scenario.cpus("late") <= gone
    facts = scenario.check()
    assert {container.cpus for container in facts.shared} == {gone - scenario.cpus("late")}
    assert any(BYSTANDER in container.title for container in facts.shared)

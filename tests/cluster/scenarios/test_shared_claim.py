"""A claim is for one container: what others hear that name it, and how it goes from one pod to the next."""

from __future__ import annotations

import pytest

from tests.cluster.manifests import claim, container, pod, request, simple
from tests.cluster.scenario import Scenario

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.fault("A20", "A22", "R10")
def test_a_second_container_is_refused_by_name_of_the_owner_and_a_forger_too(scenario: Scenario) -> None:
    scenario.run(*simple("owner", 2))
    uid, cpus = scenario.uid("owner"), scenario.cpus("owner")
    forged = [{"name": f"DRA_CPUSET_{uid}", "value": str(cpus)}]
    scenario.apply(
        pod("thief", container("main", "owner"), claims=["owner"]),
        pod("forger", container("main", env=forged)),
        claim("one", request(cpus=1)),
        pod("twice", container("first", "one"), container("second", "one"), claims=["one"]),
    )
    owner = f"container main of pod {scenario.namespace}/owner"
    assert owner in scenario.refused("thief", "main")
    assert uid in scenario.refused("forger", "main")
    said = scenario.refused("twice", "second")
    assert f"container first of pod {scenario.namespace}/twice" in said
    assert f"{scenario.namespace}/one" in said
    assert scenario.first("twice", "first") == scenario.cpus("one")
    facts = scenario.check()
    assert len(facts.exclusive) == 2


@pytest.mark.fault("A22")
def test_a_named_claim_goes_to_the_next_pod_without_being_unprepared(scenario: Scenario) -> None:
    scenario.run(*simple("cpus", 3))
    before = scenario.record("cpus")
    scenario.apply(pod("next", container("main", "cpus"), claims=["cpus"]))
    scenario.refused("next", "main")
    scenario.delete("cpus")
    scenario.ready("next")
    assert scenario.first("next") == before.cpus
    assert scenario.record("cpus").preparation == before.preparation
    scenario.check()

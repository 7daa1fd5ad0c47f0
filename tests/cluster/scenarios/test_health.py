"""CPUs that go off line, as a user sees it: in the pod's status, in what is published, and in the shared pool."""

from __future__ import annotations

import pytest

from nri_cpu.cpuset import CPUSet
from tests.cluster.manifests import Manifest, claim, container, pod, request
from tests.cluster.scenario import Scenario, container_status

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DEVICE = "cpudevnuma003"
ALL = {f"cpudevnuma{node:03}": 4 for node in range(4)}


def health(now: Manifest) -> list[Manifest]:
    """What the kubelet tells of the container's devices."""
    return [
        one for row in container_status(now, "main").get("allocatedResourcesStatus", ()) for one in row["resources"]
    ]


def is_told(now: Manifest, state: str) -> bool:
    return [one.get("health") for one in health(now)] == [state]


@pytest.mark.fault("B10", "B11", "H1", "H2", "H5", "F-10")
def test_a_claims_cpu_off_line_is_seen_in_health_slice_and_pool_and_comes_back(scenario: Scenario) -> None:
    where = ['device.attributes["resource.kubernetes.io"].numaNode == 3']
    scenario.run(
        claim("app", request(cpus=2, where=where)),
        pod("app", container("main", "app"), claims=["app"]),
    )
    record = scenario.record("app")
    row = health(scenario.pod("app", lambda now: is_told(now, "Healthy")))[0]
    assert row["resourceID"] == f"dra.k8s.io/cpu=claim-{record.uid}-{DEVICE}"

    lost = CPUSet([max(record.cpus)])
    scenario.box.offline(lost)
    scenario.pod("app", lambda now: is_told(now, "Unhealthy"))
    scenario.offers({**ALL, DEVICE: 3})
    facts = scenario.check()
    assert {container.cpus for container in facts.exclusive} == {record.cpus - lost}
    scenario.box.online(lost)
    scenario.pod("app", lambda now: is_told(now, "Healthy"))
    scenario.offers(ALL)
    scenario.check()

    # One that nobody has makes no device ill.
    free = CPUSet([max(CPUSet.parse("6-7,14-15") - record.cpus)])
    scenario.box.offline(free)
    scenario.offers({**ALL, DEVICE: 3})
    facts = scenario.check()
    assert all(container.cpus.isdisjoint(free) for container in facts.shared)
    assert is_told(scenario.pod("app"), "Healthy")

    # Without any of its CPUs the container is where the others are, and comes back.
    scenario.box.offline(record.cpus)
    scenario.pod("app", lambda now: is_told(now, "Unhealthy"))
    scenario.check()
    scenario.box.online(record.cpus | free)
    scenario.offers(ALL)
    facts = scenario.check()
    assert {container.cpus for container in facts.exclusive} == {record.cpus}

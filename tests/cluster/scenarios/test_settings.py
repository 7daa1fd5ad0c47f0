"""The configuration changes while claims live: what is prepared stays, what is published makes room for it."""

from __future__ import annotations

import pytest

from nri_cpu.cpuset import CPUSet
from tests.cluster.manifests import claim, container, pod, request
from tests.cluster.scenario import Scenario

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CHOSEN = CPUSet.parse("3,11")  # one core of NUMA node 1
ON_NODE_1 = 'device.attributes["resource.kubernetes.io"].numaNode == 1'


@pytest.mark.fault("R4", "R8", "R17", "S3")
def test_claims_keep_their_cpus_when_others_are_reserved_and_when_devices_change(scenario: Scenario) -> None:
    single = {f"cpudev{cpu:03}": 1 for cpu in range(16)}
    scenario.companion("--cpu-device-mode", "individual", offers=single)
    these = f'device.attributes["dra.cpu"].cpuID in [{", ".join(map(str, CHOSEN))}]'
    scenario.run(
        claim("kept", request(count=2, where=[these])),
        pod("kept", container("main", "kept"), claims=["kept"]),
    )
    before, pid = scenario.record("kept"), scenario.pid("kept")
    assert before.cpus == CHOSEN
    scenario.check()

    # Reserved now: it keeps them, and no other name means another CPU.
    reserved = CPUSet.parse("0,3")
    left = {f"cpudev{cpu:03}": 1 for cpu in range(16) if cpu not in reserved}
    scenario.companion("--cpu-device-mode", "individual", "--reserved-cpus", str(reserved), offers=left)
    scenario.run(
        claim("second", request(count=1, where=['device.attributes["dra.cpu"].cpuID == 2'])),
        pod("second", container("main", "second"), claims=["second"]),
    )
    assert scenario.first("second") == CPUSet([2])
    scenario.check(kept_on_reserved=[before.uid])

    # Grouped now: of NUMA node 1 that much is published as the claims leave.
    groups = {"cpudevnuma000": 4, "cpudevnuma001": 1, "cpudevnuma002": 4, "cpudevnuma003": 4}
    scenario.companion(offers=groups)
    scenario.run(
        claim("third", request(cpus=1, where=[ON_NODE_1])),
        pod("third", container("main", "third"), claims=["third"]),
    )
    assert scenario.first("third") == CPUSet([10])
    scenario.kill("kept")
    assert scenario.first("kept") == scenario.cpus("kept") == before.cpus
    assert scenario.pid("kept") != pid
    scenario.check()
    scenario.delete("kept", "second")
    scenario.offers({**groups, "cpudevnuma001": 4})
    scenario.check()

"""The manifests of the page on claims, as they stand there: each does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from hack.node.container_image import NAME as IMAGE
from tests.cluster.manifests import FIRST, Manifest, container, device_class, pod
from tests.cluster.scenario import Scenario
from tests.cluster.scenarios.test_groupings import NODES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_PAGE = Path(__file__).resolve().parents[3] / "docs/claims.md"


# All that the tests below run.
USED = {
    *(("Pod", name) for name in ("trading", "firewall", "pair", "plain")),
    *(("ResourceClaim", name) for name in ("firewall", "on-node-1", "spread", "planned", "near-the-nic")),
    ("ResourceClaimTemplate", "four-cpus"),
}


def _manifests() -> dict[tuple[str, str], Manifest]:
    """What the page's YAML makes, by kind and name; the containers run a program that the node has."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", _PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    found = [document for block in blocks for document in yaml.safe_load_all(block)]
    for manifest in found:
        if manifest["kind"] == "Pod":
            for each in manifest["spec"]["containers"]:
                each |= {"image": IMAGE, "imagePullPolicy": "Never", "command": list(FIRST)}
            manifest["spec"] |= {"hostNetwork": True, "terminationGracePeriodSeconds": 1}
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in found}


def _with_a_pod(claim: Manifest) -> tuple[Manifest, Manifest]:
    name = claim["metadata"]["name"]
    return claim, pod(name, container("main", name), claims=[name])


def test_what_the_page_on_claims_shows_runs_as_it_says(scenario: Scenario) -> None:
    page = _manifests()
    assert page.keys() == USED
    scenario.run(
        page["ResourceClaimTemplate", "four-cpus"],
        page["Pod", "trading"],
        page["ResourceClaim", "firewall"],
        page["Pod", "firewall"],
    )
    trading, firewall = scenario.first("trading"), scenario.first("firewall")
    assert trading in NODES
    assert len(firewall) == 2
    scenario.check()
    scenario.delete("trading", "firewall")

    scenario.run(page["Pod", "pair"], *_with_a_pod(page["ResourceClaim", "on-node-1"]))
    fast, side = scenario.first("pair", "fast"), scenario.first("pair", "side")
    assert fast != side
    assert {fast, side} <= set(NODES)
    assert len(scenario.first("on-node-1")) == 2
    assert scenario.first("on-node-1") <= NODES[1]
    assert scenario.first("pair", "shared").isdisjoint(fast | side)
    scenario.check()
    scenario.delete("pair", "on-node-1")

    scenario.run(*_with_a_pod(page["ResourceClaim", "spread"]))
    one, other = scenario.first("spread")
    assert other - one != 8  # siblings
    scenario.delete("spread")


def test_what_the_page_on_claims_shows_of_other_configurations_runs_as_it_says(scenario: Scenario) -> None:
    page = _manifests()
    scenario.companion("--group-by", "machine", offers={"cpudevmachine": 16})
    scenario.run(*_with_a_pod(page["ResourceClaim", "planned"]))
    assert str(scenario.first("planned")) == "2,10"
    scenario.check()
    scenario.delete("planned")
    scenario.companion("--cpu-device-mode", "individual", offers={f"cpudev{cpu:03}": 1 for cpu in range(16)})
    scenario.run(page["Pod", "plain"])
    assert len(scenario.first("plain")) == 2
    scenario.check()


def test_the_cpus_of_the_page_on_claims_are_near_the_nic(scenario: Scenario) -> None:
    nic = {"name": "nic0", "attributes": {"resource.kubernetes.io/numaNode": {"int": 3}}}
    scenario.other_driver("test.example", [nic])
    scenario.apply(device_class("nic.example", selectors=[{"cel": {"expression": 'device.driver == "test.example"'}}]))
    scenario.run(*_with_a_pod(_manifests()["ResourceClaim", "near-the-nic"]))
    assert scenario.first("near-the-nic") <= NODES[3]
    scenario.check()

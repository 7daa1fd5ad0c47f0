"""What a container is told about its CPUs: device metadata (KEP-5304) and a variable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nri_cpu.cpuset import CPUSet
from tests.cluster.manifests import choice, claim, container, exactly, pod, request, template
from tests.cluster.scenario import Scenario

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DIRECTORY = "/var/run/kubernetes.io/dra-device-attributes"


def inside(scenario: Scenario, name: str, *command: str) -> str:
    """What a command in the pod's container prints."""
    with scenario.box.cri() as cri:
        code, out, err = cri.exec(scenario.container_id(name), *command)
    assert code == 0, err
    return out


def attributes(text: str) -> dict[str, Any]:
    """The attributes of the one device in a metadata file, which says the same in each version."""
    first, *others = (json.loads(line) for line in text.splitlines())
    assert {one["apiVersion"].rpartition("/")[2] for one in (first, *others)} == {"v1beta1", "v1alpha1"}
    assert all(one["requests"] == first["requests"] for one in others)
    [[device]] = [one["devices"] for one in first["requests"]]
    assert (device["driver"], device["pool"]) == ("dra.cpu", "node1")
    return {**device["attributes"], "name": device["name"]}


@pytest.mark.fault("F-4", "F-5")
def test_a_container_can_read_its_cpus_and_its_devices_attributes(scenario: Scenario) -> None:
    scenario.run(
        claim("named", request("cpus", 3)),
        pod("named", container("main", "named"), claims=["named"]),
        template("made", choice("either", big=exactly(5), small=exactly(2))),
        pod("made", container("main", "made"), templates=["made"]),
    )
    published = {
        device["name"]: device["attributes"]
        for one in scenario.api.list("ResourceSlice")
        if one["spec"]["driver"] == "dra.cpu"
        for device in one["spec"]["devices"]
    }
    for name, path, count in (
        ("named", "resourceclaims/named/cpus", 3),
        ("made", "resourceclaimtemplates/made/either", 2),
    ):
        text = inside(scenario, name, "/bin/cat", f"{DIRECTORY}/{path}/dra.cpu-metadata.json")
        told = attributes(text)
        record = scenario.record(name if name == "named" else scenario.claim_of(name, name))
        assert told.pop("dra.cpu/allocatedNumCPUs") == {"int": count}
        assert CPUSet.parse(told.pop("dra.cpu/cpuset")["string"]) == record.cpus
        assert told.pop("name") == record.devices[0].device
        assert told == published[record.devices[0].device]
        assert f"DRA_CPUSET_{record.uid}={record.cpus}" in inside(scenario, name, "/bin/env").splitlines()
    scenario.check()

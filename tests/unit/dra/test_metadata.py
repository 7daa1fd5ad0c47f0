"""Promises of device metadata: what KEP-5304 asks of its form, and that a container learns its CPUs from it."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra import metadata
from dra.devices import MAX_VALUES, PCIE_ROOT, AttributeValue, DeviceMode
from dra.prepare.choice import Node
from nri_cpu.checkpoint.model import ClaimRecord, DeviceAllocation
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.manifests import NODE, UID
from tests.unit.topology.machines import t1

GROUP = "cpudevnuma000"


def record(*devices: DeviceAllocation, pod_claim_name: str | None = None) -> ClaimRecord:
    cpus = CPUSet.union(device.cpus for device in devices)
    base = ClaimRecord(UID, "default", "mine", (), cpus, "0" * 32, "2026-11-30T10:24:00Z", devices)
    return replace(base, pod_claim_name=pod_claim_name)


def allocation(cpus: str, request: str = "cpus", device: str = GROUP) -> DeviceAllocation:
    return DeviceAllocation(request, NODE, device, CPUSet.parse(cpus))


def node(mode: DeviceMode = DeviceMode.GROUPED) -> Node:
    return Node.of(NODE, mode, t1(), CPUSet(), 0)


def versions(claim: ClaimRecord, request: str = "cpus", attributes: metadata.Attributes | None = None) -> list[Any]:
    raw = metadata.content(claim, request, attributes or node().attributes)
    return [json.loads(line) for line in raw.splitlines()]


def attributes_of(claim: ClaimRecord, **known: AttributeValue) -> dict[str, Any]:
    (request,) = versions(claim, attributes=lambda name: known)[0]["requests"]
    found: dict[str, Any] = request["devices"][0]["attributes"]
    return found


@pytest.mark.fault("F-5")
def test_a_claim_learns_its_cpus_beside_all_that_its_device_has() -> None:
    assert versions(record(allocation("0-1,8-9")))[0] == {
        "kind": "DeviceMetadata",
        "apiVersion": "metadata.resource.k8s.io/v1beta1",
        "metadata": {"name": "mine", "namespace": "default", "uid": UID, "generation": 1},
        "requests": [
            {
                "name": "cpus",
                "devices": [
                    {
                        "driver": "dra.cpu",
                        "pool": NODE,
                        "name": GROUP,
                        "attributes": {
                            "dra.cpu/numCPUs": {"int": 16},
                            "dra.cpu/smtEnabled": {"bool": True},
                            "dra.cpu/socketID": {"int": 0},
                            "dra.cpu/numaNodeID": {"int": 0},
                            "dra.net/numaNode": {"int": 0},
                            "resource.kubernetes.io/numaNode": {"int": 0},
                            "dra.cpu/allocatedNumCPUs": {"int": 4},
                            "dra.cpu/cpuset": {"string": "0-1,8-9"},
                        },
                    }
                ],
            }
        ],
    }


def test_the_generation_is_of_the_file_and_grows_by_one_with_each_change() -> None:
    first, second = record(allocation("0")), record(allocation("1"))
    attributes = node().attributes
    new = metadata.updated(b"", first, "cpus", attributes)
    assert new == metadata.content(first, "cpus", attributes)
    assert metadata.updated(new, first, "cpus", attributes) == new
    for generation in (2, 3):
        changed = metadata.updated(new, second, "cpus", attributes)
        assert json.loads(changed.splitlines()[0])["metadata"]["generation"] == generation
        assert metadata.updated(changed, second, "cpus", attributes) == changed
        new, first, second = changed, second, first


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b"\0" * 100,
        b"\xff\n{}",
        b"[" * 100_000,
        b"[]",
        b"null",
        b'{"metadata": null}',
        b'{"metadata": []}',
        b'{"metadata": {}}',
        *(b'{"metadata": {"generation": %s}}' % each for each in (b"true", b"1.5", b'"1"', b"null", b"0", b"-3")),
        b'{"metadata": {"generation": 9223372036854775807}}',
        b'{"metadata": {"generation": 1' + b"0" * 5000 + b"}}",
    ],
)
def test_after_a_damaged_file_the_generation_is_the_first(broken: bytes) -> None:
    claim, attributes = record(allocation("0")), node().attributes
    assert metadata.updated(broken, claim, "cpus", attributes) == metadata.content(claim, "cpus", attributes)


def test_each_version_is_a_line_of_its_own_the_newest_first_and_says_the_same() -> None:
    newest, oldest = versions(record(allocation("0")))
    assert oldest == newest | {"apiVersion": "metadata.resource.k8s.io/v1alpha1"}


def test_a_name_that_looks_like_a_version_changes_nothing() -> None:
    strange = replace(record(allocation("0")), name="metadata.resource.k8s.io/v1beta1")
    newest, oldest = versions(strange)
    assert oldest["metadata"] == newest["metadata"]
    assert oldest["metadata"]["name"] == strange.name


def test_each_request_has_a_file_with_its_own_devices_in_their_order() -> None:
    claim = record(
        allocation("3", "a", "cpudev003"), allocation("5", "b", "cpudev005"), allocation("1", "a", "cpudev001")
    )
    assert metadata.requests_of(claim) == ("a", "b")
    attributes = node(DeviceMode.INDIVIDUAL).attributes
    (told,) = versions(claim, "a", attributes)[0]["requests"]
    assert [device["name"] for device in told["devices"]] == ["cpudev003", "cpudev001"]
    assert [device["attributes"]["dra.cpu/cpuID"] for device in told["devices"]] == [{"int": 3}, {"int": 1}]
    (told,) = versions(claim, "b", attributes)[0]["requests"]
    assert [device["name"] for device in told["devices"]] == ["cpudev005"]


def test_a_request_with_alternatives_has_the_file_of_its_name_and_tells_the_one_that_was_allocated() -> None:
    claim = record(allocation("0", "cpus/big"))
    assert metadata.requests_of(claim) == ("cpus",)
    assert [request["name"] for request in versions(claim)[0]["requests"]] == ["cpus/big"]


def test_a_device_of_another_configuration_has_its_attributes_and_one_that_is_gone_only_the_claims() -> None:
    (told,) = versions(record(allocation("3", device="cpudev003")))[0]["requests"]
    assert told["devices"][0]["attributes"]["dra.cpu/cpuID"] == {"int": 3}
    assert attributes_of(record(allocation("3", device="cpudev999"))) == {
        "dra.cpu/allocatedNumCPUs": {"int": 1},
        "dra.cpu/cpuset": {"string": "3"},
    }


@given(st.frozensets(st.integers(0, 8191), min_size=1, max_size=300))
def test_a_list_of_cpus_of_any_length_is_whole_in_as_many_strings_as_it_takes(cpus: frozenset[int]) -> None:
    claim = record(DeviceAllocation("cpus", NODE, GROUP, CPUSet(cpus)))
    found = attributes_of(claim, x=1)
    assert found["dra.cpu/allocatedNumCPUs"] == {"int": len(cpus)}
    if "dra.cpu/cpuset" in found:
        ((form, value),) = found["dra.cpu/cpuset"].items()
        pieces = [value] if form == "string" else value
        assert (form == "strings") == (len(str(CPUSet(cpus))) > 64)
        assert all(len(piece) <= 64 for piece in pieces)
        assert CPUSet.parse(",".join(pieces)) == CPUSet(cpus)
        assert len(pieces) + 2 <= MAX_VALUES


def test_a_device_has_no_more_values_than_one_may_have_and_no_half_list_of_cpus() -> None:
    claim = record(DeviceAllocation("cpus", NODE, GROUP, CPUSet(range(0, 100, 2))))

    def beside(roots: int) -> dict[str, Any]:
        return attributes_of(claim, **{PCIE_ROOT: tuple(f"pci{number}" for number in range(roots))})

    assert len(beside(44)["dra.cpu/cpuset"]["strings"]) == 3  # with the number of CPUs they are 48
    assert "dra.cpu/cpuset" not in beside(45)
    assert len(beside(45)[PCIE_ROOT]["strings"]) == 45


def test_a_list_of_cpus_that_is_as_long_as_a_string_may_be_is_one() -> None:
    numbers = range(1000, 1026, 2)
    assert len(str(CPUSet(numbers))) == 64
    assert attributes_of(record(DeviceAllocation("cpus", NODE, GROUP, CPUSet(numbers))))["dra.cpu/cpuset"] == {
        "string": str(CPUSet(numbers))
    }
    more = attributes_of(record(DeviceAllocation("cpus", NODE, GROUP, CPUSet([*numbers, 1026]))))
    assert more["dra.cpu/cpuset"] == {"strings": [str(CPUSet(numbers)), "1026"]}


def spec(claim: ClaimRecord, request: str = "cpus") -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(metadata.spec(claim, request, "/host/file"))
    return found


def test_the_spec_mounts_the_file_where_programs_look_for_it() -> None:
    claim = record(allocation("0"))
    assert spec(claim) == {
        "cdiVersion": "0.5.0",
        "kind": "dra.cpu/metadata",
        "devices": [
            {
                "name": f"{UID}_cpus",
                "containerEdits": {
                    "mounts": [
                        {
                            "hostPath": "/host/file",
                            "containerPath": "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/mine/cpus/"
                            "dra.cpu-metadata.json",
                            "options": ["ro", "bind"],
                        }
                    ]
                },
            }
        ],
    }
    assert metadata.cdi_id(UID, "cpus") == f"dra.cpu/metadata={UID}_cpus"
    assert metadata.spec_file(UID, "cpus") == f"dra.cpu_metadata_{UID}_cpus.json"


@pytest.mark.parametrize("request_", ["a", "0", "a-b", "container-0-request-0", "x" * 63])
def test_the_spec_keeps_the_rules_of_the_runtimes_library(request_: str) -> None:
    """container-device-interface, pkg/cdi: an odd name or an unknown key spoils the file."""
    made = spec(record(allocation("0", request_)), request_)
    (device,) = made["devices"]
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", device["name"])
    assert metadata.cdi_id(UID, request_) == f"{made['kind']}={device['name']}"
    assert len(f".{metadata.spec_file(UID, request_)}.0123456789abcdef.tmp") <= 255


def test_a_claim_of_a_template_goes_by_the_name_that_its_pod_has_for_it() -> None:
    claim = record(allocation("0", "cpus/big"), pod_claim_name="mine-in-the-pod")
    (device,) = spec(claim)["devices"]
    assert device["containerEdits"]["mounts"][0]["containerPath"] == (
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/mine-in-the-pod/cpus/dra.cpu-metadata.json"
    )
    assert versions(claim)[0]["podClaimName"] == "mine-in-the-pod"
    assert "podClaimName" not in versions(record(allocation("0")))[0]


def test_nothing_tells_the_preparation() -> None:
    claim = replace(record(allocation("0")), preparation="feedfacefeedfacefeedfacefeedface")
    assert b"feedface" not in metadata.content(claim, "cpus", node().attributes) + metadata.spec(claim, "cpus", "/x")

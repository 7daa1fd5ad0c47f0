"""Claims as users of dra-driver-cpu write them, in both device modes and in each grouping."""

from __future__ import annotations

import pytest

from hack.node.machine import Machine
from nri_cpu.cpuset import CPUSet
from tests.cluster.manifests import claim, container, device_class, opaque, pod, request, simple
from tests.cluster.scenario import Scenario, condition, is_unschedulable

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NODES = Machine().node_cpus()
SOCKETS = (NODES[0] | NODES[1], NODES[2] | NODES[3])

STANDARD, OURS, NETWORK = (
    f'device.attributes["{domain}"]' for domain in ("resource.kubernetes.io", "dra.cpu", "dra.net")
)
ON_NODE_1 = (
    f"{STANDARD}.numaNode == 1",
    f"{OURS}.numaNodeID == 1",
    f"{NETWORK}.numaNode == 1",
    f"{OURS}.socketID == 0",
    f"{OURS}.numCPUs == 4",
    f"{OURS}.smtEnabled == true",
    "device.allowMultipleAllocations == true",
    'device.capacity["dra.cpu"].cpu.compareTo(quantity("4")) == 0',
)
SINGLE_ON_NODE_3 = (
    f"{STANDARD}.numaNode == 3",
    f"{OURS}.numaNodeID == 3",
    f"{NETWORK}.numaNode == 3",
    f"{OURS}.socketID == 1",
    f"{OURS}.cpuID >= 6",
    f"{OURS}.coreID >= 0",
    f"{OURS}.cacheL3ID >= 0",
    f'{OURS}.coreType == "standard"',
    f"{OURS}.smtEnabled == true",
)


def nowhere(scenario: Scenario, name: str, *expressions: str) -> None:
    """For each expression a claim that asks for its opposite, whose pod then waits for the scheduler."""
    for number, expression in enumerate(expressions):
        one = f"{name}-{number}"
        scenario.apply(
            claim(one, request(count=1, where=[f"!({expression})", *expressions[:1]])),
            pod(one, container("main", one), claims=[one]),
        )
    for number in range(len(expressions)):
        waiting = scenario.pod(f"{name}-{number}", is_unschedulable)
        assert "cannot allocate all claims" in condition(waiting, "PodScheduled")["message"]


@pytest.mark.fault("A4", "I5", "A29")
def test_claims_of_many_shapes_on_numa_nodes_each_run_on_exactly_their_cpus(scenario: Scenario) -> None:
    two = [request("a", 1), request("b", 1)]
    apart = {"requests": ["a", "b"], "distinctAttribute": "resource.kubernetes.io/numaNode"}
    together = {"requests": ["a", "b"], "matchAttribute": "dra.cpu/socketID"}
    scenario.run(
        *simple("two", 2),
        *(claim("requests", *two), pod("requests", container("main", "requests"), claims=["requests"])),
        *(claim("on-1", request(cpus=2, where=ON_NODE_1)), pod("on-1", container("main", "on-1"), claims=["on-1"])),
        *(claim("apart", *two, constraints=[apart]), pod("apart", container("main", "apart"), claims=["apart"])),
        *(claim("near", *two, constraints=[together]), pod("near", container("main", "near/a"), claims=["near"])),
        *(claim(name, request(cpus=1)) for name in ("x", "y", "z")),
        pod("several", container("one", "x"), container("both", "y", "z"), container("shared"), claims=["x", "y", "z"]),
    )
    for name in ("two", "requests", "on-1", "apart", "near"):
        assert len(scenario.cpus(name)) == 2
        assert scenario.first(name) == scenario.cpus(name)
    assert scenario.first("several", "one") == scenario.cpus("x")
    assert scenario.first("several", "both") == scenario.cpus("y", "z")
    assert scenario.cpus("on-1") <= NODES[1]
    assert all(len(scenario.cpus("apart") & node) < 2 for node in NODES)
    assert any(scenario.cpus("near") <= socket for socket in SOCKETS)
    assert len(scenario.check().exclusive) == 7


@pytest.mark.fault("A29")
def test_a_claim_can_be_kept_off_by_every_attribute_of_a_numa_node(scenario: Scenario) -> None:
    nowhere(scenario, "not", *ON_NODE_1)


def test_a_socket_is_one_device_and_a_claim_may_span_its_numa_nodes(scenario: Scenario) -> None:
    scenario.companion("--group-by", "socket", offers={"cpudevsocket000": 8, "cpudevsocket001": 8})
    over_both = opaque(strategy="distributed", numaNodes=2)
    where = [f"{OURS}.socketID == 1", f"{OURS}.numCPUs == 8", f"{OURS}.smtEnabled == true"]
    scenario.run(
        *simple("six", 6),
        claim("three", request(cpus=3, where=where), config=[over_both]),
        pod("three", container("main", "three"), claims=["three"]),
    )
    six, three = scenario.cpus("six"), scenario.cpus("three")
    assert (len(six), len(three)) == (6, 3)
    assert any(six <= socket for socket in SOCKETS)
    assert three <= SOCKETS[1]
    assert sorted(len(three & node) for node in NODES[2:]) == [1, 2]
    assert scenario.first("six") == six
    assert scenario.first("three") == three
    scenario.check()


@pytest.mark.fault("A13")
def test_on_a_machine_as_one_device_a_claim_names_its_cpus_or_hears_why_not(scenario: Scenario) -> None:
    scenario.companion("--group-by", "machine", offers={"cpudevmachine": 16})

    def named(name: str, cpus: int, *cpuset: str) -> None:
        config = [opaque(["cpus"], cpuset=one) for one in cpuset]
        scenario.apply(
            claim(name, request(cpus=cpus), config=config), pod(name, container("main", name), claims=[name])
        )

    named("named", 3, "2-3,10")
    scenario.ready("named")
    assert scenario.first("named") == scenario.cpus("named") == CPUSet.parse("2-3,10")
    named("none", 1)
    named("twice", 1, "4", "5")
    named("size", 2, "4-6")
    named("taken", 2, "3-4")
    named("absent", 2, "15-16")
    for name, words in (
        ("none", "nothing says which CPUs to take"),
        ("twice", "the claim sets 2 cpusets"),
        ("size", "has 3 CPUs, 2 are allocated"),
        ("taken", f"are prepared for claim {scenario.namespace}/named"),
        ("absent", "CPUs 16 do not exist"),
    ):
        scenario.said(name, "FailedPrepareDynamicResources", words)
        assert not scenario.prepared(name)
    scenario.check()


@pytest.mark.fault("A40", "R8")
def test_single_cpus_are_taken_by_every_attribute_and_by_a_plain_resource(scenario: Scenario) -> None:
    scenario.companion("--cpu-device-mode", "individual", offers={f"cpudev{cpu:03}": 1 for cpu in range(16)})
    core = [{"requests": ["a", "b"], "matchAttribute": f"dra.cpu/{name}"} for name in ("coreID", "cacheL3ID")]
    limits = {"limits": {"deviceclass.resource.kubernetes.io/dra.cpu": "2"}}
    scenario.run(
        claim("on-3", request(count=3, where=SINGLE_ON_NODE_3)),
        pod("on-3", container("main", "on-3"), claims=["on-3"]),
        claim("core", request("a", count=1), request("b", count=1), constraints=core),
        pod("core", container("main", "core"), claims=["core"]),
        *(claim(name, request(count=2)) for name in ("x", "y")),
        pod("union", container("main", "x", "y"), claims=["x", "y"]),
        pod("plain", container("main", resources=limits)),
    )
    assert scenario.first("on-3") == scenario.cpus("on-3") <= NODES[3]
    first, second = scenario.first("core")
    assert second - first == 8  # siblings
    union = scenario.first("union")
    assert union == scenario.cpus("x", "y")
    assert len(union) == 4
    extended = scenario.pod("plain")["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    assert scenario.first("plain") == scenario.cpus(extended)
    assert len(scenario.cpus(extended)) == 2
    for record in scenario.check().records.values():
        assert {f"cpudev{cpu:03}" for cpu in record.cpus} == {device.device for device in record.devices}
    nowhere(scenario, "not", *SINGLE_ON_NODE_3)


@pytest.mark.fault("A5")
def test_cpus_are_on_the_numa_node_of_another_drivers_device_in_the_same_claim(scenario: Scenario) -> None:
    other = "test.example"
    device = {"name": "nic0", "attributes": {"resource.kubernetes.io/numaNode": {"int": 2}}}
    scenario.other_driver(other, [device])
    scenario.apply(device_class(other, selectors=[{"cel": {"expression": f'device.driver == "{other}"'}}]))
    same = {"requests": ["cpus", "nic"], "matchAttribute": "resource.kubernetes.io/numaNode"}
    scenario.run(
        claim("both", request(cpus=2), request("nic", count=1, device_class=other), constraints=[same]),
        pod("both", container("main", "both"), claims=["both"]),
    )
    assert scenario.first("both") == scenario.cpus("both") <= NODES[2]
    assert [entry.device for entry in scenario.record("both").devices] == ["cpudevnuma002"]
    scenario.check()

"""The publisher on a real API server: what it writes stays as it is written, by its feature gates, and comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.devices import PCIE_ROOT, Device, DeviceMode, GroupBy, devices_of
from dra.slices.objects import slices_of
from dra.slices.pool import MAPPING_FEATURE
from dra.slices.publisher import Publisher
from hack.kube.cluster import Cluster
from hack.wait import wait_until
from nri_cpu.topology import Topology
from tests.cluster.conftest import StartCluster
from tests.unit.dra.api_scenarios import NODES, SLICES, Ground
from tests.unit.topology.machines import box, machine

# A test may have to start a cluster, on a machine that is busy with other things.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LIMIT = 60.0


def individual(pcie_roots: bool = False) -> tuple[Device, ...]:
    one = machine(cores=130)
    topology = Topology.of(one.cpus.values(), pcie_roots={"pci0000:00": one.online} if pcie_roots else {})
    return devices_of(topology, topology.online, DeviceMode.INDIVIDUAL, pcie_roots=pcie_roots)


def grouped() -> tuple[Device, ...]:
    topology = box()
    return devices_of(topology, topology.online, DeviceMode.GROUPED, GroupBy.NUMANODE)


class Published:
    """Slices of a node without kubelet, kept by publishers that run here."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.publisher = Publisher(ground.api, ground.node)

    def want(self, devices: tuple[Device, ...], mapping: bool = False) -> None:
        self.publisher.want(devices, mapping)
        wait_until("publication", lambda: self.publisher.published, LIMIT)

    @property
    def slices(self) -> list[dict[str, Any]]:
        return list(self.ground.api.list().items)

    @property
    def versions(self) -> dict[str, str]:
        return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in self.slices}

    def declare(self, *features: str) -> None:
        node = self.ground.do("GET", f"{NODES}/{self.ground.node}")
        node["status"]["declaredFeatures"] = list(features)
        self.ground.do("PUT", f"{NODES}/{self.ground.node}/status", node)

    def another(self, devices: tuple[Device, ...], mapping: bool) -> str | None:
        """What a publisher that starts now finds; its problem."""
        other = Publisher(self.ground.api, self.ground.node)
        other.want(devices, mapping)
        with running(other):
            wait_until("publication", lambda: other.published, LIMIT)
        return other.problem


@contextlib.contextmanager
def running(publisher: Publisher) -> Iterator[None]:
    publisher.start()
    try:
        yield
    finally:
        publisher.stop()


@contextlib.contextmanager
def publishing(cluster: Cluster, directory: Path) -> Iterator[Published]:
    ground = Ground(cluster.kubeconfig, directory)
    ground.create_node()
    made = Published(ground)
    try:
        with running(made.publisher):
            yield made
    finally:
        ground.clean()


@pytest.fixture
def published(cluster: Cluster, tmp_path: Path) -> Iterator[Published]:
    with publishing(cluster, tmp_path) as made:
        yield made


def test_what_is_published_is_what_was_asked_for_and_takes_no_second_write(published: Published) -> None:
    for devices in (individual(), grouped(), individual()[:3]):
        published.want(devices)
        assert published.publisher.problem is None
        wanted = [manifest["spec"]["devices"] for manifest in slices_of(devices, published.ground.node)]
        assert [found["spec"]["devices"] for found in published.slices] == wanted
        before = published.versions
        assert published.another(devices, mapping=False) is None
        assert published.versions == before


@pytest.mark.fault("R9")
def test_nothing_to_publish_leaves_no_slice(published: Published) -> None:
    published.want(individual())
    published.want(())
    assert published.slices == []


@pytest.mark.fault("K7")
def test_what_others_change_or_delete_is_repaired(published: Published) -> None:
    devices = individual()
    published.want(devices)
    wanted = [manifest["spec"]["devices"] for manifest in slices_of(devices, published.ground.node)]

    def repaired() -> bool:
        return [found["spec"]["devices"] for found in published.slices] == wanted

    first = published.slices[0]
    changed = {**first, "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    changed["spec"]["devices"] = changed["spec"]["devices"][:-1]
    published.ground.do("PUT", f"{SLICES}/{first['metadata']['name']}", changed)
    wait_until("repair", repaired, LIMIT)
    published.ground.do("DELETE", f"{SLICES}/{first['metadata']['name']}", {})
    wait_until("repair", repaired, LIMIT)
    # As the kubelet does it at its start.
    published.ground.do("DELETE", f"{SLICES}?fieldSelector=spec.nodeName%3D{published.ground.node}", {})
    wait_until("repair", repaired, LIMIT)
    (pool,) = {
        (found["spec"]["pool"]["generation"], found["spec"]["pool"]["resourceSliceCount"]) for found in published.slices
    }
    assert pool[1] == 2


def test_a_node_that_comes_back_gets_slices_of_its_own(published: Published) -> None:
    """The garbage collector takes those of the one that went."""
    published.want(grouped())
    before = published.versions
    published.ground.do("DELETE", f"{NODES}/{published.ground.node}", {})
    wait_until("the garbage collector", lambda: not before.keys() & published.versions.keys(), LIMIT)
    node = published.ground.create_node()
    published.publisher.poke()

    def owners() -> list[str]:
        return [found["metadata"]["ownerReferences"][0]["uid"] for found in published.slices]

    wait_until("slices of the new node", lambda: owners() == [node["metadata"]["uid"]], LIMIT)


def test_an_api_server_that_was_away_finds_what_was_wanted_meanwhile(cluster: Cluster, published: Published) -> None:
    published.want(grouped())
    cluster.stop_apiserver()
    wait_until("trouble", lambda: published.publisher.problem, LIMIT)
    published.publisher.want(individual())
    assert not published.publisher.published
    cluster.start_apiserver()
    wait_until("publication", lambda: published.publisher.published, 2 * LIMIT)
    assert len(published.slices) == 2


def test_without_consumable_capacity_it_is_told_and_left_at_that(start_cluster: StartCluster, tmp_path: Path) -> None:
    with publishing(start_cluster(gates={"DRAConsumableCapacity": False}, nodes=0), tmp_path) as published:
        published.want(grouped())
        told = "the API server dropped allowMultipleAllocations of 4 devices: the feature gate DRAConsumableCapacity"
        assert (published.publisher.problem or "").startswith(told)
        before = [found["spec"] for found in published.slices]
        assert (published.another(grouped(), mapping=False) or "").startswith(told)
        assert [found["spec"] for found in published.slices] == before


def test_mapping_and_list_attributes_are_taken_behind_their_gates(start_cluster: StartCluster, tmp_path: Path) -> None:
    gates = {MAPPING_FEATURE: True, "DRAListTypeAttributes": True}
    with publishing(start_cluster(gates=gates, nodes=0), tmp_path) as published:
        published.want(grouped(), mapping=True)
        assert "nodeAllocatableResources" not in published.slices[0]["spec"]["devices"][0]
        published.declare(MAPPING_FEATURE)
        published.publisher.poke()
        wait_until(
            "the mapping",
            lambda: "nodeAllocatableResources" in published.slices[0]["spec"]["devices"][0],
            LIMIT,
        )
        for devices, mapping in ((grouped(), True), (individual(pcie_roots=True), False), (individual(), True)):
            published.want(devices, mapping)
            assert published.publisher.problem is None
            before = published.versions
            assert published.another(devices, mapping) is None
            assert published.versions == before
        published.want(individual(pcie_roots=True))
        assert [len(found["spec"]["devices"]) for found in published.slices] == [64, 64, 2]
        assert PCIE_ROOT in published.slices[0]["spec"]["devices"][0]["attributes"]


def test_without_list_attributes_where_their_gate_is_off(published: Published) -> None:
    devices = individual(pcie_roots=True)
    published.want(devices)
    told = f"the API server refused list attribute {PCIE_ROOT} of 130 devices: the feature gate DRAListTypeAttributes"
    wait_until("what is lost", lambda: (published.publisher.problem or "").startswith(told), LIMIT)
    assert [len(found["spec"]["devices"]) for found in published.slices] == [128, 2]
    before = published.versions
    assert (published.another(devices, mapping=False) or "").startswith(told)
    assert published.versions == before
    published.want(individual())
    assert published.publisher.problem is None
    assert published.versions == before

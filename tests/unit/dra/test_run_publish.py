"""Promises of dra-cpu run to a cluster: what the scheduler is told is what the node has, now, and for claims left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from dra.devices import CAPACITY, NUM_CPUS
from hack.wait import wait_until
from nri_cpu.checkpoint.cdi import read_specs
from tests.protocol.fake_kubelet import FakeKubelet
from tests.unit.dra.apiserver import FakeApiServer, apiserver
from tests.unit.dra.companion import Companion, arguments, put_off_line
from tests.unit.dra.manifests import NODE, UID, manifest, result

NODES = "/api/v1/nodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    """An API server with the Node object, and a claim of 2 CPUs of cpudevnuma002."""
    with apiserver() as found:
        fill(found)
        yield found


def fill(server: FakeApiServer) -> None:
    server.objects.create(NODES, {"metadata": {"name": NODE}})
    server.put(manifest(result("cpudevnuma002")))


def slices(server: FakeApiServer) -> list[Any]:
    return list(server.objects.listing(SLICES, {})["items"])


def capacities(server: FakeApiServer) -> dict[str, int]:
    """The published capacity by device, which is numCPUs too."""
    found = {}
    for device in (device for each in slices(server) for device in each["spec"]["devices"]):
        found[device["name"]] = int(device["capacity"][CAPACITY]["value"])
        assert device["attributes"][NUM_CPUS] == {"int": found[device["name"]]}
    return found


def published(server: FakeApiServer, **wanted: int) -> None:
    """Waits for these capacities."""
    wait_until(f"{wanted}, not {capacities(server)}", lambda: capacities(server) == wanted or None)


def numa(*counts: int) -> dict[str, int]:
    return {f"cpudevnuma{at:03}": count for at, count in enumerate(counts) if count}


def test_it_publishes_its_devices_and_leaves_them_published(companion: Companion, server: FakeApiServer) -> None:
    kubelet = FakeKubelet(companion.kubelet_root)
    with kubelet.running(), companion.started(*arguments(companion, server)) as running:
        published(server, **numa(4, 4, 4, 4))
        (only,) = slices(server)
        assert only["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        assert [owner["kind"] for owner in only["metadata"]["ownerReferences"]] == ["Node"]
        assert kubelet.plugin("dra.cpu").name == "dra.cpu"
        assert companion.call("Prepare", UID)[UID].error == ""
        assert running.end() == 0
    published(server, **numa(4, 4, 4, 4))
    assert slices(server) == [only]
    assert set(companion.prepared()) == set(read_specs(companion.cdi)) == {UID}


def test_a_restart_with_nothing_new_writes_nothing(companion: Companion, server: FakeApiServer) -> None:
    for _ in range(2):
        server.requests.clear()
        with companion.started(*arguments(companion, server)) as running:
            wait_until("the watch", lambda: [each for each in server.requests if "watch" in each.query])
            assert running.end() == 0
    assert {request.method for request in server.requests} == {"GET"}


@pytest.mark.fault("B11", "H1", "H2")
def test_capacity_follows_the_cpus_that_are_on_line(companion: Companion, server: FakeApiServer) -> None:
    with companion.started(*arguments(companion, server)):
        published(server, **numa(4, 4, 4, 4))
        put_off_line(companion, "0,4-5,12-13")  # a CPU of one node, all of another
        published(server, **numa(3, 4, 0, 4))
        put_off_line(companion, "")
        published(server, **numa(4, 4, 4, 4))


@pytest.mark.fault("R17")
def test_a_claim_of_another_grouping_lowers_capacity_until_it_is_unprepared(
    companion: Companion, server: FakeApiServer
) -> None:
    with companion.started(*arguments(companion, server)) as running:
        published(server, **numa(4, 4, 4, 4))
        assert companion.call("Prepare", UID)[UID].error == ""
        assert running.end() == 0
    published(server, **numa(4, 4, 4, 4))  # the scheduler counts the claim of the device itself
    with companion.started(*arguments(companion, server), "--group-by", "socket"):
        published(server, cpudevsocket000=8, cpudevsocket001=6)
        assert companion.call("Unprepare", UID)[UID].error == ""
        published(server, cpudevsocket000=8, cpudevsocket001=8)


@pytest.mark.fault("R17", "R8")
def test_a_cpu_of_a_claim_of_a_group_is_no_device_in_individual_mode(
    companion: Companion, server: FakeApiServer
) -> None:
    with companion.started(*arguments(companion, server)) as running:
        running.said("serving the kubelet")
        assert companion.call("Prepare", UID)[UID].error == ""
        assert running.end() == 0
    with companion.started(*arguments(companion, server), "--cpu-device-mode", "individual"):

        def names() -> set[str]:
            return {device["name"] for each in slices(server) for device in each["spec"]["devices"]}

        every = {f"cpudev{cpu:03}" for cpu in range(16)}
        wait_until("14 devices", lambda: names() == every - {"cpudev004", "cpudev012"} or None)
        assert companion.call("Unprepare", UID)[UID].error == ""
        wait_until("16 devices", lambda: names() == every or None)


@pytest.mark.fault("R9", "R16")
def test_with_all_cpus_reserved_no_slice_is_left(companion: Companion, server: FakeApiServer) -> None:
    with companion.started(*arguments(companion, server)) as running:
        published(server, **numa(4, 4, 4, 4))
        assert running.end() == 0
    with companion.started(*arguments(companion, server), "--reserved-cpus", "0-15") as running:
        running.said("all CPUs are reserved: no claim can be prepared")
        wait_until("no slice", lambda: not slices(server))
        assert running.end() == 0


@pytest.mark.fault("K8", "K10")
def test_slices_that_a_starting_kubelet_wipes_are_back_when_it_has_registered(
    companion: Companion, server: FakeApiServer
) -> None:
    kubelet = FakeKubelet(companion.kubelet_root)
    with companion.started(*arguments(companion, server)):
        published(server, **numa(4, 4, 4, 4))
        for each in slices(server):
            server.objects.delete(SLICES, each["metadata"]["name"], {})
        with kubelet.running():
            kubelet.plugin("dra.cpu")
            published(server, **numa(4, 4, 4, 4))


@pytest.mark.fault("A10", "A37")
def test_an_api_server_that_is_not_there_yet_keeps_nothing_from_serving(companion: Companion) -> None:
    with apiserver() as before:
        port = urlsplit(before.url).port or 0
    kubelet = FakeKubelet(companion.kubelet_root)
    with kubelet.running(), companion.started(*arguments(companion, before)) as running:
        assert kubelet.plugin("dra.cpu").name == "dra.cpu"
        running.said("ResourceSlices are not published")
        assert "can't be read: " in companion.call("Prepare", UID, timeout=3)[UID].error
        assert companion.call("Unprepare", UID)[UID].error == ""
        with apiserver(port=port) as server:
            fill(server)
            published(server, **numa(4, 4, 4, 4))
            assert companion.call("Prepare", UID)[UID].error == ""
            assert running.end() == 0
    assert running.text.count("WARNING ResourceSlices are not published") == 1


def test_a_node_object_that_comes_later_is_waited_for(companion: Companion) -> None:
    with apiserver() as server, companion.started(*arguments(companion, server)) as running:
        running.said("no Node has the name node-a; does --hostname-override tell the kubelet's?")
        server.objects.create(NODES, {"metadata": {"name": NODE}})
        published(server, **numa(4, 4, 4, 4))


def test_the_mapping_to_allocatable_resources_is_published_where_it_is_asked_for_and_known(
    companion: Companion, server: FakeApiServer
) -> None:
    given = arguments(companion, server)
    (companion.directory / "config.yaml").write_text(
        "requirePlugin: false\npublishNodeAllocatableResourceMapping: true\n"
    )
    features = {"status": {"declaredFeatures": ["DRANodeAllocatableResources"]}}
    server.objects.update(NODES, NODE, {"metadata": {"name": NODE}, **features})
    with companion.started(*given):
        published(server, **numa(4, 4, 4, 4))
    ((device, *_),) = [each["spec"]["devices"] for each in slices(server)]
    assert device["nodeAllocatableResources"] == {
        "cpu": {"mapping": {"capacityKey": CAPACITY, "capacityMultiplier": "1"}}
    }


def test_what_the_node_supports_when_the_kubelet_registers_is_published_at_once(
    companion: Companion, server: FakeApiServer
) -> None:
    """As after an upgrade of the kubelet: of the Node object nothing is watched."""
    given = arguments(companion, server)
    with (companion.directory / "config.yaml").open("a") as config:
        config.write("publishNodeAllocatableResourceMapping: true\n")
    kubelet = FakeKubelet(companion.kubelet_root)
    with companion.started(*given) as running:
        running.said("publishNodeAllocatableResourceMapping has no effect")
        published(server, **numa(4, 4, 4, 4))
        features = {"status": {"declaredFeatures": ["DRANodeAllocatableResources"]}}
        server.objects.update(NODES, NODE, {"metadata": {"name": NODE}, **features})
        with kubelet.running():
            wait_until("the mapping", lambda: "nodeAllocatableResources" in slices(server)[0]["spec"]["devices"][0])
        assert running.end() == 0

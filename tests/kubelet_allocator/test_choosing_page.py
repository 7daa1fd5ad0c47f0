"""docs/choosing-cpus.md: every example is what the code answers, every difference is one of the kubelet's allocator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dra.allocation import AllocationError, AllocationOptions, allocate
from dra.cpu_config import API_VERSION, merge, node_default, parse_cpu_config
from dra.devices import DRIVER, individual_devices
from dra.report import read_report
from hack.faults import ROOT
from nri_cpu import config
from nri_cpu.cpuset import EMPTY, CPUSet
from tests.kubelet_allocator.compare import Difference, held_against
from tests.kubelet_allocator.driver import LIMIT, Kubelet
from tests.kubelet_allocator.page_machines import MACHINES, REPORTS, report_path
from tests.kubelet_allocator.ways import WAYS, Way
from tests.unit.topology.machines import box

PAGE = (ROOT / "docs/choosing-cpus.md").read_text("utf-8")
# Of the example that the text below the table explains.
RESERVED = {Difference.ENDLESS: CPUSet([0, 4, 8, 12])}
# Seconds after which the kubelet's allocator is taken to have no end: a thousand times what it takes on such machines.
PATIENCE = 2.0


def table(first_header: str) -> list[list[str]]:
    """The cells of the table whose first column has this header."""
    rows = PAGE.split(f"\n| {first_header} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def options(cell: str) -> AllocationOptions:
    """Options as the page writes them; without any of them the words of the cell are for people."""
    keys = yaml.safe_load("\n".join(re.findall(r"`([^`]+)`", cell)))
    if not keys:
        return AllocationOptions()
    return parse_cpu_config({"apiVersion": API_VERSION, "cpuConfig": keys}, "page").options()


def names(way: Way) -> set[str]:
    """The kubelet's names of what its policy is set to."""
    policy = way.policy
    chosen = {
        "distribute-cpus-across-cores": policy.strategy == "spread",
        "distribute-cpus-across-numa": policy.strategy == "distributed",
        "full-pcpus-only": policy.full_pcpus_only,
        "prefer-align-cpus-by-uncorecache": policy.align_l3,
        "align-by-socket": policy.align_by_socket,
    }
    return {name for name, on in chosen.items() if on}


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    with Kubelet() as started:
        yield started


def test_the_page_describes_every_machine_and_no_other() -> None:
    assert [row[0] for row in table("name")] == list(MACHINES)


def test_every_machine_has_a_report_that_the_page_links_and_there_is_no_other() -> None:
    for name, _, link in table("name"):
        path = report_path(name)
        assert link == f"[{path.name}](machines/{path.name})"
        assert read_report(path.read_text("utf-8")).topology == MACHINES[name], path
    assert {path.name for path in REPORTS.iterdir()} == {report_path(name).name for name in MACHINES}


def test_the_page_has_every_way_with_both_names_of_its_options() -> None:
    assert [row[0] for row in table("here called")] == [way.name for way in WAYS]
    for way, (_, ours, kubelets) in zip(WAYS, table("here called"), strict=True):
        assert options(ours) == way.options
        assert set(re.findall(r"`([^`]+)`", kubelets)) == names(way)


@pytest.mark.parametrize(("name", "free", "count", "how", "answer"), table("machine"))
def test_every_example_is_what_is_answered(name: str, free: str, count: str, how: str, answer: str) -> None:
    assert str(allocate(MACHINES[name], CPUSet.parse(free), int(count), options(how))) == answer


def test_the_page_names_the_version_that_is_asked() -> None:
    module = (ROOT / "tests/kubelet_allocator/go.mod").read_text()
    (version,) = re.findall(r"k8s\.io/kubernetes v(\S+)", module)
    assert f"kubelet {version} itself" in PAGE


def test_every_kind_of_difference_has_an_example() -> None:
    assert {row[0] for row in table("the kubelet")} == {str(kind) for kind in Difference} - {str(Difference.TIE)}


@pytest.mark.parametrize(("kind", "name", "called", "free", "count", "kubelets", "ours"), table("the kubelet"))
def test_every_difference_is_one(
    kubelet: Kubelet, kind: str, name: str, called: str, free: str, count: str, kubelets: str, ours: str
) -> None:
    (way,) = (way for way in WAYS if way.name == called)
    difference = Difference(kind)
    found = held_against(
        kubelet,
        MACHINES[name],
        CPUSet.parse(free),
        int(count),
        way,
        RESERVED.get(difference, EMPTY),
        limit=PATIENCE if difference is Difference.ENDLESS else LIMIT,
    )
    nothing = "no answer" if difference is Difference.ENDLESS else "refused"
    assert found.difference is difference
    assert str(found.kubelets or nothing) == kubelets
    assert str(found.ours or "refused") == ours


def blocks() -> list[Any]:
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)]


def test_the_examples_of_options_are_ones_and_are_merged_to_what_the_page_says() -> None:
    file, device_class, claim, _ = blocks()
    default = node_default(config.parse(yaml.safe_dump(file), "page"))
    found = [default]
    for spec in (device_class["spec"], claim["spec"]["devices"]):
        (entry,) = spec["config"]
        assert entry["opaque"]["driver"] == "dra.cpu"
        found.append(parse_cpu_config(entry["opaque"]["parameters"], "page"))
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == device_class["metadata"]["name"]
    merged = merge(found).options()
    assert (merged.strategy, merged.numa_nodes, merged.full_physical_cores) == ("distributed", 2, True)


def test_the_example_of_p_cores_asks_for_an_attribute_that_devices_have() -> None:
    *_, claim = blocks()
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == DRIVER
    ((selector,),) = [selector.values() for selector in request["exactly"]["selectors"]]
    driver, name, value = re.findall(r'^device\.attributes\["(.+)"\]\.(\w+) == "(.+)"$', selector["expression"])[0]
    devices = individual_devices(MACHINES["hybrid"], MACHINES["hybrid"].online)
    assert sum(device.attributes[f"{driver}/{name}"] == value for device in devices) == request["exactly"]["count"]


def test_every_key_is_on_the_page_and_no_other() -> None:
    with pytest.raises(ValueError, match="empty") as refused:
        parse_cpu_config({"apiVersion": API_VERSION, "cpuConfig": {}}, "page")
    for key, _ in table("key"):
        assert key.strip("`") in str(refused.value)


def test_the_refusals_on_the_page_are_those_of_the_allocator() -> None:
    with pytest.raises(AllocationError) as three:
        allocate(box(), box().online, 3, options("`fullPhysicalCores: true`"))
    with pytest.raises(AllocationError) as two_nodes:
        allocate(box(), CPUSet.parse("0-1,8,4"), 4, options("`strategy: distributed` `numaNodes: 2`"))
    for error in (three, two_nodes):
        assert f"dra-cpu: {error.value}\n" in PAGE

"""Promises of options: claim over class over configuration, CPUs that a claim names are checked, nothing is ignored."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.allocation import NumaNodes, Strategy
from dra.claims import ClaimError, parse_claim
from dra.cpu_config import CpuConfig
from dra.devices import DeviceMode, GroupBy
from dra.prepare.choice import Choice, Node, choose
from nri_cpu.checkpoint.model import ClaimRecord, DeviceAllocation
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Topology
from tests.unit.dra.manifests import NODE, UID, config, configured, result, uid
from tests.unit.topology.machines import t1, t2

GROUPED, INDIVIDUAL = DeviceMode.GROUPED, DeviceMode.INDIVIDUAL
NUMANODE, SOCKET, MACHINE = GroupBy
DEVICES = {NUMANODE: "cpudevnuma000", SOCKET: "cpudevsocket000", MACHINE: "cpudevmachine"}


def node(
    topology: Topology, group_by: GroupBy = NUMANODE, reserved: str = "", default: CpuConfig | None = None
) -> Node:
    reserved_ = CPUSet.parse(reserved)
    return Node.of(NODE, GROUPED, topology, reserved_, 0, group_by=group_by, default=default or CpuConfig())


def entry(source: str = "FromClaim", requests: list[str] | None = None, **cpu_config: object) -> dict[str, Any]:
    return config({"apiVersion": "v1alpha1", "cpuConfig": cpu_config}, source, requests)


def of_class(**cpu_config: Any) -> dict[str, Any]:
    return entry("FromClass", **cpu_config)


def choice(
    here: Node, *entries: object, cpus: int = 2, results: Any = None, online: str | None = None, others: str = ""
) -> Choice:
    """A claim of `cpus` CPUs of the node's first device, with these entries; `others`: CPUs of another claim."""
    device = next(iter(here.devices))
    claim = parse_claim(configured(*entries, results=results or [result(device, str(cpus), "r")]), UID)
    allocation = DeviceAllocation("x", NODE, "cpudevmachine", CPUSet.parse(others))
    other = ClaimRecord(uid(2), "default", "two", (), allocation.cpus, "0" * 32, "2026-01-01T00:00:00Z", (allocation,))
    records = {other.uid: other} if others else {}
    return choose(here, claim, records, here.topology.online if online is None else CPUSet.parse(online))


def chosen(here: Node, *entries: object, **more: Any) -> str:
    return ";".join(str(allocation.cpus) for allocation in choice(here, *entries, **more).devices)


def refusal(here: Node, *entries: object, **more: Any) -> str:
    with pytest.raises(ClaimError) as caught:
        choice(here, *entries, **more)
    return str(caught.value)


def two(device: str, *requests: str, cpus: int = 2) -> list[dict[str, Any]]:
    return [result(device, str(cpus), request) for request in requests]


# ---- options


def test_without_a_word_from_anybody_claims_are_packed() -> None:
    got = choice(node(t2()))
    assert [str(allocation.cpus) for allocation in got.devices] == ["0,8"]
    assert got.options == {"r": {"strategy": "packed"}}


@pytest.mark.fault("B5")
def test_full_physical_cores_can_be_asked_for_by_claim_class_and_configuration() -> None:
    default = CpuConfig(full_physical_cores=True)
    for got in (
        choice(node(t1(), default=default), cpus=4),
        choice(node(t1()), of_class(fullPhysicalCores=True), cpus=4),
        choice(node(t1()), entry(fullPhysicalCores=True), cpus=4),
    ):
        assert [str(allocation.cpus) for allocation in got.devices] == ["0-1,8-9"]
        assert got.options == {"r": {"strategy": "packed", "fullPhysicalCores": True}}


@pytest.mark.fault("B5", "U1")
def test_what_whole_cores_can_not_give_is_refused_with_device_and_numbers() -> None:
    text = refusal(node(t1()), entry(fullPhysicalCores=True), cpus=3)
    assert text.startswith("device cpudevnuma000 (16 CPUs): ")
    assert "3 CPUs" in text
    text = refusal(node(t1(), reserved="1,6"), entry(fullPhysicalCores=True), cpus=14)
    assert text.startswith("device cpudevnuma000 (14 CPUs): ")
    assert "12 CPUs" in text


@pytest.mark.fault("B5")
def test_the_claim_counts_more_than_its_class_and_the_class_more_than_the_configuration() -> None:
    here = node(t1(), default=CpuConfig(full_physical_cores=True, align_l3=False))
    assert choice(here, cpus=2).options == {"r": {"strategy": "packed", "fullPhysicalCores": True, "alignL3": False}}
    by_class = of_class(alignL3=True)
    assert choice(here, by_class, cpus=2).options == {"r": {"strategy": "packed", "fullPhysicalCores": True}}
    by_claim = entry(fullPhysicalCores=False)
    for entries in ([by_class, by_claim], [by_claim, by_class]):  # in whatever order they stand
        assert choice(here, *entries, cpus=3).options == {"r": {"strategy": "packed"}}
    for entries in ([of_class(alignL3=True), of_class(alignL3=False)], [entry(fullPhysicalCores=True)]):
        got = choice(here, *entries, by_claim, cpus=3)
        assert got.options == {"r": {"strategy": "packed", "alignL3": False}}


def test_options_are_those_of_the_request_that_an_entry_names() -> None:
    entries = [
        entry(requests=["a"], fullPhysicalCores=True),
        entry(requests=["b"], alignL3=False),
        entry(requests=["elsewhere"], strategy="not looked at"),
    ]
    got = choice(node(t1()), *entries, results=two("cpudevnuma000", "a/big", "b", "c"))
    assert got.options == {
        "a/big": {"strategy": "packed", "fullPhysicalCores": True},
        "b": {"strategy": "packed", "alignL3": False},
        "c": {"strategy": "packed"},
    }


@pytest.mark.parametrize(
    ("default", "entries", "told"),
    [
        (CpuConfig(), [entry(numaNodes=2)], "numaNodes: 2 needs strategy: distributed, not packed"),
        (CpuConfig(Strategy.DISTRIBUTED, NumaNodes.ALL), [entry(strategy="packed")], "numaNodes: all needs strategy"),
        (CpuConfig(full_physical_cores=True), [of_class(strategy="spread")], "spread and fullPhysicalCores: true"),
        (CpuConfig(Strategy.SPREAD), [entry(fullPhysicalCores=True)], "spread and fullPhysicalCores: true"),
    ],
)
def test_what_excludes_each_other_after_merging_is_refused(
    default: CpuConfig, entries: list[object], told: str
) -> None:
    text = refusal(node(t2(), default=default), *entries)
    assert text.startswith("device cpudevnuma000: ")
    assert told in text
    assert f"(the node's configuration sets {default}, class and claim " in text


def test_a_number_of_nodes_without_a_strategy_is_a_warning_and_serves_those_who_say_distributed() -> None:
    here = node(t2(), MACHINE, default=CpuConfig(numa_nodes=2))
    (told,) = here.warnings()
    assert told == (
        "numaNodes: 2 without strategy: distributed: claims are refused unless their DeviceClass or they themselves "
        "set that strategy; set it here, or take numaNodes away"
    )
    assert chosen(here, of_class(strategy="distributed"), cpus=4) == "0,4,8,12"
    assert "numaNodes: 2 needs strategy: distributed, not packed" in refusal(here, entry(strategy="packed"))
    assert node(t2(), default=CpuConfig(Strategy.DISTRIBUTED, 2)).warnings() == ()


@pytest.mark.parametrize("source", ["FromClaim", "FromClass"])
def test_parameters_that_can_not_be_read_are_refused_with_device_request_and_path(source: str) -> None:
    text = refusal(node(t1()), config({"apiVersion": "v2"}, "FromClaim", ["other"]), entry(source, strategy="best"))
    path = "status.allocation.devices.config[1].opaque.parameters"
    assert text == (
        f"device cpudevnuma000, request r: {path}.cpuConfig.strategy is 'best': it must be packed, spread, distributed"
    )


@pytest.mark.fault("A13", "F-12")
def test_an_unknown_version_is_refused() -> None:
    text = refusal(node(t1()), config({"apiVersion": "v1beta1", "cpuConfig": {"cpuset": "2-5"}}))
    assert "parameters.apiVersion is 'v1beta1', not v1alpha1" in text


def test_what_individual_devices_do_not_have_is_refused() -> None:
    here = Node.of(NODE, INDIVIDUAL, t1(), CPUSet(), 0, default=CpuConfig(Strategy.SPREAD))
    results = [result("cpudev003", None, "r")]
    got = choice(here, results=results)
    assert (str(got.devices[0].cpus), got.options) == ("3", {})
    assert here.warnings() == (
        "strategy: spread: has no effect with cpuDeviceMode individual, the scheduler chooses the CPUs",
    )
    assert refusal(here, of_class(strategy="spread", alignL3=True), results=results) == (
        "device cpudev003, request r: strategy, alignL3 can't be had in cpuDeviceMode individual, "
        "where the scheduler chooses the CPUs"
    )
    assert "cpuset can't be had in cpuDeviceMode individual" in refusal(here, entry(cpuset="3"), results=results)


# ---- CPUs that the claim names


def named(reserved: str = "", default: CpuConfig | None = None) -> Node:
    return node(t2(), MACHINE, reserved, default)


@pytest.mark.fault("A13")
def test_a_claim_gets_the_cpus_that_it_names() -> None:
    got = choice(named("0,8"), entry(cpuset="2-5"), cpus=4)
    assert [str(allocation.cpus) for allocation in got.devices] == ["2-5"]
    assert got.options == {"r": {"cpuset": "2-5"}}


@pytest.mark.fault("A13")
def test_a_default_of_the_node_does_not_stand_against_named_cpus() -> None:
    default = CpuConfig(Strategy.DISTRIBUTED, NumaNodes.ALL, full_physical_cores=True, align_l3=False)
    assert chosen(named(default=default), entry(cpuset="1,5"), cpus=2) == "1,5"


@pytest.mark.fault("A13")
@pytest.mark.parametrize("entries", [[], [entry(requests=["other"], cpuset="1-2")], [entry(alignL3=False)]])
def test_without_named_cpus_and_without_a_strategy_the_machine_device_gives_nothing(entries: list[object]) -> None:
    assert refusal(named(default=CpuConfig(align_l3=False)), *entries) == (
        "device cpudevmachine: nothing says which CPUs to take. With groupBy machine a claim names them "
        "(cpuConfig.cpuset in its opaque parameters), or claim, class or configuration set a strategy"
    )


def test_with_a_strategy_from_anybody_the_machine_device_gives_cpus() -> None:
    for got in (
        choice(named(default=CpuConfig(Strategy.PACKED))),
        choice(named(), of_class(strategy="packed")),
        choice(named(), entry(strategy="packed")),
    ):
        assert [str(allocation.cpus) for allocation in got.devices] == ["0,8"]
        assert got.options == {"r": {"strategy": "packed"}}


@pytest.mark.fault("A13")
@pytest.mark.parametrize(
    ("entries", "more", "told"),
    [
        ([of_class(cpuset="2-3")], {}, "the DeviceClass sets cpuset: 2-3, the same CPUs for all its claims: only a"),
        ([of_class(cpuset="2-3"), entry(cpuset="2-3")], {}, "the DeviceClass sets cpuset: 2-3"),
        ([entry(cpuset="2-3"), entry(cpuset="4-5")], {}, "the claim sets 2 cpusets (2-3; 4-5), 1 at most"),
        ([entry(cpuset="2-3"), entry(requests=["r"], cpuset="2-3")], {}, "sets 2 cpusets (2-3; 2-3), 1 at most"),
        ([entry(cpuset="2-3"), entry(strategy="packed")], {}, "class and claim set cpuset: 2-3, strategy: packed: a"),
        ([of_class(alignL3=True), entry(cpuset="2-3")], {}, "set cpuset: 2-3, alignL3: true: a cpuset leaves nothing"),
        ([entry(cpuset="2-3")], {"cpus": 4}, "the claim's cpuset 2-3 has 2 CPUs, 4 are allocated"),
        ([entry(cpuset="2-5")], {"cpus": 1}, "the claim's cpuset 2-5 has 4 CPUs, 1 are allocated"),
        ([entry(cpuset="3,99")], {}, "the claim's cpuset 3,99: CPUs 99 do not exist"),
        ([entry(cpuset="3,15")], {"online": "0-14"}, "the claim's cpuset 3,15: CPUs 15 are off line"),
        ([entry(cpuset="1,3")], {}, "the claim's cpuset 1,3: CPUs 1 are reserved"),
        (
            [entry(cpuset="3-4")],
            {"others": "4-6"},
            f"CPUs 4 are prepared for claim default/two ({uid(2)}), which must be unprepared first",
        ),
        ([entry(cpuset="")], {}, "parameters.cpuConfig.cpuset is empty"),
        ([entry(cpuset="x")], {}, "parameters.cpuConfig.cpuset: 'x' is not a list of CPUs"),
        ([config(None)], {}, "config[0].opaque.parameters is missing or null where an object belongs"),
    ],
)
def test_named_cpus_are_refused(entries: list[object], more: dict[str, Any], told: str) -> None:
    text = refusal(named("1"), *entries, **more)
    assert text.startswith("device cpudevmachine")
    assert told in text


@pytest.mark.fault("A13")
@pytest.mark.parametrize("requests", [("a", "a"), ("a", "b"), ("a/big", "a/small")])
def test_the_same_cpus_for_two_results_of_a_claim_are_refused(requests: tuple[str, str]) -> None:
    assert refusal(named(), entry(cpuset="2-3"), results=two("cpudevmachine", *requests)) == (
        f"device cpudevmachine: the claim's cpuset 2-3: CPUs 2-3 are for request {requests[0]} of this claim already"
    )


@pytest.mark.fault("A13")
def test_each_request_may_name_its_own_cpus() -> None:
    entries = [entry(requests=["a"], cpuset="2-3"), entry(requests=["b"], cpuset="4,12")]
    got = choice(named(), *entries, results=two("cpudevmachine", "a", "b"))
    assert got.options == {"a": {"cpuset": "2-3"}, "b": {"cpuset": "4,12"}}
    entries[1] = entry(requests=["b"], cpuset="3-4")
    assert "CPUs 3 are for request a of this claim already" in refusal(
        named(), *entries, results=two("cpudevmachine", "a", "b")
    )


def test_chosen_cpus_keep_clear_of_those_that_another_request_names() -> None:
    entries = [entry(requests=["a"], cpuset="0,8"), entry(requests=["b"], strategy="packed")]
    assert chosen(named(), *entries, results=two("cpudevmachine", "a", "b")) == "0,8;1,9"


@pytest.mark.fault("A13")
@pytest.mark.parametrize("group_by", [NUMANODE, SOCKET])
def test_named_cpus_take_the_machine_device(group_by: GroupBy) -> None:
    assert refusal(node(t2(), group_by), entry(cpuset="2-3")) == (
        f"device {DEVICES[group_by]}: the claim's cpuset 2-3 takes groupBy machine, and "
        f"this node has cpuDeviceMode grouped, groupBy {group_by}"
    )


def test_named_cpus_that_the_node_does_not_know_of_yet_are_refused() -> None:
    here = node(t1(offline=[7]), MACHINE)
    assert "CPUs 7 have come on line this moment, the kubelet tries again" in refusal(
        here, entry(cpuset="7-8"), online="0-15"
    )
    assert "CPUs 7 are off line" in refusal(here, entry(cpuset="7-8"))


def test_of_many_named_cpus_an_error_shows_the_first_ones() -> None:
    many = ",".join(map(str, range(0, 4000, 2)))
    for entry_, cpus in ((entry(cpuset=many), 2000), (entry(cpuset=many), 2), (of_class(cpuset=many), 2)):
        assert len(refusal(named(), entry_, cpus=cpus)) < 400
    assert len(refusal(named(), entry(cpuset=many, alignL3=True))) < 400
    assert len(refusal(named(), *([entry(cpuset=many)] * 60), cpus=2)) < 400
    assert len(refusal(named(), entry(cpuset=many), entry(alignL3=True), cpus=2)) < 400


@pytest.mark.fault("A9")
def test_named_cpus_need_a_capacity_too() -> None:
    results = [result("cpudevmachine", None, "r")]
    assert "lacks consumedCapacity[dra.cpu/cpu]" in refusal(named(), entry(cpuset="2-3"), results=results)


@pytest.mark.fault("A13", "A7")
@given(
    st.sets(st.integers(0, 20), min_size=1), st.sets(st.integers(0, 15)), st.integers(1, 6), st.sets(st.integers(0, 15))
)
def test_named_cpus_are_given_whole_or_not_at_all(
    wanted: set[int], others: set[int], count: int, offline: set[int]
) -> None:
    here, online = named("0,8"), CPUSet(range(16)) - CPUSet(offline)
    free = online - CPUSet(others) - CPUSet([0, 8])
    more = {"cpus": count, "others": str(CPUSet(others)), "online": str(online)}
    try:
        got = chosen(here, entry(cpuset=str(CPUSet(wanted))), **more)
    except ClaimError:
        assert len(wanted) != count or not CPUSet(wanted) <= free
    else:
        assert got == str(CPUSet(wanted))
        assert len(wanted) == count
        assert CPUSet(wanted) <= free


# ---- groupings


@pytest.mark.fault("R18")
@pytest.mark.parametrize("group_by", GroupBy)
def test_all_that_is_published_of_a_device_can_be_had(group_by: GroupBy) -> None:
    here = node(t2(), group_by, "0,5", CpuConfig(Strategy.PACKED))
    for device in here.devices.values():
        got = choice(here, results=[result(device.name, str(device.capacity["dra.cpu/cpu"]), "r")])
        assert got.devices[0].cpus == device.cpus


@pytest.mark.fault("R17")
@pytest.mark.parametrize("group_by", GroupBy)
def test_cpus_of_a_claim_of_another_grouping_are_given_to_nobody(group_by: GroupBy) -> None:
    here = node(t2(), group_by, "", CpuConfig(Strategy.PACKED))
    assert chosen(here, cpus=6, others="0,8") == "1-3,9-11"
    cpus = len(next(iter(here.devices.values())).cpus)
    assert f"{cpus} CPUs requested, {cpus - 2} free" in refusal(here, cpus=cpus, others="0,8")


@pytest.mark.fault("R16")
def test_what_is_odd_about_reserved_cpus_is_told() -> None:
    assert node(t2(), reserved="0,8").warnings() == ()
    assert node(t2(), reserved="0-2,8,15").warnings() == (
        "CPUs 7,9-10 can be in claims and are siblings of reserved ones: reserve whole cores to keep them apart",
    )
    assert node(t2(), reserved="0-15").warnings() == ("all CPUs are reserved: no claim can be prepared",)


def test_pcie_roots_that_are_not_published_are_told() -> None:
    names = [f"pci{n:04x}:00" for n in range(60)]
    topology = Topology.of(t1().cpus.values(), pcie_roots=dict.fromkeys(names, t1().online))
    here = Node.of(NODE, GROUPED, topology, CPUSet(), group_by=MACHINE, pcie_roots=True)
    (told,) = here.warnings()
    roots = ", ".join(names[46:])
    assert told == f"device cpudevmachine is published without the PCIe roots {roots}: more than a device has room for"
    assert Node.of(NODE, GROUPED, topology, CPUSet(), group_by=MACHINE).warnings() == ()

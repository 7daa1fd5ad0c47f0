"""Promises of the choice: disjoint, exact, and a refusal that names the device and the numbers."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.claims import Claim, ClaimError, Result, parse_claim
from dra.devices import DeviceMode, GroupBy
from dra.prepare.choice import Node, choose, confirm
from nri_cpu.checkpoint.model import ClaimRecord, DeviceAllocation
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology import Topology
from tests.unit.dra.manifests import NODE, UID, manifest, result, uid
from tests.unit.topology.machines import box, machine, t1, t2

GROUPED, INDIVIDUAL = DeviceMode.GROUPED, DeviceMode.INDIVIDUAL


def node(topology: Topology, mode: DeviceMode = GROUPED, reserved: str = "", min_shared: int | None = None) -> Node:
    return Node.of(NODE, mode, topology, CPUSet.parse(reserved), min_shared)


def grouped(*counts: int, device: str = "cpudevnuma000", **more: object) -> Claim:
    return parse_claim(
        manifest(*(result(device, str(count), f"r{at}", **more) for at, count in enumerate(counts))), UID
    )


def individual(*cpus: int) -> Claim:
    return parse_claim(manifest(*(result(f"cpudev{cpu:03}", None) for cpu in cpus)), UID)


def record(number: int, *devices: tuple[str, str]) -> ClaimRecord:
    allocations = tuple(DeviceAllocation("cpus", NODE, name, CPUSet.parse(cpus)) for name, cpus in devices)
    cpus = CPUSet.union(allocation.cpus for allocation in allocations)
    return ClaimRecord(
        uid(number), "default", f"c{number}", (), cpus, f"{number:032x}", "2026-01-01T00:00:00Z", allocations
    )


def prepared(*records: ClaimRecord) -> dict[str, ClaimRecord]:
    return {each.uid: each for each in records}


def chosen(node: Node, claim: Claim, *records: ClaimRecord, online: CPUSet | None = None) -> list[str]:
    choice = choose(node, claim, prepared(*records), node.topology.online if online is None else online)
    return [str(allocation.cpus) for allocation in choice.devices]


def refusal(node: Node, claim: Claim, *records: ClaimRecord, online: CPUSet | None = None) -> str:
    with pytest.raises(ClaimError) as caught:
        chosen(node, claim, *records, online=online)
    return str(caught.value)


def test_a_grouped_claim_gets_its_number_of_cpus_of_its_device() -> None:
    assert chosen(node(box()), grouped(2, device="cpudevnuma002")) == ["4,12"]


def test_an_individual_claim_gets_exactly_its_devices() -> None:
    assert chosen(node(box(), INDIVIDUAL), individual(3, 11, 4)) == ["3", "11", "4"]


def test_request_pool_and_share_id_are_kept() -> None:
    claim = grouped(2, shareID=uid(9))
    (allocation,) = choose(node(t1()), claim, prepared(), t1().online).devices
    assert allocation == DeviceAllocation("r0", NODE, "cpudevnuma000", CPUSet.parse("0,8"), uid(9))


@pytest.mark.fault("A4")
def test_results_of_one_claim_are_disjoint() -> None:
    assert chosen(node(t1()), grouped(2, 2)) == ["0,8", "1,9"]


@pytest.mark.fault("A7")
def test_a_device_of_another_claim_is_refused_by_its_name() -> None:
    text = refusal(node(t1(), INDIVIDUAL), individual(2), record(2, ("cpudev002", "2")))
    assert text == (
        f"CPU 2 of device cpudev002 is prepared for claim default/c2 ({uid(2)}), which must be unprepared first"
    )


def test_a_device_allocated_twice_in_a_claim_is_refused() -> None:
    assert "cpudev002 is allocated twice" in refusal(node(t1(), INDIVIDUAL), individual(2, 2))


@pytest.mark.fault("K2")
def test_a_claim_that_overtakes_an_unprepare_gets_other_cpus_or_none() -> None:
    other = record(2, ("cpudevnuma000", "0-3,8-11"))
    assert chosen(node(t1()), grouped(2), other) == ["4,12"]
    text = refusal(node(t1()), grouped(12), other)
    assert text.startswith("device cpudevnuma000 (16 CPUs): 12 CPUs requested, 8 free")
    assert text.endswith("; of it 8 CPUs prepared for claim default/c2")


@pytest.mark.fault("K2")
def test_a_full_device_is_told_with_who_has_it() -> None:
    two = (record(2, ("cpudevnuma000", "0,8")), record(3, ("cpudevnuma000", "1-7,9-15")))
    text = refusal(node(t1()), grouped(1), *two)
    assert text.endswith("; of it 16 CPUs prepared for claims default/c2, default/c3")


@pytest.mark.fault("A9")
def test_a_grouped_result_without_capacity_is_refused() -> None:
    text = refusal(node(t1()), parse_claim(manifest(result(cpus=None)), UID))
    assert "cpudevnuma000: the allocation lacks consumedCapacity[dra.cpu/cpu]" in text


@pytest.mark.fault("B9", "F-17")
def test_admin_access_is_refused() -> None:
    text = refusal(node(t1()), parse_claim(manifest(result(adminAccess=True)), UID))
    assert "cpudevnuma000 is allocated with adminAccess" in text


@pytest.mark.fault("A23", "B3")
def test_a_claim_that_leaves_too_few_shared_cpus_is_refused_at_prepare() -> None:
    machine_ = node(machine(cores=4), reserved="0", min_shared=1)
    assert "device cpudevnuma000: its 3 CPUs would leave 0 shared CPUs, minimum 1" in refusal(machine_, grouped(3))
    assert chosen(machine_, grouped(2)) == ["1-2"]


@pytest.mark.fault("A23", "B3")
def test_min_shared_cpus_is_1_without_reserved_cpus_and_0_with() -> None:
    assert "would leave 0 shared CPUs, minimum 1" in refusal(node(machine(cores=4)), grouped(4))
    assert chosen(node(machine(cores=4), reserved="0"), grouped(3)) == ["1-3"]
    assert chosen(node(machine(cores=4), min_shared=0), grouped(4)) == ["0-3"]


def test_a_claim_that_asks_nothing_is_not_held_to_the_minimum() -> None:
    nothing = Claim(UID, "default", "one", ())
    assert choose(node(machine(cores=1), min_shared=9), nothing, prepared(), CPUSet([0])).devices == ()


def test_another_pool_is_refused() -> None:
    text = refusal(node(t1()), parse_claim(manifest(result(pool="node-b")), UID))
    assert text == "device cpudevnuma000 is of pool node-b, this node's is node-a (hostnameOverride changes it)"


def test_a_device_of_the_other_mode_is_refused() -> None:
    assert refusal(node(t1()), individual(3)) == (
        "device cpudev003 belongs to cpuDeviceMode individual, this node has cpuDeviceMode grouped, groupBy numanode "
        "now: delete the pod and its claim to have them allocated anew"
    )
    assert (
        "cpudevnuma000 belongs to cpuDeviceMode grouped, groupBy numanode, this node has cpuDeviceMode individual"
        in (refusal(node(t1(), INDIVIDUAL), grouped(2)))
    )


@pytest.mark.fault("R17")
@pytest.mark.parametrize("group_by", GroupBy)
@pytest.mark.parametrize(
    ("device", "of"), [("cpudevnuma000", "numanode"), ("cpudevsocket001", "socket"), ("cpudevmachine", "machine")]
)
def test_a_device_of_another_grouping_is_told_from_nonsense(group_by: GroupBy, device: str, of: str) -> None:
    here = Node.of(NODE, GROUPED, t2(), CPUSet(), group_by=group_by)
    if of == group_by:
        assert here.devices[device].group_by == of
        return
    assert (
        f"{device} belongs to cpuDeviceMode grouped, groupBy {of}, this node has cpuDeviceMode grouped, groupBy "
        in (refusal(here, grouped(2, device=device)))
    )


@pytest.mark.fault("R8")
def test_a_device_whose_cpu_is_reserved_now_is_refused() -> None:
    text = refusal(node(t1(), INDIVIDUAL, reserved="0,3,8"), individual(3))
    assert text == "device cpudev003 does not exist on this node: all its CPUs (3) are reserved"


@pytest.mark.fault("R8", "H1")
def test_a_device_that_is_off_line_is_told_from_nonsense() -> None:
    half = machine(sockets=2, cores=4, threads=2, offline=[3, 4, 5, 6, 7, 12, 13, 14, 15])
    assert refusal(node(half, INDIVIDUAL), individual(3)) == (
        "device cpudev003 does not exist on this node: all its CPUs (3) are off line"
    )
    assert "all its CPUs (4-7,12-15) are off line" in refusal(node(half), grouped(2, device="cpudevnuma001"))
    assert "there are cpudevnuma000" in refusal(node(half), grouped(2, device="cpudevnuma002"))


@pytest.mark.parametrize("name", ["cpudev099", "cpudevnuma001", "", "../x"])
def test_an_unknown_device_is_refused(name: str) -> None:
    claim = Claim(UID, "default", "one", (Result("cpus", NODE, name, consumed_cpus=1),))
    assert f"device {name} does not exist on this node: there are cpudevnuma000" in refusal(node(t1()), claim)


def test_of_many_devices_an_error_names_the_first_ones() -> None:
    text = refusal(node(t1(), INDIVIDUAL), individual(99))
    assert re.search(r"there are (cpudev\d{3}, ){7}cpudev\d{3} and \d+ more$", text)


@pytest.mark.fault("H1")
def test_a_cpu_that_went_off_line_is_not_given() -> None:
    online = t1().online - CPUSet([0])
    assert chosen(node(t1()), grouped(1), online=online) == ["8"]
    assert refusal(node(t1(), INDIVIDUAL), individual(0), online=online) == "CPU 0 of device cpudev000 is off line"


def test_an_individual_device_is_one_cpu() -> None:
    claim = parse_claim(manifest(result("cpudev001", "2")), UID)
    assert refusal(node(t1(), INDIVIDUAL), claim) == "device cpudev001 is 1 CPU, 2 are allocated of it"


@pytest.mark.fault("A6")
def test_a_claim_allocated_otherwise_than_prepared_is_refused() -> None:
    before = record(1, ("cpudevnuma000", "0,8"))
    confirm(before, parse_claim(manifest(), UID))
    for other in (
        manifest(result(cpus="3")),
        manifest(result("cpudevnuma001")),
        manifest(result(), result()),
        manifest(result(request="more")),
        manifest(result(pool="node-b")),
        manifest(result(shareID=uid(5))),
    ):
        with pytest.raises(
            ClaimError, match="prepared here with 2 CPUs of node-a/cpudevnuma000 for cpus and is allocated"
        ):
            confirm(before, parse_claim(other, UID))


@pytest.mark.fault("R17")
@pytest.mark.parametrize("group_by", GroupBy)
@pytest.mark.parametrize("mode", DeviceMode)
@pytest.mark.parametrize(
    ("device", "cpus"),
    [
        ("cpudev003", "3"),
        ("cpudevnuma000", "3,11"),
        ("cpudevsocket000", "3,11"),
        ("cpudevmachine", "3,7"),
    ],
)
def test_what_a_record_holds_is_looked_up_in_every_configuration(
    group_by: GroupBy, mode: DeviceMode, device: str, cpus: str
) -> None:
    allocation = DeviceAllocation("cpus", NODE, device, CPUSet.parse(cpus))
    assert Node.of(NODE, mode, t2(), CPUSet(), group_by=group_by).holds(allocation)
    assert not Node.of(NODE, mode, t2(), CPUSet([3]), group_by=group_by).holds(allocation)
    assert not Node.of(NODE, mode, t2(), CPUSet(), group_by=group_by).holds(replace(allocation, device="cpudev9"))


def test_cpus_in_the_device_of_another_group_are_not_held() -> None:
    for device in ("cpudev002", "cpudevnuma001", "cpudevsocket001"):
        assert not node(t2()).holds(DeviceAllocation("cpus", NODE, device, CPUSet([3])))


@pytest.mark.fault("A4", "A7", "K2")
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(1, 5), min_size=1, max_size=3)), max_size=8))
def test_claims_are_always_disjoint_and_never_on_reserved_cpus(wanted: list[tuple[int, list[int]]]) -> None:
    reserved = CPUSet.parse("0,9")
    here = node(box(), reserved="0,9")
    records: list[ClaimRecord] = []
    for number, (group, counts) in enumerate(wanted):
        try:
            got = chosen(here, grouped(*counts, device=f"cpudevnuma{group:03}"), *records)
        except ClaimError:
            continue
        assert [len(CPUSet.parse(cpus)) for cpus in got] == counts
        records.append(record(number, *((f"cpudevnuma{group:03}", cpus) for cpus in got)))
    allocations = [allocation for each in records for allocation in each.devices]
    union = EMPTY
    for allocation in allocations:
        assert allocation.cpus.isdisjoint(union | reserved)
        union |= allocation.cpus

"""Promises of what is published: never a CPU that a claim holds where the scheduler doesn't count it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.devices import CAPACITY, NUM_CPUS, Device, DeviceMode, GroupBy, every_device
from dra.offer import offered
from dra.prepare.choice import Node
from dra.slices.limits import check
from dra.slices.objects import slices_of
from nri_cpu.checkpoint.model import ClaimRecord
from nri_cpu.cpuset import EMPTY, CPUSet
from tests.unit.dra.manifests import NODE
from tests.unit.dra.records import prepared, record
from tests.unit.topology.machines import box, t1, t2

GROUPED, INDIVIDUAL = DeviceMode.GROUPED, DeviceMode.INDIVIDUAL


def node(mode: DeviceMode = GROUPED, group_by: GroupBy = GroupBy.NUMANODE, reserved: str = "") -> Node:
    return Node.of(NODE, mode, t2(), CPUSet.parse(reserved), group_by=group_by)


def capacities(node: Node, *records: ClaimRecord) -> dict[str, int]:
    found = offered(node, prepared(*records))
    for device in found:
        assert device.capacity == {CAPACITY: len(device.cpus)}
        assert device.attributes[NUM_CPUS] == len(device.cpus)
    return {device.name: device.capacity[CAPACITY] for device in found}


def names(node: Node, *records: ClaimRecord) -> list[str]:
    return [device.name for device in offered(node, prepared(*records))]


@pytest.mark.parametrize("mode", DeviceMode)
@pytest.mark.parametrize("group_by", GroupBy)
def test_without_claims_all_devices_are_offered_as_they_are(mode: DeviceMode, group_by: GroupBy) -> None:
    configured = node(mode, group_by)
    assert offered(configured, {}) == tuple(configured.devices.values())


def test_a_claim_of_the_device_itself_lowers_nothing_since_the_scheduler_counts_it() -> None:
    assert capacities(node(), record(1, ("cpudevnuma000", "0-3,8"))) == {"cpudevnuma000": 8, "cpudevnuma001": 8}
    claim = record(1, ("cpudev003", "3"))
    assert offered(node(INDIVIDUAL), prepared(claim)) == tuple(node(INDIVIDUAL).devices.values())


@pytest.mark.fault("R17")
def test_a_claim_of_another_grouping_lowers_the_devices_of_this_one() -> None:
    claims = (record(1, ("cpudevsocket000", "0,8")), record(2, ("cpudevmachine", "1,4,12")))
    assert capacities(node(), *claims) == {"cpudevnuma000": 5, "cpudevnuma001": 6}
    assert capacities(node(group_by=GroupBy.SOCKET), *claims) == {"cpudevsocket000": 7, "cpudevsocket001": 6}
    assert capacities(node(group_by=GroupBy.MACHINE), *claims) == {"cpudevmachine": 14}


@pytest.mark.fault("R17")
def test_a_claim_of_single_cpus_lowers_groups_and_one_of_groups_takes_single_cpus_away() -> None:
    assert capacities(node(), record(1, ("cpudev000", "0"), ("cpudev005", "5"))) == {
        "cpudevnuma000": 7,
        "cpudevnuma001": 7,
    }
    left = names(node(INDIVIDUAL), record(1, ("cpudevnuma000", "0,8")))
    assert len(left) == 14
    assert not {"cpudev000", "cpudev008"} & set(left)


@pytest.mark.fault("R17")
def test_a_group_whose_cpus_are_all_held_under_other_names_is_not_offered() -> None:
    assert capacities(node(), record(1, ("cpudevsocket000", "0-3,8-11"))) == {"cpudevnuma001": 8}
    assert names(node(), record(1, ("cpudevmachine", "0-15"))) == []


@pytest.mark.fault("R8")
def test_a_cpu_that_a_claim_of_the_other_driver_holds_under_a_name_of_its_own_is_not_offered() -> None:
    """Its names are positions: device 3 may be CPU 9. Ours are CPUs: that claim has our device 9."""
    left = names(node(INDIVIDUAL), record(1, ("cpudev003", "9")))
    assert "cpudev009" not in left
    assert "cpudev003" in left  # the scheduler has it down as allocated, and CPU 3 is whose name it is
    assert len(left) == 15


def test_a_claim_of_a_pool_of_another_name_is_counted_by_nobody() -> None:
    renamed = record(1, ("cpudevnuma000", "0-1"), pool="node-before")
    assert capacities(node(), renamed) == {"cpudevnuma000": 6, "cpudevnuma001": 8}


def test_a_claim_that_has_more_than_its_device_by_now_makes_no_capacity_negative() -> None:
    everything = record(1, ("cpudevnuma000", "0-3,8-11"))
    assert capacities(node(reserved="0-3,8-10"), everything) == {"cpudevnuma000": 1, "cpudevnuma001": 8}
    elsewhere = record(1, ("cpudevnuma007", "0-3,8-11"), ("cpudevsocket000", "20-23"))
    assert capacities(node(reserved="0-3,8-10"), elsewhere) == {"cpudevnuma001": 8}


def test_what_is_not_capacity_stays_as_it_is() -> None:
    (before, _), (lowered, _) = (offered(node(), prepared(*claims)) for claims in ((), (record(1, ("x", "0")),)))
    assert {**lowered.attributes, NUM_CPUS: 8} == before.attributes
    assert (lowered.name, lowered.group_by, lowered.allow_multiple_allocations) == (
        before.name,
        before.group_by,
        before.allow_multiple_allocations,
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[Node, dict[str, ClaimRecord], CPUSet]:
    """A node, and claims of any configuration with disjoint CPUs of their devices, as Prepare makes them."""
    topology = draw(st.sampled_from([t1(), t2(), box()]))
    reserved = CPUSet(draw(st.sets(st.sampled_from(sorted(topology.online)), max_size=4)))
    configured = Node.of(
        NODE, draw(st.sampled_from(DeviceMode)), topology, reserved, group_by=draw(st.sampled_from(GroupBy))
    )
    free = topology.online  # reserved ones too: they may have been reserved since
    records = {}
    for number in range(draw(st.integers(0, 5))):
        device = draw(st.sampled_from(sorted(every_device(topology, topology.online).values(), key=lambda d: d.name)))
        if not (there := sorted(device.cpus & free)):
            continue
        cpus = CPUSet(draw(st.sets(st.sampled_from(there), min_size=1)))
        free -= cpus
        pool = draw(st.sampled_from([NODE, "node-before"]))
        made = record(number, (device.name, str(cpus)), pool=pool)
        records[made.uid] = made
    return configured, records, free


def unallocated(node: Node, device: Device, records: dict[str, ClaimRecord]) -> int:
    """What the scheduler takes for free: the published capacity less what is allocated of that pool and name."""
    taken = sum(
        len(entry.cpus)
        for record in records.values()
        for entry in record.devices
        if (entry.pool, entry.device) == (node.pool, device.name)
    )
    return (device.capacity[CAPACITY] if device.capacity else 1) - taken


@pytest.mark.fault("R17", "R18")
@given(situations())
def test_the_scheduler_never_takes_more_for_free_than_is(
    situation: tuple[Node, dict[str, ClaimRecord], CPUSet],
) -> None:
    configured, records, free = situation
    for device in offered(configured, records):
        assert device.cpus
        assert device.cpus <= configured.devices[device.name].cpus
        assert unallocated(configured, device, records) <= len(device.cpus & free)


@given(situations())
def test_what_is_offered_is_what_an_api_server_takes(
    situation: tuple[Node, dict[str, ClaimRecord], CPUSet],
) -> None:
    configured, records, _ = situation
    found = offered(configured, records)
    assert check(slices_of(found, configured.pool)) == []
    assert CPUSet.union(device.cpus for device in found).isdisjoint(configured.reserved)
    assert EMPTY not in {device.cpus for device in found}

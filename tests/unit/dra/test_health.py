"""Promises of health: a device is Unhealthy while a CPU of a prepared claim of it is off line, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.devices import DeviceMode
from dra.health import MESSAGE_LIMIT, DeviceHealth, health_of
from dra.prepare.choice import Node
from nri_cpu.checkpoint.model import ClaimRecord
from nri_cpu.cpuset import EMPTY, CPUSet
from tests.unit.dra.manifests import NODE, uid
from tests.unit.dra.records import prepared, record
from tests.unit.topology.machines import machine, t2

ALL = CPUSet.parse("0-15")


def node(offline: str = "", mode: DeviceMode = DeviceMode.GROUPED) -> Node:
    topology = machine(sockets=2, cores=4, threads=2, offline=CPUSet.parse(offline))
    return Node.of(NODE, mode, topology, EMPTY)


def reported(offline: str, *records: ClaimRecord, mode: DeviceMode = DeviceMode.GROUPED) -> dict[str, DeviceHealth]:
    found = health_of(node(offline, mode), prepared(*records), ALL - CPUSet.parse(offline))
    assert len({(each.pool, each.device) for each in found}) == len(found)
    return {each.device: each for each in found}


@pytest.mark.fault("B10")
def test_every_device_is_healthy_at_the_start() -> None:
    assert health_of(node(), {}, ALL) == (
        DeviceHealth(NODE, "cpudevnuma000", healthy=True),
        DeviceHealth(NODE, "cpudevnuma001", healthy=True),
    )
    single = health_of(node(mode=DeviceMode.INDIVIDUAL), {}, ALL)
    assert len(single) == 16
    assert all(each.healthy for each in single)


@pytest.mark.fault("B10", "H5")
def test_a_device_is_unhealthy_while_a_cpu_of_a_claim_of_it_is_off_line_and_healthy_again_afterwards() -> None:
    claims = (record(1, ("cpudevnuma000", "0,8")), record(2, ("cpudevnuma001", "4-5")))
    gone = reported("8", *claims)
    assert gone["cpudevnuma000"] == DeviceHealth(
        NODE, "cpudevnuma000", healthy=False, message=f"off line: CPU 8 of claim default/c1 ({uid(1)})"
    )
    assert gone["cpudevnuma001"].healthy
    assert all(each.healthy for each in reported("", *claims).values())


@pytest.mark.fault("B10")
def test_a_cpu_off_line_that_no_claim_has_makes_no_device_unhealthy() -> None:
    assert all(each.healthy for each in reported("1,9,12", record(1, ("cpudevnuma000", "0,8"))).values())


def test_the_message_names_all_claims_and_their_cpus() -> None:
    message = reported("0-1,8", record(1, ("cpudevnuma000", "0,8")), record(2, ("cpudevnuma000", "1,9")))[
        "cpudevnuma000"
    ].message
    assert message == f"off line: CPUs 0,8 of claim default/c1 ({uid(1)}); CPU 1 of claim default/c2 ({uid(2)})"


def test_several_requests_of_one_claim_are_one_entry() -> None:
    message = reported("0-1", record(1, ("cpudevnuma000", "0,8"), ("cpudevnuma000", "1,9")))["cpudevnuma000"].message
    assert message == f"off line: CPUs 0-1 of claim default/c1 ({uid(1)})"


def test_a_claim_over_two_devices_makes_that_one_unhealthy_whose_cpu_is_gone() -> None:
    found = reported("4", record(1, ("cpudevnuma000", "0"), ("cpudevnuma001", "4")))
    assert (found["cpudevnuma000"].healthy, found["cpudevnuma001"].healthy) == (True, False)


@pytest.mark.fault("R17")
def test_devices_that_only_claims_name_are_reported_too() -> None:
    """Those of another configuration, of another name of the node, and those that went off line as a whole."""
    found = reported("0,8", record(1, ("cpudevsocket000", "0,8")), record(2, ("cpudevmachine", "1")))
    assert not found["cpudevsocket000"].healthy
    assert found["cpudevmachine"].healthy
    whole = reported("4-7,12-15", record(1, ("cpudevnuma001", "4")))
    assert not whole["cpudevnuma001"].healthy
    alone = reported("3", record(1, ("cpudev003", "3")), mode=DeviceMode.INDIVIDUAL)
    assert (len(alone), alone["cpudev003"].healthy) == (16, False)
    moved = health_of(node(), prepared(record(1, ("cpudevnuma000", "0"), pool="before")), ALL - CPUSet([0]))
    assert [(each.pool, each.healthy) for each in moved if each.device == "cpudevnuma000"] == [
        (NODE, True),
        ("before", False),
    ]


@pytest.mark.fault("H5")
def test_health_follows_the_list_of_cpus_and_not_the_machine_that_was_read_before() -> None:
    found = health_of(node(), prepared(record(1, ("cpudevnuma000", "0"))), ALL - CPUSet([0]))
    assert [each.healthy for each in found] == [False, True]


def test_a_message_for_very_many_claims_says_how_many_are_not_named() -> None:
    big = Node.of(NODE, DeviceMode.GROUPED, machine(cores=256), EMPTY)
    records = prepared(*(record(number, ("cpudevnuma000", str(number))) for number in range(256)))
    (found,) = health_of(big, records, EMPTY)
    named = found.message.count(" of claim ")
    assert found.message.endswith(f"; and of {256 - named} more claims")
    assert 10 < named < 20
    assert len(found.message.encode()) <= MESSAGE_LIMIT


def test_a_long_list_of_cpus_is_cut_where_a_number_ends() -> None:
    odd = CPUSet(range(1, 1024, 2))
    big = Node.of(NODE, DeviceMode.GROUPED, machine(cores=1024), EMPTY)
    (found,) = health_of(big, prepared(record(1, ("cpudevnuma000", str(odd)))), EMPTY)
    assert found.message.startswith("off line: CPUs 1,3,5,")
    assert ",..." in found.message
    cut = found.message.removeprefix("off line: CPUs ").partition(",...")[0]
    assert CPUSet.parse(cut) <= odd


@given(st.text(), st.text(max_size=2000), st.sets(st.integers(0, 15), min_size=1))
def test_whatever_a_claim_is_called_the_message_is_one_line_that_the_kubelet_keeps(
    namespace: str, name: str, cpus: set[int]
) -> None:
    claim = replace(record(1, ("cpudevnuma000", str(CPUSet(cpus)))), namespace=namespace, name=name)
    message = health_of(node(), prepared(claim), EMPTY)[0].message
    assert message.isprintable()
    assert 0 < len(message.encode()) <= MESSAGE_LIMIT


def test_equal_situations_give_equal_reports_whatever_the_order_of_claims() -> None:
    claims = [record(number, ("cpudevnuma000", str(number))) for number in range(4)]
    there = Node.of(NODE, DeviceMode.GROUPED, t2(), EMPTY)
    assert health_of(there, prepared(*claims), EMPTY) == health_of(there, prepared(*reversed(claims)), EMPTY)


def test_names_of_any_length_leave_room_for_the_number_of_those_that_are_not_named() -> None:
    for length in range(1, 100):
        claims = (replace(record(number, ("cpudevnuma000", "0")), name="n" * length) for number in range(40))
        message = health_of(node(), prepared(*claims), EMPTY)[0].message
        assert message.endswith(" more claims")
        assert len(message.encode()) <= MESSAGE_LIMIT

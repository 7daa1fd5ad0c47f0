"""Who gets which CPUs: the shared pool and exclusive containers."""

import pytest

from nri_cpu.policy.state import Decision
from tests.unit.policy.desk import T3, Desk, container, updates_of


def test_a_node_without_claims_shares_all_cpus_that_are_on_line_and_not_reserved() -> None:
    desk = Desk(reserved="0,8")
    assert str(desk.create(container("s1")).adjust) == "1-7,9-15"


def test_a_claims_container_runs_on_exactly_its_cpus_from_its_creation_on() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    assert str(desk.create(container("c", claims=(claim,))).adjust) == "0,8"


def test_several_claims_give_their_union() -> None:
    desk = Desk()
    a, b = desk.prepare("A", "0,8"), desk.prepare("B", "1,9")
    assert str(desk.create(container("c", claims=(a, b))).adjust) == "0-1,8-9"


def test_a_prepared_claim_is_out_of_the_pool_before_its_container_comes() -> None:
    desk = Desk()
    desk.prepare("A", "0,8")
    assert str(desk.create(container("s1")).adjust) == "1-7,9-15"


def test_shared_containers_shrink_in_the_reply_that_creates_the_claims_container() -> None:
    desk = Desk()
    desk.synchronize(container("s1"), container("s2"))
    claim = desk.prepare("A", "0,8")
    decision = desk.create(container("c", claims=(claim,)))
    assert updates_of(decision) == {"s1": "1-7,9-15", "s2": "1-7,9-15"}


@pytest.mark.fault("B1", "R2", "F-14")
def test_after_unprepare_the_pool_grows_back_with_the_next_reply_of_any_container() -> None:
    desk = Desk()
    desk.synchronize(container("s1"))
    claim = desk.prepare("A", "0,8")
    desk.create(container("c", claims=(claim,)))
    desk.stop("c")
    desk.unprepare(claim)
    decision = desk.create(container("s2"))
    assert str(decision.adjust) == "0-15"
    assert updates_of(decision) == {"s1": "0-15"}


def test_growth_rides_on_a_stop_reply_too() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.synchronize(container("s1"), container("s2"))
    desk.unprepare(claim)
    assert updates_of(desk.stop("s2")) == {"s1": "0-15"}


def test_a_container_that_outlives_its_claim_keeps_its_cpus_to_itself() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c", claims=(claim,)))
    desk.unprepare(claim)
    assert str(desk.create(container("s1")).adjust) == "1-7,9-15"
    desk.stop("c")
    assert str(desk.create(container("s2")).adjust) == "0-15"


def test_shrinking_updates_come_before_growing_ones() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("grows", claims=(claim,)))
    desk.create(container("shrinks"))
    desk.set_online("1-15")
    desk.create(container("other"))
    desk.set_online("0-15")
    desk.prepare("B", "1,9")
    decision = desk.ask_to_create(container("new"))
    assert [ids for _, ids in decision.updates] == [("shrinks", "other"), ("grows",)]


def test_at_synchronize_containers_that_must_leave_a_cpu_come_before_those_that_gain_some() -> None:
    desk = Desk()
    desk.prepare("A", "0,8")
    decision = desk.synchronize(container("grows", cpus="1-7"), container("shrinks", cpus="0-15"))
    assert [ids for _, ids in decision.updates] == [("shrinks", "grows")]


# No CPU left


@pytest.mark.fault("A23", "P-1")
def test_with_an_empty_pool_shared_containers_get_the_reserved_cpus() -> None:
    desk = Desk(T3, reserved="0")
    desk.prepare("A", "1-3")
    assert str(desk.create(container("s1")).adjust) == "0"


@pytest.mark.fault("A23")
def test_with_nothing_left_at_all_a_shared_container_is_refused() -> None:
    desk = Desk(T3)
    desk.prepare("A", "0-3")
    decision = desk.create(container("s1"))
    assert "no CPU is left" in decision.refusal
    assert decision.adjust is None


@pytest.mark.fault("A23")
def test_a_claim_that_leaves_nothing_for_running_shared_containers_is_refused_and_has_no_owner() -> None:
    desk = Desk(T3)
    desk.synchronize(container("s1"))
    claim = desk.prepare("A", "0-3")
    assert "leaves no CPU" in desk.create(container("c", claims=(claim,))).refusal
    assert desk.state.owners == {}


@pytest.mark.fault("A23")
def test_a_node_with_nothing_managed_and_no_claims_is_left_to_the_kubelet() -> None:
    desk = Desk(T3)
    desk.set_online("")
    assert desk.create(container("s1")) == Decision()


@pytest.mark.fault("P1")
def test_the_shared_pool_never_has_a_reserved_cpu_while_it_has_others() -> None:
    desk = Desk(reserved="0,8")
    desk.prepare("A", "1,9")
    assert str(desk.state.pool) == "2-7,10-15"


# CPUs that come and go


@pytest.mark.fault("H1", "P-5")
def test_cpus_off_line_are_in_no_shared_cpuset() -> None:
    desk = Desk()
    desk.prepare("A", "0,8")
    desk.set_online("0-14")
    assert str(desk.create(container("s1")).adjust) == "1-7,9-14"


@pytest.mark.fault("H2", "P-7")
def test_cpus_that_come_on_line_widen_the_pool_of_running_containers() -> None:
    desk = Desk(T3)
    desk.synchronize(container("s1"))
    desk.set_online("0-7")
    assert updates_of(desk.create(container("s2"))) == {"s1": "0-7"}


@pytest.mark.fault("H5")
def test_an_exclusive_container_with_no_cpu_on_line_shares_until_one_is_back() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c", claims=(claim,)))
    desk.set_online("1-7,9-15")
    desk.create(container("s1"))
    assert desk.cpus("c") == "1-7,9-15"
    desk.set_online("1-15")
    desk.create(container("s2"))
    assert desk.cpus("c") == "8"
    desk.set_online("0-15")
    desk.create(container("s3"))
    assert desk.cpus("c") == "0,8"


@pytest.mark.fault("R4", "S3", "P-3")
def test_a_claim_on_cpus_that_are_reserved_later_keeps_them() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c", claims=(claim,)))
    desk.set_reserved("0")
    decision = desk.synchronize(*desk.runtime.values())
    assert updates_of(decision) == {"c": "0,8"}

"""What a restart finds, and what the runtime is told again until it is known to hold it."""

from dataclasses import replace

import pytest

from nri_cpu.checkpoint.model import Checkpoint
from nri_cpu.policy import events
from nri_cpu.policy.state import State, due
from tests.unit.policy.desk import T1, Desk, container, env_of, record, uid, updates_of


@pytest.mark.fault("A19", "B14")
def test_synchronize_puts_every_live_container_where_it_belongs() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    decision = desk.synchronize(container("e", claims=(claim,)), container("s1"), container("s2", cpus="1-7,9-15"))
    assert updates_of(decision) == {"e": "0,8", "s1": "1-7,9-15", "s2": "1-7,9-15"}


@pytest.mark.fault("B14")
def test_a_claims_container_that_was_created_without_us_is_noted() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    decision = desk.synchronize(container("e", claims=(claim,)))
    assert [note.kind for note in decision.notes] == ["misplaced"]


@pytest.mark.fault("A21", "R5")
def test_at_synchronize_a_container_with_unproven_env_is_shared_and_noted_and_the_others_are_right() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    liar = container("c1", env=(f"DRA_CPUSET_{uid('B')}=0-15",))
    malformed = container("c3", env=(f"DRA_CPUSET_{uid('C')}",))
    decision = desk.synchronize(liar, container("c2", claims=(claim,)), malformed)
    assert updates_of(decision) == {"c1": "1-7,9-15", "c2": "0,8", "c3": "1-7,9-15"}
    assert [note.kind for note in decision.notes if note.kind != "misplaced"] == ["unproven", "unproven"]


@pytest.mark.fault("B2", "R3")
def test_synchronize_never_drops_a_prepared_claim_that_has_no_container() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c", claims=(claim,)))
    desk.stop("c")
    desk.synchronize(pods=("p1",))
    assert str(desk.state.pool) == "1-7,9-15"
    assert str(desk.create(container("c2", name="c", claims=(claim,))).adjust) == "0,8"


@pytest.mark.fault("I7", "N8")
def test_synchronize_forgets_containers_that_are_not_listed() -> None:
    desk = Desk()
    desk.create(container("s1"))
    desk.synchronize()
    assert list(desk.state.containers()) == []


def test_of_two_live_containers_of_one_claim_the_recorded_owner_keeps_it() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c1", claims=(claim,)))
    intruder = container("c2", pod="p2", claims=(claim,), cpus="0,8")
    decision = desk.synchronize(intruder, container("c1", claims=(claim,)))
    assert updates_of(decision) == {"c1": "0,8", "c2": "1-7,9-15"}
    assert "claim_taken" in [note.kind for note in decision.notes]


def test_without_a_recorded_owner_the_one_on_the_claims_cpus_keeps_it_else_the_older() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    young = container("y", pod="p1", claims=(claim,), created_at=2)
    old = container("o", pod="p2", claims=(claim,), created_at=1)
    assert updates_of(desk.synchronize(young, old))["o"] == "0,8"
    desk = Desk()
    desk.prepare("A", "0,8")
    pinned = young._replace(cpus=claim.cpus)
    assert updates_of(desk.synchronize(old, pinned)) == {"o": "1-7,9-15", "y": "0,8"}


def test_a_recorded_owner_between_crash_and_restart_keeps_its_claim_at_synchronize() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c1", claims=(claim,)))
    desk.stop("c1")
    decision = desk.synchronize(container("c2", pod="p2", claims=(claim,)), pods=("p1", "p2"))
    assert updates_of(decision) == {"c2": "1-7,9-15"}
    assert str(desk.create(container("c1-again", name="c1", claims=(claim,))).adjust) == "0,8"


def test_an_owner_whose_pod_is_not_listed_gives_way() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c1", claims=(claim,)))
    desk.synchronize(pods=())
    assert str(desk.create(container("c2", pod="p2", claims=(claim,))).adjust) == "0,8"


def test_containers_of_dra_driver_cpu_are_taken_over_when_env_and_cpuset_equal_the_record() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    theirs = (f"DRA_CPUSET_{claim.uid}=0,8",)
    decision = desk.synchronize(
        container("old", env=theirs, cpus="0,8"), container("liar", pod="p2", env=theirs, cpus="0-15")
    )
    assert updates_of(decision) == {"old": "0,8", "liar": "1-7,9-15"}
    assert desk.state.owners[claim.uid].container == "old"


# No checkpoint


def start_without_checkpoint(*found: object, specs: tuple[object, ...] = ()) -> tuple[State, dict[str, str]]:
    state = State(online=T1)
    by_uid = {spec.uid: spec for spec in specs}  # type: ignore[attr-defined]
    state, decision = events.synchronize(state, [], found, by_uid)  # type: ignore[arg-type]
    return state, updates_of(decision)


@pytest.mark.fault("S2", "B2")
def test_without_a_checkpoint_a_listed_container_has_its_claim_if_its_cdi_spec_agrees() -> None:
    a, b, c = record("A", "0,8"), record("B", "1,9"), record("C", "2,10")
    forged = replace(b, preparation="ee" * 16)
    found = (container("x", claims=(a,)), container("y", claims=(forged,)), container("z"))
    state, updates = start_without_checkpoint(*found, specs=(a, b, c))
    assert updates == {"x": "0,8", "y": "1-7,9-15", "z": "1-7,9-15"}
    assert set(state.claims) == {a.uid}


@pytest.mark.fault("S2")
def test_without_a_checkpoint_a_claims_container_is_not_created_and_the_error_says_why() -> None:
    state, _ = start_without_checkpoint()
    claim = record("A", "0,8")
    after, decision = events.create(state, container("c", claims=(claim,)))
    assert "checkpoint" in decision.refusal
    assert after == state


@pytest.mark.fault("S2")
def test_a_checkpoint_that_becomes_unreadable_is_not_read_as_empty() -> None:
    desk = Desk()
    desk.prepare("A", "0,8")
    state = events.follow(desk.state, T1, None)
    assert str(state.pool) == "1-7,9-15"


# What may not have arrived is sent again


@pytest.mark.fault("R1")
def test_updates_of_a_reply_that_may_be_lost_are_in_the_next_one_again() -> None:
    desk = Desk()
    desk.synchronize(container("s1"))
    claim = desk.prepare("A", "0,8")
    lost = desk.ask_to_create(container("id1", name="c", claims=(claim,)))
    assert updates_of(lost) == {"s1": "1-7,9-15"}
    assert updates_of(desk.create(container("id2", name="c", claims=(claim,)))) == {"s1": "1-7,9-15"}
    assert desk.create(container("s2")).updates == ()


@pytest.mark.fault("R1", "F3")
def test_a_creation_that_failed_confirms_nothing() -> None:
    desk = Desk()
    desk.synchronize(container("s1"))
    claim = desk.prepare("A", "0,8")
    desk.ask_to_create(container("id1", name="c", claims=(claim,)))
    assert updates_of(desk.stop("id1")) == {"s1": "1-7,9-15"}


@pytest.mark.fault("R1", "F3")
def test_of_overlapping_creations_the_last_answer_is_what_the_runtime_holds() -> None:
    desk = Desk()
    desk.synchronize(container("s1"))
    first, second = container("a", claims=(desk.prepare("A", "0,8"),)), container("b", pod="p2")
    a = desk.begin(first)
    desk.unprepare(desk.claims[uid("A")])
    c = desk.prepare("C", "3")
    b = desk.begin(second._replace(env=env_of(c)))
    desk.finish(second, b.adjust)
    desk.finish(first, a.adjust)
    desk.stop("a")
    desk.unprepare(c)
    desk.create(container("y", pod="p3", claims=(desk.prepare("B", "0,8"),)))
    assert desk.cpus("s1") == "1-2,4-7,9-15"


@pytest.mark.fault("R1", "F3")
def test_what_a_failed_creation_may_have_widened_is_narrowed_again() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.synchronize(container("s1"))
    desk.unprepare(claim)
    desk.begin(container("a"))
    assert desk.cpus("s1") == "0-15"
    new = desk.prepare("B", "0,8")
    desk.stop("a")
    desk.create(container("y", pod="p2", claims=(new,)))
    assert desk.cpus("s1") == "1-7,9-15"


def test_updates_of_a_stop_reply_are_confirmed_by_the_next_event() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.synchronize(container("s1"), container("s2"))
    desk.unprepare(claim)
    assert updates_of(desk.stop("s2")) == {"s1": "0-15"}
    assert desk.create(container("s3")).updates == ()


@pytest.mark.fault("R1")
def test_a_lost_connection_confirms_nothing() -> None:
    desk = Desk()
    desk.synchronize(container("s1"))
    claim = desk.prepare("A", "0,8")
    desk.ask_to_create(container("c", claims=(claim,)))
    desk.state = events.heard(events.disconnected(desk.state))
    assert [ids for _, ids in due(desk.state)] == [("s1",)]


def test_a_container_that_is_not_stored_yet_gets_no_update_and_is_caught_up_with_later() -> None:
    desk = Desk()
    slow = container("s1")
    created_with = desk.ask_to_create(slow).adjust
    claim = desk.prepare("A", "0,8")
    assert desk.create(container("c", claims=(claim,))).updates == ()
    assert created_with is not None
    desk.runtime["s1"] = slow._replace(cpus=created_with)
    desk.state = events.created(events.heard(desk.state), desk.runtime["s1"])
    assert updates_of(desk.create(container("s2"))) == {"s1": "1-7,9-15"}


def test_a_creation_that_vanished_without_a_word_is_forgotten_when_it_is_tried_again() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.ask_to_create(container("ghost", name="c", claims=(claim,)))
    desk.create(container("id2", name="c", claims=(claim,)))
    assert [c.id for c in desk.state.containers()] == ["id2"]


def test_a_creation_that_vanished_ends_with_its_pod() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.ask_to_create(container("ghost", claims=(claim,)))
    desk.end_pod("p1")
    assert str(desk.create(container("c2", pod="p2", claims=(claim,))).adjust) == "0,8"


def test_a_container_that_the_runtime_never_announced_is_adopted_from_a_later_event() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.runtime["e"] = container("e", claims=(claim,), cpus="0-15")
    desk.state = events.created(desk.state, desk.runtime["e"])
    desk.runtime["s"] = container("s", pod="p2", cpus="0-15")
    desk.state = events.created(desk.state, desk.runtime["s"])
    desk.create(container("s2"))
    assert (desk.cpus("e"), desk.cpus("s")) == ("0,8", "1-7,9-15")


# Updates that others ask for


@pytest.mark.fault("P4", "A39")
@pytest.mark.parametrize("requested", ["0-15", "3", "0"])
def test_a_request_for_other_cpus_is_answered_with_the_right_ones(requested: str) -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c", claims=(claim,)))
    desk.create(container("s1"))
    desk.update("c", requested)
    desk.update("s1", requested)
    assert (desk.cpus("c"), desk.cpus("s1")) == ("0,8", "1-7,9-15")


@pytest.mark.fault("P4")
def test_a_request_without_cpus_for_a_container_in_its_place_is_not_answered() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c", claims=(claim,)))
    assert desk.update("c").updates == ()
    assert desk.update("c", "0,8").updates == ()


@pytest.mark.fault("P4")
def test_a_request_for_a_container_whose_book_is_stale_is_answered_last_of_all() -> None:
    desk = Desk()
    desk.synchronize(container("s1"), container("s2"))
    desk.prepare("A", "0,8")
    decision = desk.update("s1")
    assert updates_of(decision) == {"s2": "1-7,9-15", "s1": "1-7,9-15"}
    assert decision.updates[-1][1] == ("s1",)


def test_late_events_of_unknown_containers_change_nothing() -> None:
    desk = Desk()
    before = desk.state
    assert desk.stop("nobody").updates == ()
    desk.remove("nobody")
    desk.end_pod("nobody", removed=True)
    assert desk.state == before


def test_env_of_the_record_is_what_the_proof_asks_for() -> None:
    claim = record("A", "0,8")
    assert env_of(claim)[0] == f"DRA_CPUSET_{claim.uid}=0,8"


@pytest.mark.fault("N12")
def test_what_another_plugin_made_of_a_cpuset_is_set_right_with_the_next_reply() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    facts = container("c", claims=(claim,))
    desk.ask_to_create(facts)
    desk.runtime["c"] = facts._replace(cpus=T1)
    desk.state = events.created(events.heard(desk.state), desk.runtime["c"])
    assert updates_of(desk.create(container("s1"))) == {"c": "0,8"}


@pytest.mark.fault("R19")
def test_a_claim_prepared_while_the_runtime_synchronizes_is_there_afterwards() -> None:
    desk = Desk()
    before = desk.state
    claim = desk.prepare("A", "0,8")
    state, decision = events.synchronize(before, [], [container("s1")], {})
    assert updates_of(decision) == {"s1": "0-15"}
    state = events.follow(state, T1, Checkpoint(desk.reserved, {claim.uid: claim}))
    state, decision = events.create(events.heard(state), container("c", claims=(claim,)))
    assert (str(decision.adjust), updates_of(decision)) == ("0,8", {"s1": "1-7,9-15"})

"""Who may use a claim: proof in env, and one owner at a time."""

import pytest

from tests.unit.policy.desk import Desk, container, env_of, record, uid, updates_of

# Proof


@pytest.mark.fault("A20")
@pytest.mark.parametrize("value", ["", "=", "=abc", "=3-1", "=0-99999999999", "=-1", "=0,,1"])
def test_a_malformed_claim_variable_fails_the_creation_and_is_named(value: str) -> None:
    desk = Desk()
    decision = desk.create(container("c", env=(f"DRA_CPUSET_{uid('A')}{value}",)))
    assert f"DRA_CPUSET_{uid('A')}" in decision.refusal


@pytest.mark.fault("A20")
def test_env_of_a_claim_that_is_not_prepared_fails_the_creation() -> None:
    desk = Desk()
    decision = desk.create(container("c", env=env_of(record("A", "0,8"))))
    assert "not prepared" in decision.refusal
    assert uid("A") in decision.refusal


@pytest.mark.fault("A20")
def test_env_with_other_cpus_than_the_claims_fails_the_creation() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    stolen = (f"DRA_CPUSET_{claim.uid}=0-15", f"NRI_CPU_PREPARATION_{claim.uid}={claim.preparation}")
    assert "0,8" in desk.create(container("c", env=stolen)).refusal


def test_equal_cpus_in_another_notation_are_the_claims() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0-1,8-9")
    env = (f"DRA_CPUSET_{claim.uid}=8,9,1,0", f"NRI_CPU_PREPARATION_{claim.uid}={claim.preparation}")
    assert str(desk.create(container("c", env=env)).adjust) == "0-1,8-9"


@pytest.mark.fault("R10")
def test_a_hand_written_variable_neither_takes_nor_gives_a_claim() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    decision = desk.create(container("thief", pod="p2", env=(f"DRA_CPUSET_{claim.uid}=0,8",)))
    assert claim.uid in decision.refusal
    assert desk.state.owners == {}
    assert str(desk.create(container("c", claims=(claim,))).adjust) == "0,8"


@pytest.mark.fault("R10")
@pytest.mark.parametrize("said", ["", "0" * 32, "None"])
def test_a_guessed_preparation_is_refused_and_no_message_tells_the_right_one(said: str) -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8", preparation="ab" * 16)
    env = (f"DRA_CPUSET_{claim.uid}=0,8", f"NRI_CPU_PREPARATION_{claim.uid}={said}")
    decision = desk.create(container("c", env=env))
    assert decision.refusal
    assert "ab" * 16 not in decision.refusal + repr(desk.state) + repr(decision)


def test_of_two_entries_of_one_variable_both_must_be_right() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    for extra in (f"DRA_CPUSET_{claim.uid}=0-15", f"NRI_CPU_PREPARATION_{claim.uid}=x"):
        assert desk.create(container("c", claims=(claim,), env=(extra,))).refusal


def test_a_preparation_alone_is_proof() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    env = (f"NRI_CPU_PREPARATION_{claim.uid}={claim.preparation}",)
    assert str(desk.create(container("c", env=env)).adjust) == "0,8"


@pytest.mark.fault("B12")
@pytest.mark.parametrize("entry", ["DRA_CPUSET_ASSIGNED=0-15", "DRA_CPUSET_=1", "DRA_CPUSET_A", "DRA_CPUSETS=2", "="])
def test_variables_that_name_no_claim_are_none_of_our_business(entry: str) -> None:
    assert str(Desk().create(container("s1", env=(entry,))).adjust) == "0-15"


def test_where_the_runtime_tells_the_cdi_devices_they_must_agree() -> None:
    desk = Desk()
    a, b = desk.prepare("A", "0,8"), desk.prepare("B", "1,9")
    facts = container("c", claims=(a, b))
    for devices, fine in [
        ((f"dra.k8s.io/cpu=claim-{a.uid}", f"dra.k8s.io/cpu=claim-{b.uid}"), True),
        ((f"dra.k8s.io/cpu=claim-{a.uid}-cpudevnuma000", f"dra.k8s.io/cpu=claim-{b.uid}-cpudevnuma000"), True),
        ((f"dra.k8s.io/cpu=claim-{a.uid}",), False),
        (("vendor.example/gpu=0",), False),
    ]:
        decision = desk.create(facts._replace(cdi_devices=devices))
        assert bool(decision.refusal) is not fine


# Owners


@pytest.mark.fault("A22")
def test_a_second_container_is_refused_with_the_names_of_claim_and_owner_and_nothing_changes() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c1", claims=(claim,)))
    before = desk.state
    for other in (container("c2", claims=(claim,)), container("c1", pod="p2", claims=(claim,))):
        decision = desk.create(other)
        assert "default/claim-A" in decision.refusal
        assert "container c1 of pod default/p1" in decision.refusal
        assert desk.state == before


@pytest.mark.fault("A22")
def test_binding_several_claims_is_all_or_nothing() -> None:
    desk = Desk()
    a, b = desk.prepare("A", "0,8"), desk.prepare("B", "1,9")
    desk.create(container("c1", claims=(a,)))
    assert desk.create(container("c9", pod="p2", claims=(b, a))).refusal
    assert b.uid not in desk.state.owners


@pytest.mark.fault("A17", "I4")
def test_a_restarted_container_gets_its_cpus_again_and_no_other_is_touched() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("s1"))
    desk.create(container("id1", name="c", claims=(claim,)))
    desk.stop("id1")
    assert str(desk.state.pool) == "1-7,9-15"
    decision = desk.create(container("id2", name="c", claims=(claim,)))
    assert str(decision.adjust) == "0,8"
    assert decision.updates == ()


@pytest.mark.fault("A18", "I4")
def test_late_stop_and_remove_of_the_old_container_leave_the_new_one_alone() -> None:
    desk = Desk()
    desk.create(container("id1", name="s"))
    desk.create(container("id2", name="s"))
    desk.stop("id1")
    desk.remove("id1")
    claim = desk.prepare("A", "0,8")
    assert updates_of(desk.create(container("c", claims=(claim,)))) == {"id2": "1-7,9-15"}


@pytest.mark.fault("I5")
def test_two_containers_of_a_pod_keep_a_claim_each() -> None:
    desk = Desk()
    a, b = desk.prepare("A", "0,8"), desk.prepare("B", "1,9")
    desk.create(container("c1", claims=(a,)))
    desk.create(container("c2", claims=(b,)))
    decision = desk.synchronize(*desk.runtime.values())
    assert updates_of(decision) == {"c1": "0,8", "c2": "1,9"}


def test_a_claim_passes_to_the_next_pod_when_the_owners_pod_has_ended() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c1", claims=(claim,)))
    successor = container("c2", pod="p2", claims=(claim,))
    desk.stop("c1")
    assert desk.create(successor).refusal, "the owner may restart as long as its pod is there"
    desk.end_pod("p1")
    assert str(desk.create(successor).adjust) == "0,8"
    assert desk.state.owners[claim.uid].pod_name == "p2"


def test_a_claim_does_not_pass_on_while_a_container_of_the_owners_pod_lives() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c1", claims=(claim,)))
    desk.end_pod("p1")
    assert desk.create(container("c2", pod="p2", claims=(claim,))).refusal


def test_a_claim_prepared_anew_has_no_owner() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c1", claims=(claim,)))
    desk.stop("c1")
    desk.unprepare(claim)
    again = desk.prepare("A", "0,8", preparation="cd" * 16)
    assert str(desk.create(container("c2", pod="p2", claims=(again,))).adjust) == "0,8"
    assert desk.create(container("c3", pod="p3", claims=(claim,))).refusal, "the old preparation proves nothing"


def test_a_claim_that_was_unprepared_and_prepared_anew_between_two_looks_has_no_owner() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c1", claims=(claim,)))
    desk.stop("c1")
    again = desk.prepare("A", "0,8", preparation="cd" * 16)
    assert desk.state.owners == {}
    assert str(desk.create(container("c2", pod="p2", claims=(again,))).adjust) == "0,8"


@pytest.mark.fault("K2")
def test_a_claim_waits_while_a_container_of_another_claim_still_runs_on_its_cpus() -> None:
    desk = Desk()
    old = desk.prepare("A", "0,8")
    desk.create(container("c1", claims=(old,)))
    desk.unprepare(old)
    new = desk.prepare("B", "0,8")
    decision = desk.create(container("c2", pod="p2", claims=(new,)))
    assert "container c1 of pod default/p1" in decision.refusal
    desk.stop("c1")
    assert str(desk.create(container("c2", pod="p2", claims=(new,))).adjust) == "0,8"


@pytest.mark.fault("K2")
def test_a_claim_prepared_anew_waits_for_a_container_that_outlived_it() -> None:
    desk = Desk()
    old = desk.prepare("A", "0,8")
    desk.create(container("c1", claims=(old,)))
    desk.unprepare(old)
    new = desk.prepare("A", "0,8", preparation="cd" * 16)
    successor = container("c2", name="c1", pod="p2", claims=(new,))
    assert "container c1 of pod default/p1" in desk.create(successor).refusal
    desk.stop("c1")
    assert str(desk.create(successor).adjust) == "0,8"


@pytest.mark.fault("I1")
def test_the_end_of_a_container_never_frees_its_claim() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("i1", claims=(claim,)))
    desk.stop("i1")
    desk.remove("i1")
    assert str(desk.create(container("s1")).adjust) == "1-7,9-15"


@pytest.mark.fault("I3")
def test_sidecar_and_app_with_claims_of_their_own_are_pinned_at_the_same_time() -> None:
    desk = Desk()
    s, a = desk.prepare("S", "1,9"), desk.prepare("A", "0,8")
    assert str(desk.create(container("sidecar", claims=(s,))).adjust) == "1,9"
    assert str(desk.create(container("app", claims=(a,))).adjust) == "0,8"
    assert not desk.runtime["sidecar"].cpus & desk.runtime["app"].cpus


@pytest.mark.fault("I2")
def test_claims_of_init_and_app_containers_both_stay_taken_until_they_are_unprepared() -> None:
    desk = Desk()
    i, a = desk.prepare("I", "1,9"), desk.prepare("A", "0,8")
    desk.create(container("init", claims=(i,)))
    desk.stop("init")
    desk.remove("init")
    assert str(desk.create(container("app", claims=(a,))).adjust) == "0,8"
    assert str(desk.state.pool) == "2-7,10-15"
    desk.unprepare(i)
    assert str(desk.state.pool) == "1-7,9-15"


@pytest.mark.fault("I7")
def test_a_removed_sandbox_takes_its_containers_along() -> None:
    desk = Desk()
    claim = desk.prepare("A", "0,8")
    desk.create(container("c1", claims=(claim,)))
    desk.create(container("s1"))
    desk.end_pod("p1", removed=True)
    assert list(desk.state.containers()) == []
    assert claim.uid in desk.state.claims

"""The invariants of docs/reliability.md after every step of random histories.

Claims come and go, containers start, stop and fail, answers get lost, the connection breaks, CPUs go off line.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.policy import events
from nri_cpu.policy.state import Facts, derive, prepared
from tests.unit.policy.desk import Desk, container, updates_of

LETTERS = "ABCD"
PODS = ("p1", "p2", "p3")


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(reserved="0,8")
        self.number = 0
        self.begun: list[tuple[Facts, CPUSet | None]] = []  # creations under way

    @rule(letter=st.sampled_from(LETTERS), size=st.integers(1, 4), start=st.integers(1, 7))
    def prepare(self, letter: str, size: int, start: int) -> None:
        free = self.desk.online - self.desk.reserved - prepared(self.desk.state)
        cpus = CPUSet([cpu for cpu in free if cpu >= start][:size])
        if cpus and all(claim.name != f"claim-{letter}" for claim in self.desk.claims.values()):
            self.number += 1
            self.desk.prepare(letter, str(cpus), preparation=f"{self.number:032x}")

    @precondition(lambda self: self.desk.claims)
    @rule(data=st.data())
    def unprepare(self, data: st.DataObject) -> None:
        self.desk.unprepare(self.desk.claims[data.draw(st.sampled_from(sorted(self.desk.claims)))])

    @rule(
        pod=st.sampled_from(PODS),
        name=st.sampled_from(("a", "b")),
        letters=st.sets(st.sampled_from(LETTERS), max_size=2),
        fate=st.sampled_from(("fine", "fine", "begun", "begun", "lost", "failed")),
    )
    def create(self, pod: str, name: str, letters: set[str], fate: str) -> None:
        self.number += 1
        claims = tuple(c for c in self.desk.claims.values() if c.name.removeprefix("claim-") in letters)
        facts = container(f"id{self.number}", pod=pod, name=name, claims=claims, created_at=self.number)
        before = self.desk.state
        do = {"fine": self.desk.create, "begun": self.desk.begin}.get(fate, self.desk.ask_to_create)
        decision = do(facts)
        if decision.refusal:
            assert self.desk.state == events.heard(before)
            return
        wanted = EMPTY
        for claim in claims:
            wanted |= claim.cpus
        if wanted & self.desk.online:
            assert decision.adjust == wanted & self.desk.online
        if fate == "begun":
            self.begun.append((facts, decision.adjust))
        if fate == "failed":  # another plugin's error: nothing was applied, and the runtime says so
            self.desk.stop(facts.id)

    @precondition(lambda self: self.begun)
    @rule(which=st.integers(0, 9), done=st.booleans())
    def finish(self, which: int, done: bool) -> None:
        facts, adjust = self.begun.pop(which % len(self.begun))
        if not done:
            self.desk.stop(facts.id)
        elif self.desk.state.find(facts.id):  # it may have been given up: tried again, or its pod ended
            self.desk.finish(facts, adjust)

    @precondition(lambda self: self.desk.runtime)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        self.desk.stop(data.draw(st.sampled_from(sorted(self.desk.runtime))))

    @rule(pod=st.sampled_from(PODS), removed=st.booleans())
    def end_pod(self, pod: str, removed: bool) -> None:
        for facts in list(self.desk.runtime.values()):
            if facts.pod_uid == f"uid-{pod}":
                self.desk.stop(facts.id)
        self.desk.end_pod(pod, removed=removed)

    @precondition(lambda self: self.desk.runtime)
    @rule(data=st.data(), requested=st.sampled_from(("", "0-15", "3", "1-2")))
    def update(self, data: st.DataObject, requested: str) -> None:
        self.desk.update(data.draw(st.sampled_from(sorted(self.desk.runtime))), requested)

    @rule(off=st.sets(st.integers(1, 15), max_size=3))
    def change_online(self, off: set[int]) -> None:
        self.desk.set_online(str(CPUSet.parse("0-15") - CPUSet(off)))

    @rule(drift=st.booleans())
    def reconnect(self, drift: bool) -> None:
        self.begun.clear()
        found = [f._replace(cpus=EMPTY) if drift else f for f in self.desk.runtime.values()]
        decision = self.desk.synchronize(*found, pods=PODS)
        listed = set(updates_of(decision))
        if self.desk.state.pool:
            assert listed == set(self.desk.runtime)

    @rule()
    def quiet(self) -> None:
        """Two answers that arrive put everybody right whom the runtime can be told about."""
        for _ in range(2):
            self.number += 1
            self.desk.create(container(f"id{self.number}", pod="quiet", name=f"n{self.number}"))
        for facts in self.desk.runtime.values():
            known = self.desk.state.find(facts.id)
            assert known
            wanted = self.desk.state.wanted(known)
            assert not wanted or facts.cpus == wanted

    @invariant()
    def what_is_derived_is_as_made_anew(self) -> None:
        state = self.desk.state
        assert state == derive(state)
        assert all(state.shared.values())
        assert set(state.held) == set(state.exclusive)
        unknown = {*state.shared.get(EMPTY, {}), *(i for i, cpus in state.held.items() if not cpus)}
        assert set(state.unsure) <= unknown
        ids = [container.id for container in state.containers()]
        assert len(ids) == len(set(ids))
        assert all(state.find(container.id) is container for container in state.containers())

    @invariant()
    def what_is_believed_of_the_runtime_is_true(self) -> None:
        state = self.desk.state
        for cpus, group in state.shared.items():
            assert not cpus or all(self.desk.runtime[i].cpus == cpus for i in group if i in self.desk.runtime)
        for i, cpus in state.held.items():
            assert not cpus or self.desk.runtime[i].cpus == cpus

    @invariant()
    def the_pool_touches_no_claim_and_no_reserved_cpu_while_it_has_others(self) -> None:
        state = self.desk.state
        assert state.pool.isdisjoint(prepared(state))
        assert all(state.pool.isdisjoint(c.own) for c in state.claimed())
        free = state.online - state.reserved - prepared(state)
        for c in state.claimed():
            free -= c.own
        assert not free or state.pool == free

    @invariant()
    def living_containers_of_different_owners_share_no_cpu(self) -> None:
        living = list(self.desk.state.claimed())
        for one in living:
            for other in living:
                assert one.key == other.key or one.own.isdisjoint(other.own)

    @invariant()
    def each_claim_is_used_by_its_owner_alone(self) -> None:
        state = self.desk.state
        for c in state.claimed():
            for uid in c.claims:
                # A container may outlive its claim, which may then be prepared anew, on other CPUs, for others.
                if uid in state.owners and state.claims[uid].cpus <= c.own:
                    assert (state.owners[uid].pod_uid, state.owners[uid].container) == c.key


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)

"""A desk at which one policy state is played by hand: short calls for events, and what a test asks about."""

from __future__ import annotations

from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.policy import events
from nri_cpu.policy.state import Decision, Facts, State, drop

# T1: 8 cores, siblings n and n+8. T3: 4 CPUs.
T1 = CPUSet.parse("0-15")
T3 = CPUSet.parse("0-3")


def uid(letter: str) -> str:
    """A claim's UID that a test can call by a letter."""
    return f"{ord(letter):08x}-0000-4000-8000-{ord(letter):012x}"


def record(letter: str, cpus: str, preparation: str = "") -> ClaimRecord:
    return ClaimRecord(
        uid=uid(letter),
        namespace="default",
        name=f"claim-{letter}",
        pod_uids=(),
        cpus=CPUSet.parse(cpus),
        preparation=preparation or f"{ord(letter):032x}",
        prepared_at="2026-11-30T00:00:00Z",
        devices=(),
        options={},
        unknown={},
    )


def env_of(claim: ClaimRecord) -> tuple[str, ...]:
    """What the claim's CDI spec sets."""
    return (f"DRA_CPUSET_{claim.uid}={claim.cpus}", f"NRI_CPU_PREPARATION_{claim.uid}={claim.preparation}")


def container(
    container_id: str,
    pod: str = "p1",
    name: str = "",
    claims: tuple[ClaimRecord, ...] = (),
    env: tuple[str, ...] = (),
    cpus: str = "",
    created_at: int = 0,
) -> Facts:
    proven = tuple(entry for claim in claims for entry in env_of(claim))
    return Facts(
        id=container_id,
        name=name or container_id,
        pod_uid=f"uid-{pod}",
        sandbox=f"sandbox-{pod}",
        pod_namespace="default",
        pod_name=pod,
        env=(*env, *proven),
        cpus=CPUSet.parse(cpus),
        created_at=created_at,
    )


class Desk:
    """A node with the plugin connected, and a runtime that does as it is told unless a test says otherwise."""

    def __init__(self, online: CPUSet = T1, reserved: str = "") -> None:
        self.claims: dict[str, ClaimRecord] = {}
        self.online = online
        self.reserved = CPUSet.parse(reserved)
        self.state = State(online=online, reserved=self.reserved)
        self.runtime: dict[str, Facts] = {}  # what the runtime holds
        self._look()

    def _look(self) -> None:
        self.state = events.follow(self.state, self.online, Checkpoint(self.reserved, dict(self.claims), {}))

    def prepare(self, letter: str, cpus: str, preparation: str = "") -> ClaimRecord:
        claim = record(letter, cpus, preparation)
        self.claims[claim.uid] = claim
        self._look()
        return claim

    def unprepare(self, claim: ClaimRecord) -> None:
        del self.claims[claim.uid]
        self._look()

    def set_online(self, cpus: str) -> None:
        self.online = CPUSet.parse(cpus)
        self._look()

    def set_reserved(self, cpus: str) -> None:
        self.reserved = CPUSet.parse(cpus)
        self._look()

    def synchronize(self, *found: Facts, pods: tuple[str, ...] | None = None) -> Decision:
        self.runtime = {facts.id: facts for facts in found}
        listed = [facts.pod_uid for facts in found] if pods is None else [f"uid-{pod}" for pod in pods]
        self.state = events.disconnected(self.state)
        self.state, decision = events.synchronize(self.state, listed, found, {})
        self._apply(decision)
        return decision

    def ask_to_create(self, facts: Facts) -> Decision:
        """CreateContainer whose answer goes nowhere."""
        self.state = events.heard(self.state)
        self.state, decision = events.create(self.state, facts)
        return decision

    def create(self, facts: Facts) -> Decision:
        """CreateContainer, and PostCreateContainer unless it was refused."""
        decision = self.begin(facts)
        if not decision.refusal:
            self.finish(facts, decision.adjust)
        return decision

    def begin(self, facts: Facts) -> Decision:
        """CreateContainer whose answer arrives; it is for `finish` to say what became of it."""
        decision = self.ask_to_create(facts)
        self._apply(decision)
        return decision

    def finish(self, facts: Facts, adjust: CPUSet | None) -> None:
        """PostCreateContainer."""
        self.runtime[facts.id] = facts._replace(cpus=adjust or facts.cpus)
        self.state = events.created(events.heard(self.state), self.runtime[facts.id])

    def stop(self, container_id: str) -> Decision:
        self.runtime.pop(container_id, None)
        self.state = events.heard(self.state)
        self.state, decision = events.ended(self.state, container_id)
        self._apply(decision)
        return decision

    def remove(self, container_id: str) -> None:
        self.state = drop(events.heard(self.state), container_id)

    def update(self, container_id: str, requested: str = "") -> Decision:
        self.state = events.heard(self.state)
        facts = self.runtime[container_id]
        asked = CPUSet.parse(requested) if requested else None
        self.state, decision = events.update(self.state, facts, asked)
        if requested:
            self.runtime[container_id] = facts._replace(cpus=CPUSet.parse(requested))
        self._apply(decision)
        return decision

    def end_pod(self, pod: str, *, removed: bool = False) -> None:
        self.state = events.heard(self.state)
        self.state = events.pod_ended(self.state, f"uid-{pod}", f"sandbox-{pod}", removed=removed)

    def _apply(self, decision: Decision) -> None:
        for cpus, ids in decision.updates:
            for container_id in ids:
                if container_id in self.runtime:
                    self.runtime[container_id] = self.runtime[container_id]._replace(cpus=cpus)

    def cpus(self, container_id: str) -> str:
        """What the runtime has for the container."""
        return str(self.runtime[container_id].cpus)


def updates_of(decision: Decision) -> dict[str, str]:
    """A decision's updates by container; fails if a container has two, or an empty one."""
    found: dict[str, str] = {}
    for cpus, ids in decision.updates:
        for container_id in ids:
            assert container_id not in found, f"two updates for {container_id}"
            assert cpus != EMPTY, f"an empty cpuset for {container_id}"
            found[container_id] = str(cpus)
    return found

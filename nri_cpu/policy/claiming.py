"""Who may have a claim: one container name of one pod, until Unprepare or until that pod is gone.

See known fault A22. Binding several claims is all or nothing. Nothing here changes a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from nri_cpu.checkpoint.model import ClaimRecord, Owner
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.policy import proof
from nri_cpu.policy.state import Container, Facts, State, title


class Use(NamedTuple):
    """The claims that a container uses and their CPUs; none for a shared container."""

    claims: tuple[str, ...] = ()
    cpus: CPUSet = EMPTY


NOTHING = Use()


def wish(state: State, facts: Facts) -> Use | str:
    """The claims that the container's env proves, or why it proves nothing of what it names."""
    return _wish(state, facts, proof.mentions(facts.env)) if facts.env else NOTHING


def _wish(state: State, facts: Facts, said: Mapping[str, proof.Mention]) -> Use | str:
    for uid, mention in said.items():
        if uid not in state.claims and not state.claims_known:
            return f"claim {uid} can't be looked up: the checkpoint of prepared claims can't be read"
        if problem := proof.objection(uid, mention, state.claims):
            return problem
    return proof.disagreement(said, facts.cdi_devices) or _use(state.claims, tuple(said))


def wish_of_running(state: State, facts: Facts) -> Use | str:
    """As `wish`, for a container that runs already.

    It may have been made by dra-driver-cpu, whose claims have no preparation: then its env and its cpuset must equal
    the records. A user can write the one and not the other.
    """
    if not facts.env:
        return NOTHING
    said = proof.mentions(facts.env)
    if said and all(proof.without_preparation(mention, state.claims.get(uid)) for uid, mention in said.items()):
        use = _use(state.claims, tuple(said))
        if use.cpus == facts.cpus:
            return use
    return _wish(state, facts, said)


def objection(state: State, facts: Facts, use: Use) -> str:
    """Why the container can't have these claims now; empty when it can."""
    for uid in use.claims:
        record = state.claims[uid]
        owner = state.owners.get(uid)
        if owner and not owns(owner, facts) and not gives_way(state, owner):
            return (
                f"{proof.title(record)} belongs to {title(owner.container, owner.pod_namespace, owner.pod_name)}; "
                "a claim is for one container: give this one a claim of its own"
            )
        for other in state.claimed():
            if other.key != (facts.pod_uid, facts.name) and not other.own.isdisjoint(record.cpus):
                return (
                    f"{proof.title(record)} has CPUs {other.own & record.cpus}, on which {other.title} "
                    "still runs; it will work when that one has ended"
                )
    return ""


def owns(owner: Owner, facts: Facts | Container) -> bool:
    return (owner.pod_uid, owner.container) == (facts.pod_uid, facts.name)


def gives_way(state: State, owner: Owner) -> bool:
    """Whether the owner's pod is gone: no living container, and its sandbox was stopped or removed."""
    return owner.pod_uid in state.ended and all(c.pod_uid != owner.pod_uid for c in state.containers())


def bind(state: State, facts: Facts, use: Use) -> Mapping[str, Owner]:
    """The owners after the container has got these claims; the same object when they were its own already."""
    if all((owner := state.owners.get(uid)) and owns(owner, facts) for uid in use.claims):
        return state.owners
    fresh = {
        uid: Owner(
            preparation=state.claims[uid].preparation,
            pod_uid=facts.pod_uid,
            pod_namespace=facts.pod_namespace,
            pod_name=facts.pod_name,
            container=facts.name,
            container_id=_shown_id(facts),
            cgroup=facts.cgroup,
        )
        for uid in use.claims
    }
    return {**state.owners, **fresh}


def incarnate(state: State, facts: Facts, claims: Iterable[str]) -> Mapping[str, Owner]:
    """The owners with this container as the latest of those that it replaces, for readers that look at the machine; the
    same object when it is that already."""
    mine = {
        uid: replace(owner, container_id=_shown_id(facts), cgroup=facts.cgroup)
        for uid in claims
        if (owner := state.owners.get(uid)) and owns(owner, facts) and owner.container_id != facts.id
    }
    return {**state.owners, **mine} if mine else state.owners


def _shown_id(facts: Facts) -> str:
    return facts.id if facts.id.isprintable() else ""


def assign(state: State, found: Sequence[tuple[Facts, Use]]) -> dict[str, Use]:
    """Who of the running containers keeps the claims that it proves, by container id.

    Where two live containers want one claim: its recorded owner, else the one whose cpuset is the claim's, else the
    older. The others have no entry: they become shared containers.
    """

    def rank(item: tuple[int, tuple[Facts, Use]]) -> tuple[bool, bool, int, int]:
        place, (facts, use) = item
        recorded = all((owner := state.owners.get(uid)) and owns(owner, facts) for uid in use.claims)
        return (not recorded, facts.cpus != use.cpus, facts.created_at, place)

    live = {facts.pod_uid for facts, _ in found}
    holders = {
        uid: (owner.pod_uid, owner.container)
        for uid, owner in state.owners.items()
        if owner.pod_uid in live or owner.pod_uid not in state.ended
    }
    kept: dict[str, Use] = {}
    for _, (facts, use) in sorted(enumerate(found), key=rank):
        key = (facts.pod_uid, facts.name)
        if all(holders.get(uid, key) == key for uid in use.claims):
            kept[facts.id] = use
            holders.update(dict.fromkeys(use.claims, key))
    return kept


def _use(claims: Mapping[str, ClaimRecord], uids: tuple[str, ...]) -> Use:
    if len(uids) == 1:
        return Use(uids, claims[uids[0]].cpus)
    return Use(uids, CPUSet.union(claims[uid].cpus for uid in uids))

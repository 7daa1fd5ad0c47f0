"""What happens on a node, each as a pure function: (state, event) -> (state, decision).

    follow         the checkpoint or the CPUs on line have changed
    synchronize    the runtime has told all its pods and containers
    create         a container is about to be created
    created        it has been
    update         somebody asks for other resources of a container
    ended          it is dead, or was never made
    pod_ended      its pod's sandbox was stopped or removed
    heard          the runtime has sent its next event
    disconnected   the connection is lost, and with it every answer under way

A refused event leaves the state as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.policy import claiming, proof
from nri_cpu.policy.claiming import NOTHING, Use
from nri_cpu.policy.state import (
    Container,
    Decision,
    Delivery,
    Facts,
    Note,
    State,
    Updates,
    believe,
    derive,
    drop,
    due,
    put,
)

NO_CHANGE = Decision()


def follow(state: State, online: CPUSet, checkpoint: Checkpoint | None) -> State:
    """The state with these CPUs on line and these prepared claims; None: no readable checkpoint, what was known holds.

    Owners go with the preparation that they owned (Unprepare, or a claim prepared anew).
    """
    if checkpoint is not None:
        owners = {
            uid: owner
            for uid, owner in state.owners.items()
            if (record := checkpoint.claims.get(uid)) and record.preparation == owner.preparation
        }
        state = state._replace(claims=checkpoint.claims, claims_known=True, reserved=checkpoint.reserved, owners=owners)
    return derive(state._replace(online=online))


def synchronize(
    state: State, pods: Sequence[str], found: Sequence[Facts], specs: Mapping[str, ClaimRecord]
) -> tuple[State, Decision]:
    """Take the runtime's whole word: `pods` are the UIDs of all pods, `found` all containers that are not stopped.

    What it doesn't list is gone, claims and owners apart. Every listed container gets its cpuset again, since nobody
    knows what happened meanwhile (fault A19). One that proves nothing of what its env says is shared and noted (A21,
    R5). `specs` are claims by their CDI specs: they count only while no checkpoint has been read, and only for claims
    that a listed container proves.
    """
    if not state.claims_known:
        named = {uid for facts in found for uid in proof.mentions(facts.env)}
        state = state._replace(claims={uid: specs[uid] for uid in named if uid in specs})
    ended = frozenset(owner.pod_uid for owner in state.owners.values()) - frozenset(pods)
    state = state._replace(ended=ended, deliveries=())
    wishes = [(facts, claiming.wish_of_running(state, facts)) for facts in found]
    wanting = [(facts, use) for facts, use in wishes if isinstance(use, Use) and use.claims]
    kept = claiming.assign(state, wanting)
    if not state.claims_known:
        proven = {uid for use in kept.values() for uid in use.claims}
        state = state._replace(claims={uid: record for uid, record in state.claims.items() if uid in proven})

    notes: list[Note] = []
    containers: dict[str, Container] = {}
    for facts, use in wishes:
        if isinstance(use, str):
            notes.append(Note("unproven", f"{title(facts)} is treated as shared: {use}"))
        elif use.claims and facts.id not in kept:
            claims = ", ".join(proof.title(state.claims[uid]) for uid in use.claims if uid in state.claims)
            notes.append(Note("claim_taken", f"{title(facts)} is treated as shared: another container has {claims}"))
        given = kept.get(facts.id, NOTHING)
        containers[facts.id] = _track(facts, given, stored=True)
        if given.claims:
            state = state._replace(owners=claiming.bind(state, facts, given))
    notes += _misplaced(found, containers)
    state = derive(state._replace(containers=containers, shared={}, exclusive={}))
    if not state.pool and not all(container.claims for container in containers.values()):
        notes.append(Note("empty_pool", "no CPU is left for shared containers: they stay where they are"))
    return _send(believe(state, {EMPTY: _urgent_first(state, found)}), Decision(notes=tuple(notes)))


def create(state: State, facts: Facts) -> tuple[State, Decision]:
    """Choose a new container's cpuset, or refuse it. Updates that are due ride on the answer, shrinking ones first:
    the runtime applies them before it creates the container (fact F8)."""
    before, state = state, _without_ghosts(state, facts)
    use = claiming.wish(state, facts)
    if isinstance(use, str):
        return _refuse(before, "unproven", facts, use)
    if problem := claiming.objection(state, facts, use):
        return _refuse(before, "claim_taken", facts, problem)
    if problem := _no_room(state, use):
        return _refuse(before, "empty_pool", facts, problem)
    container = _track(facts, use, stored=False)
    owners = claiming.bind(state, facts, use) if use.claims else state.owners
    made = put(state, container)
    if owners is not state.owners or state.ended:
        made = made._replace(owners=owners, ended=state.ended - {facts.pod_uid})
    adjust = made.wanted(container) or None
    notes: tuple[Note, ...] = ()
    if use.claims:
        told = "" if owners is state.owners else ", its owner from now on"
        notes = (Note("exclusive", f"{title(facts)} gets CPUs {adjust} of claim {', '.join(use.claims)}{told}"),)
    return _send(made, Decision(adjust=adjust, notes=notes), creating=facts.id)


def created(state: State, facts: Facts) -> State:
    """The runtime has stored the container: it takes updates now, and what the answer to its creation said was done.
    Its own cpuset is what the runtime says: another plugin may have had its way."""
    container = state.containers.get(facts.id)
    if container is None:
        return _adopt(state, facts)
    confirmed = [delivery for delivery in state.deliveries if delivery.container == facts.id]
    if confirmed:
        state = state._replace(deliveries=tuple(d for d in state.deliveries if d.container != facts.id))
    if not container.stored:
        state = put(state, container._replace(stored=True))
    return believe(believe(state, _held(confirmed)), {facts.cpus: (facts.id,)})


def update(state: State, facts: Facts, requested: CPUSet) -> tuple[State, Decision]:
    """Somebody asks for other resources of a container; `requested` is the cpuset among them, empty: none.

    The container is answered for only where its cpuset would be wrong otherwise: with an answer the runtime loses the
    request's swap limit and oom_score_adj (fault P4). That answer is the last one (fact F9).
    """
    if facts.id not in state.containers:
        state = _adopt(state, facts)
    container = state.containers[facts.id]._replace(stored=True)
    state = believe(put(state, container), {facts.cpus: (facts.id,)})
    state, decision = _send(state, NO_CHANGE, leave_out=facts.id)
    wanted = state.wanted(container)
    if not wanted or wanted == (requested or facts.cpus):
        return state, decision
    own: Updates = ((wanted, (facts.id,)),)
    state = state._replace(deliveries=(*state.deliveries, Delivery(own)))
    return state, decision._replace(updates=(*decision.updates, *own))


def ended(state: State, container_id: str) -> tuple[State, Decision]:
    """The container is dead or gone: it is forgotten, its claim and the claim's owner are not (faults A17, A18, I1).

    Where the runtime takes an answer (StopContainer), it carries what is due for the others; `drop` alone is for the
    events whose answer says nothing.
    """
    return _send(drop(state, container_id), NO_CHANGE)


def pod_ended(state: State, pod_uid: str, sandbox: str, *, removed: bool) -> State:
    """A sandbox was stopped or removed. Its creations under way have failed, and with a removed one all its containers
    are gone, whether or not anybody said so (fault I7). When no container of the pod lives, in whatever sandbox, its
    claims may be taken over."""
    for container in tuple(state.containers.values()):
        if sandbox and container.sandbox == sandbox:
            pod_uid = pod_uid or container.pod_uid
            if removed or not container.stored:
                state = drop(state, container.id)
    if pod_uid and any(owner.pod_uid == pod_uid for owner in state.owners.values()):
        return state._replace(ended=state.ended | {pod_uid})
    return state


def heard(state: State) -> State:
    """The runtime has sent an event, so it has applied the answers before it, but for those of creations under way."""
    confirmed = [delivery for delivery in state.deliveries if not delivery.container]
    if not confirmed:
        return state
    rest = tuple(delivery for delivery in state.deliveries if delivery.container)
    return believe(state._replace(deliveries=rest), _held(confirmed))


def disconnected(state: State) -> State:
    """The connection is lost: no answer under way is known to have arrived. The next Synchronize tells what is."""
    return state._replace(deliveries=())


def title(facts: Facts) -> str:
    return f"container {facts.name} of pod {facts.pod_namespace}/{facts.pod_name}"


def _track(facts: Facts, use: Use, *, stored: bool) -> Container:
    return Container(
        facts.id,
        facts.name,
        facts.pod_uid,
        facts.sandbox,
        use.claims,
        use.cpus,
        stored,
        facts.pod_namespace,
        facts.pod_name,
    )


def _adopt(state: State, facts: Facts) -> State:
    """A container that is news although it exists: the runtime lost its creation (containerd#13698)."""
    use = claiming.wish_of_running(state, facts)
    if isinstance(use, str) or claiming.objection(state, facts, use):
        use = NOTHING
    state = state._replace(owners=claiming.bind(state, facts, use))
    return believe(put(state, _track(facts, use, stored=True)), {facts.cpus: (facts.id,)})


def _without_ghosts(state: State, facts: Facts) -> State:
    """Forget earlier creations of this container that the runtime never reported as done: they failed without a word
    (CRI-O sends no Stop for a creation that failed within NRI)."""
    for creation in state.deliveries:
        ghost = state.containers.get(creation.container)
        if ghost and not ghost.stored and ghost.key == (facts.pod_uid, facts.name):
            state = drop(state, ghost.id)
    return state


def _held(deliveries: Sequence[Delivery]) -> dict[CPUSet, list[str]]:
    """What the runtime holds when these replies were applied."""
    held: dict[CPUSet, list[str]] = {}
    for delivery in deliveries:
        for cpus, ids in delivery.updates:
            held.setdefault(cpus, []).extend(ids)
    return held


def _send(state: State, decision: Decision, *, creating: str = "", leave_out: str = "") -> tuple[State, Decision]:
    """Put all updates that are due into the answer, and remember what was sent until it is known to have arrived."""
    updates = due(state, leave_out)
    if updates or creating:
        state = state._replace(deliveries=(*state.deliveries, Delivery(updates, creating)))
    return state, decision._replace(updates=updates) if updates else decision


def _no_room(state: State, use: Use) -> str:
    """Why a container can't be placed when no CPU is left to share (fault A23); a node without claims, where nothing
    is managed, stays as the kubelet has it."""
    if state.pool:
        return ""
    if not use.claims:
        if not state.claims and not state.claimed:
            return ""
        return "no CPU is left for shared containers: free a claim, or set reservedCPUs or minSharedCPUs"
    if len(state.claimed) < len(state.containers):
        return "its claim leaves no CPU for the shared containers of this node: free a claim, or set minSharedCPUs"
    return ""


def _refuse(state: State, kind: str, facts: Facts, text: str) -> tuple[State, Decision]:
    return state, Decision(refusal=text, notes=(Note(kind, f"{title(facts)} is refused: {text}"),))


def _urgent_first(state: State, found: Sequence[Facts]) -> list[str]:
    """The containers' ids, those that must leave a CPU first: the runtime applies updates one by one."""

    def can_wait(facts: Facts) -> bool:
        return bool(facts.cpus) and facts.cpus <= state.wanted(state.containers[facts.id])

    return [facts.id for facts in sorted(found, key=can_wait)]


def _misplaced(found: Sequence[Facts], containers: Mapping[str, Container]) -> list[Note]:
    """Claim containers that were created without us and run elsewhere: what happened while we were away (B14)."""
    return [
        Note("misplaced", f"{title(facts)} ran on CPUs {facts.cpus or 'of everybody'}, not on its own {own}")
        for facts in found
        if (own := containers[facts.id].own) and own != facts.cpus
    ]

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

from collections.abc import Iterator, Mapping, Sequence

from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.policy import claiming, proof
from nri_cpu.policy.claiming import NOTHING, Use
from nri_cpu.policy.state import (
    Container,
    Creation,
    Decision,
    Facts,
    Note,
    State,
    announce,
    confirm,
    derive,
    drop,
    store,
    tell,
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
    gone = _ended_pods(state, pods, found)
    state = state._replace(ended=gone, creating={}, shared={}, exclusive={}, held={}, sent=None, unsure={})
    wishes = [(facts, claiming.wish_of_running(state, facts)) for facts in found]
    kept = claiming.assign(state, [(facts, use) for facts, use in wishes if isinstance(use, Use) and use.claims])
    if not state.claims_known:
        proven = {uid for use in kept.values() for uid in use.claims}
        state = state._replace(claims={uid: record for uid, record in state.claims.items() if uid in proven})

    exclusive = {facts.id: _track(facts, kept[facts.id]) for facts in found if facts.id in kept}
    shared = {facts.id: _track(facts, NOTHING) for facts in found if facts.id not in kept}
    for facts in found:
        if facts.id in kept:
            state = state._replace(owners=claiming.bind(state, facts, kept[facts.id]))
            state = state._replace(owners=claiming.incarnate(state, facts, kept[facts.id].claims))
    # Nothing is believed of what the runtime holds, so that all are told.
    state = derive(state._replace(exclusive=exclusive, held=dict.fromkeys(exclusive, EMPTY)))
    notes = [*_disappointed(state, wishes, kept), *_misplaced(found, exclusive)]
    if shared and not state.pool:
        notes.append(Note("empty_pool", "no CPU is left for shared containers: they stay where they are"))
    groups = {EMPTY: _urgent_first(state.pool, found, shared)} if shared else {}
    return _answer(state._replace(shared=groups), Decision(notes=tuple(notes)))


def create(state: State, facts: Facts) -> tuple[State, Decision]:
    """Choose a new container's cpuset, or refuse it. Updates that are due ride on the answer, shrinking ones first:
    the runtime applies them before it creates the container (fact F8)."""
    before, state = state, _without_ghosts(drop(state, facts.id), facts)
    use = claiming.wish(state, facts)
    if isinstance(use, str):
        return _refuse(before, "unproven", facts, use)
    if use.claims and (problem := claiming.objection(state, facts, use)):
        return _refuse(before, "claim_taken", facts, problem)
    if not state.pool and (problem := _no_room(state, use)):
        return _refuse(before, "empty_pool", facts, problem)
    container = _track(facts, use)
    made = announce(state, Creation(container))
    if use.claims:
        if not made.wanted(container):
            problem = f"none of its CPUs {use.cpus} is on line, and none is shared: bring one back"
            return _refuse(before, "off_line", facts, problem)
        owners = claiming.bind(made, facts, use)
        made = made if owners is made.owners else made._replace(owners=owners)
    if facts.pod_uid in made.ended:
        made = made._replace(ended=made.ended - {facts.pod_uid})
    made, answer = tell(made)
    if answer:
        made = announce(made, Creation(container, answer))
    return made, Decision(made.wanted(container) or None, answer.updates if answer else ())


def created(state: State, facts: Facts) -> State:
    """The runtime has stored the container: it takes updates now, and what the answer to its creation said was done.
    Its own cpuset is what the runtime says: another plugin may have had its way."""
    creation = state.creating.get(facts.id)
    if creation is None:
        return _seen(state, facts, facts.cpus)
    if creation.container.claims:
        state = state._replace(owners=claiming.incarnate(state, facts, creation.container.claims))
    return confirm(store(state, creation.container, facts.cpus), creation.answer)


def update(state: State, facts: Facts, requested: CPUSet | None) -> tuple[State, Decision]:
    """Somebody asks for other resources of a container; `requested` is the cpuset among them, None: there is none. One
    that can't be read is empty, as what a runtime holds is.

    The container is answered for only where its cpuset would be wrong otherwise: with an answer the runtime loses the
    request's swap limit and oom_score_adj (fault P4). That answer is the last one (fact F9).
    """
    state = _seen(state, facts, facts.cpus if requested is None else requested)
    return _answer(state, NO_CHANGE, last=facts.id)


def ended(state: State, container_id: str) -> tuple[State, Decision]:
    """The container is dead or gone: it is forgotten, its claim and the claim's owner are not (faults A17, A18, I1).

    Where the runtime takes an answer (StopContainer), it carries what is due for the others; `drop` alone is for the
    events whose answer says nothing.
    """
    return _answer(drop(state, container_id), NO_CHANGE)


def pod_ended(state: State, pod_uid: str, sandbox: str, *, removed: bool) -> State:
    """A sandbox was stopped or removed. Its creations under way have failed, and with a removed one all its containers
    are gone, whether or not anybody said so (fault I7). When no container of the pod lives, in whatever sandbox, its
    claims may be taken over."""
    pods = {pod_uid}
    if sandbox:
        lost = [creation.container for creation in state.creating.values()]
        for container in list(state.containers()) if removed else lost:
            if container.sandbox == sandbox:
                pods.add(container.pod_uid)  # which a sandbox that is going away may not tell
                state = drop(state, container.id)
    over = {owner.pod_uid for owner in state.owners.values()} & pods
    return state._replace(ended=state.ended | over) if over else state


def heard(state: State) -> State:
    """The runtime has sent an event, so it has applied the answer before it, unless that was to a creation."""
    return confirm(state._replace(sent=None), state.sent) if state.sent else state


def disconnected(state: State) -> State:
    """The connection is lost: no answer under way is known to have arrived. The next Synchronize tells what is."""
    return state._replace(sent=None)


def _track(facts: Facts, use: Use) -> Container:
    return Container(
        facts.id,
        facts.name,
        facts.pod_uid,
        facts.sandbox,
        use.claims,
        use.cpus,
        facts.pod_namespace,
        facts.pod_name,
    )


def _seen(state: State, facts: Facts, held: CPUSet) -> State:
    """A container that the runtime has, and for which it holds these CPUs, or will when the event is over. It may not
    have been announced: some creations never are (containerd#13698)."""
    container = state.find(facts.id)
    if container is None:
        use = claiming.wish_of_running(state, facts)
        if isinstance(use, str) or claiming.objection(state, facts, use):
            use = NOTHING
        state = state._replace(owners=claiming.bind(state, facts, use))
        container = _track(facts, use)
    return store(state, container, held)


def _without_ghosts(state: State, facts: Facts) -> State:
    """Forget earlier creations of this container that the runtime never reported as done: they failed without a word
    (CRI-O sends no Stop for a creation that failed within NRI)."""
    for container, _ in tuple(state.creating.values()):
        if container.key == (facts.pod_uid, facts.name):
            state = drop(state, container.id)
    return state


def _answer(state: State, decision: Decision, last: str = "") -> tuple[State, Decision]:
    """Put all updates that are due into an answer, and remember it until it is known to have arrived."""
    state, answer = tell(state, last)
    if not answer:
        return state, decision
    return state._replace(sent=answer), decision._replace(updates=answer.updates)


def _no_room(state: State, use: Use) -> str:
    """Why a container can't be placed now that no CPU is left to share (fault A23); a node without claims, where
    nothing is managed, stays as the kubelet has it."""
    if not use.claims:
        if not state.claims and not any(state.claimed()):
            return ""
        return "no CPU is left for shared containers: free a claim, or set reservedCPUs or minSharedCPUs"
    if any(not container.claims for container in state.containers()):
        return "its claim leaves no CPU for the shared containers of this node: free a claim, or set minSharedCPUs"
    return ""


def _refuse(state: State, kind: str, facts: Facts, text: str) -> tuple[State, Decision]:
    return state, Decision(refusal=text, notes=(Note(kind, f"{facts.title} is refused: {text}"),))


def _ended_pods(state: State, pods: Sequence[str], found: Sequence[Facts]) -> frozenset[str]:
    """Owners' pods that are gone: not listed, or listed with no container and known to have been stopped (containerd
    lists a stopped sandbox until it is removed)."""
    owners = frozenset(owner.pod_uid for owner in state.owners.values())
    return (owners - frozenset(pods)) | (state.ended & owners - {facts.pod_uid for facts in found})


def _disappointed(state: State, wishes: Sequence[tuple[Facts, Use | str]], kept: Mapping[str, Use]) -> Iterator[Note]:
    """Running containers that name claims and don't get them: they are shared."""
    for facts, use in wishes:
        if isinstance(use, str):
            yield Note("unproven", f"{facts.title} is treated as shared: {use}")
        elif use.claims and facts.id not in kept:
            claims = ", ".join(proof.title(state.claims[uid]) for uid in use.claims if uid in state.claims)
            yield Note("claim_taken", f"{facts.title} is treated as shared: another container has {claims}")


def _urgent_first(pool: CPUSet, found: Sequence[Facts], shared: Mapping[str, Container]) -> Mapping[str, Container]:
    """The shared containers, those that must leave a CPU first: the runtime applies updates one by one."""
    patient = {facts.id for facts in found if facts.cpus and facts.cpus <= pool}
    order = sorted(shared, key=patient.__contains__)
    return {container_id: shared[container_id] for container_id in order}


def _misplaced(found: Sequence[Facts], exclusive: Mapping[str, Container]) -> list[Note]:
    """Claim containers that were created without us and run elsewhere: what happened while we were away (B14)."""
    return [
        Note("misplaced", f"{facts.title} ran on CPUs {facts.cpus or 'of everybody'}, not on its own {own}")
        for facts in found
        if facts.id in exclusive and (own := exclusive[facts.id].own) != facts.cpus
    ]

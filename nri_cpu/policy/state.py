"""What the policy knows, as values: containers, owners, what the runtime was sent and what it is known to hold.

A State is never changed; every event makes a new one, by the functions below alone, which keep its pool as `derive`
would make it. Thousands of shared containers differ in nothing but their ids, so they are kept by what the runtime
holds for them: a change of the pool then costs a hook a few steps, not one for each container. And a container that is
being created stands apart from them, so that the hook that its start waits for copies nothing large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

from nri_cpu.checkpoint.model import ClaimRecord, Owner
from nri_cpu.cpuset import EMPTY, CPUSet

_Value = TypeVar("_Value")

# Container ids by the cpuset that they are to get, in the order in which the runtime is to apply them. An id stands in
# it once, and no cpuset is empty (NRI: two updates for one container conflict, and "" means "leave as is").
Updates = tuple[tuple[CPUSet, tuple[str, ...]], ...]


def title(container: str, namespace: str, pod: str) -> str:
    """A container as people know it."""
    return f"container {container} of pod {namespace}/{pod}"


# Named tuples: a hook makes one or two of each, and a frozen dataclass takes three times as long.
class Facts(NamedTuple):
    """What an event says of a container: the runtime's word, and env that anybody may have written."""

    id: str
    name: str
    pod_uid: str
    sandbox: str = ""  # the runtime's id of the pod's sandbox; a pod may get another one
    pod_namespace: str = ""
    pod_name: str = ""
    env: tuple[str, ...] = ()
    cpus: CPUSet = EMPTY  # in the runtime's book; empty: none set
    cgroup: str = ""
    created_at: int = 0  # nanoseconds, 0: not known
    cdi_devices: tuple[str, ...] = ()  # as the kubelet asked, where the runtime tells; empty: it doesn't

    @property
    def title(self) -> str:
        return title(self.name, self.pod_namespace, self.pod_name)

    def __repr__(self) -> str:
        """Without env, which holds proof and may hold secrets."""
        return f"<facts of {self.title}, {self.id}>"


class Container(NamedTuple):
    """A container that is not known to have ended."""

    id: str
    name: str
    pod_uid: str
    sandbox: str = ""
    claims: tuple[str, ...] = ()  # UIDs; none: it is a shared container
    own: CPUSet = EMPTY  # all CPUs of its claims; they stay its own while it lives, whatever becomes of the claims
    pod_namespace: str = ""
    pod_name: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Who may own a claim: restarts of a container keep it."""
        return (self.pod_uid, self.name)

    @property
    def title(self) -> str:
        return title(self.name, self.pod_namespace, self.pod_name)


# Shared containers by the cpuset that they have in common, and by id.
Groups = Mapping[CPUSet, Mapping[str, Container]]


class Answer(NamedTuple):
    """Updates that went out with an answer. Answers are numbered, since those to overlapping creations are confirmed in
    any order, and what was said last is what the runtime holds."""

    number: int
    updates: Updates


class Creation(NamedTuple):
    """A container whose creation has been answered, and not yet reported as done: the runtime can't apply updates to it
    now, and drops them silently. That it is done confirms the answer."""

    container: Container
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something that people may ask about later; `kind` is what is counted."""

    kind: str
    text: str


class Decision(NamedTuple):
    """The answer to an event. `refusal`: the event fails with that text, and nothing else has happened."""

    adjust: CPUSet | None = None
    updates: Updates = ()
    refusal: str = ""
    notes: tuple[Note, ...] = ()


class State(NamedTuple):
    """Everything that decisions depend on. No mapping in it is ever changed."""

    online: CPUSet = EMPTY
    reserved: CPUSet = EMPTY
    claims: Mapping[str, ClaimRecord] = {}  # prepared ones, by UID
    claims_known: bool = False  # false until a checkpoint has been read: absent is never read as empty
    owners: Mapping[str, Owner] = {}  # by claim UID
    ended: frozenset[str] = frozenset()  # UIDs of owners' pods whose sandbox was stopped, removed, or is not listed
    creating: Mapping[str, Creation] = {}  # by container id
    shared: Mapping[CPUSet, Mapping[str, Container]] = {}  # Groups by what the runtime holds
    exclusive: Mapping[str, Container] = {}  # claim containers by id
    held: Mapping[str, CPUSet] = {}  # what the runtime holds for the exclusive ones, by id
    answers: int = 0  # with updates, so far
    sent: Answer | None = None  # which the runtime's next event confirms: it applies one before it sends another
    unsure: Mapping[str, int] = {}  # the last answer that told a container something, until that is confirmed, by id
    pool: CPUSet = EMPTY  # derived, by `derive`: where shared containers belong; empty: there is no such place

    def find(self, container_id: str) -> Container | None:
        """The container, if it is not known to have ended."""
        if creation := self.creating.get(container_id):
            return creation.container
        groups = (self.exclusive, *self.shared.values())
        return next((group[container_id] for group in groups if container_id in group), None)

    def containers(self) -> Iterator[Container]:
        """All containers that are not known to have ended."""
        yield from (creation.container for creation in self.creating.values())
        yield from self.exclusive.values()
        for group in self.shared.values():
            yield from group.values()

    def claimed(self) -> Iterator[Container]:
        """Those of them that have claims."""
        yield from (creation.container for creation in self.creating.values() if creation.container.claims)
        yield from self.exclusive.values()

    def wanted(self, container: Container) -> CPUSet:
        """Where the container belongs; empty when there is no such place, and then it is left alone.

        A claim's container with none of its CPUs on line gets the shared pool: an empty cpuset would let it run
        everywhere (known fault H5).
        """
        return (container.own & self.online) or self.pool if container.claims else self.pool


def derive(state: State) -> State:
    """The state with its pool made anew: CPUs on line, not reserved, in no prepared claim, of no live claim container.

    With none left, the reserved CPUs (fault A23); with none there either, empty.
    """
    taken = prepared(state) | CPUSet.union(container.own for container in state.claimed())
    free = state.online - taken
    return state._replace(pool=(free - state.reserved) or (free & state.reserved))


def announce(state: State, creation: Creation) -> State:
    """The state with a creation under way."""
    container = creation.container
    state = state._replace(creating=_with(state.creating, container.id, creation))
    return state if container.own.isdisjoint(state.pool) else derive(state)


def store(state: State, container: Container, cpus: CPUSet) -> State:
    """The state in which the runtime has the container, and says that it holds these CPUs for it (empty: none)."""
    if container.id in state.creating:
        state = state._replace(creating=_without(state.creating, container.id))
    if container.id in state.unsure:
        state = state._replace(unsure=_without(state.unsure, container.id))
    if not container.claims:
        return state._replace(shared=_moved(state.shared, {container.id: container}, cpus))
    exclusive, held = _with(state.exclusive, container.id, container), _with(state.held, container.id, cpus)
    state = state._replace(exclusive=exclusive, held=held)
    return state if container.own.isdisjoint(state.pool) else derive(state)


def tell(state: State, last: str = "") -> tuple[State, Answer | None]:
    """All updates that are due, as an answer. Until it is confirmed nobody knows what the runtime holds for these
    containers, the old or the new: they are due again with each further answer."""
    updates = due(state, last)
    if not updates:
        return state, None
    answer = Answer(state.answers + 1, updates)
    told = dict.fromkeys(chain.from_iterable(ids for _, ids in updates), answer.number)
    settled = {cpus: group for cpus, group in state.shared.items() if cpus == state.pool or not state.pool}
    rest = [group for cpus, group in state.shared.items() if cpus not in settled]
    if rest:
        settled[EMPTY] = rest[0] if len(rest) == 1 else {i: group[i] for group in rest for i in group}
    held = {container_id: EMPTY if container_id in told else cpus for container_id, cpus in state.held.items()}
    unsure = {**state.unsure, **told}
    return state._replace(answers=answer.number, shared=settled, held=held, unsure=unsure), answer


def confirm(state: State, answer: Answer | None) -> State:
    """The state in which the runtime has applied an answer: it holds what that said, but for containers that are gone
    and those that a later answer told something else."""
    if answer is None:
        return state
    unsure, held, shared = _copy(state.unsure), state.held, state.shared
    for cpus, ids in answer.updates:
        sure = {container_id: cpus for container_id in ids if unsure.get(container_id) == answer.number}
        for container_id in sure:
            del unsure[container_id]
        held = {container_id: sure.get(container_id, known) for container_id, known in held.items()}
        unknown = shared.get(EMPTY, {})
        if some := {container_id: unknown[container_id] for container_id in sure if container_id in unknown}:
            shared = _moved(shared, some, cpus)
    return state._replace(unsure=unsure, held=held, shared=shared)


def drop(state: State, container_id: str) -> State:
    """The state without this container and all that is known of it."""
    gone = state.find(container_id)
    if gone is None:
        return state
    if container_id in state.unsure:
        state = state._replace(unsure=_without(state.unsure, container_id))
    if container_id in state.creating:
        state = state._replace(creating=_without(state.creating, container_id))
    elif gone.claims:
        held = _without(state.held, container_id)
        state = state._replace(exclusive=_without(state.exclusive, container_id), held=held)
    else:
        return state._replace(shared=_moved(state.shared, {container_id: gone}))
    return state if gone.own <= prepared(state) else derive(state)


def due(state: State, last: str = "") -> Updates:
    """Updates for every stored container for which the runtime is not known to hold what it should have: first those
    that must leave a CPU, then those that only gain some, and at the end the one for the container `last`, if due."""
    shrinking: list[tuple[CPUSet, tuple[str, ...]]] = []
    growing: list[tuple[CPUSet, tuple[str, ...]]] = []
    end: Updates = ()

    def sort_in(known: CPUSet, wanted: CPUSet, ids: Iterable[str]) -> None:
        nonlocal end
        if not wanted or known == wanted:
            return
        told = tuple(ids)
        if last in told:
            end = ((wanted, (last,)),)
            told = tuple(container_id for container_id in told if container_id != last)
        if told:
            (growing if known and known <= wanted else shrinking).append((wanted, told))

    for container in state.exclusive.values():
        sort_in(state.held[container.id], state.wanted(container), (container.id,))
    for known, group in state.shared.items():
        sort_in(known, state.pool, group)
    return (*shrinking, *growing, *end)


def prepared(state: State) -> CPUSet:
    """The CPUs of all prepared claims."""
    return CPUSet.union(claim.cpus for claim in state.claims.values())


def _moved(shared: Groups, some: Mapping[str, Container], cpus: CPUSet | None = None) -> Groups:
    """The groups with these containers in that of `cpus`, or in none, and without groups that have become empty."""
    left: dict[CPUSet, Mapping[str, Container]] = {}
    for known, group in shared.items():
        rest = group
        if not some.keys().isdisjoint(group):
            rest = _copy(group)
            for container_id in some:
                rest.pop(container_id, None)
        if rest:
            left[known] = rest
    if cpus is not None:
        joined = _copy(left.get(cpus, {}))
        joined.update(some)
        left[cpus] = joined
    return left


def _with(mapping: Mapping[str, _Value], key: str, value: _Value) -> dict[str, _Value]:
    more = _copy(mapping)
    more[key] = value
    return more


def _without(mapping: Mapping[str, _Value], key: str) -> dict[str, _Value]:
    rest = _copy(mapping)
    rest.pop(key, None)
    return rest


def _copy(mapping: Mapping[str, _Value]) -> dict[str, _Value]:
    """Ten times as fast as {**mapping}, which hashes every key anew."""
    return mapping.copy() if isinstance(mapping, dict) else dict(mapping)

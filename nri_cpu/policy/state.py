"""What the policy knows, as values: containers, owners, what the runtime was sent and what it is known to hold.

A State is never changed; every event makes a new one. What is derived in it is made by `derive`, and kept up by `put`,
`drop` and `believe`, after which it is what `derive` would make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from nri_cpu.checkpoint.model import ClaimRecord, Owner
from nri_cpu.cpuset import EMPTY, CPUSet

_Value = TypeVar("_Value")

# Container ids by the cpuset that they are to get, in the order in which the runtime is to apply them. An id stands in
# it once, and no cpuset is empty (nri-protocol: two updates for one container conflict; "" means "leave as is").
Updates = tuple[tuple[CPUSet, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Facts:
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


@dataclass(frozen=True, slots=True)
class Container:
    """A container that is not known to have ended."""

    id: str
    name: str
    pod_uid: str
    sandbox: str = ""
    claims: tuple[str, ...] = ()  # UIDs; none: it is a shared container
    own: CPUSet = EMPTY  # all CPUs of its claims; they stay its own while it lives, whatever becomes of the claims
    stored: bool = True  # the runtime can apply updates to it; before PostCreateContainer it drops them silently
    title: str = ""  # for people: "container app of pod default/web"

    @property
    def key(self) -> tuple[str, str]:
        """Who may own a claim: restarts of a container keep it."""
        return (self.pod_uid, self.name)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A reply's cpusets that are not believed yet.

    They are when `container` is reported as created, or, with no container, when the runtime sends its next event
    (it applies a reply before it lets go of the lock under which all events are sent).
    """

    updates: Updates
    container: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that people may ask about later; `kind` is what is counted."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to an event. `refusal`: the event fails with that text, and nothing else has happened."""

    adjust: CPUSet | None = None
    updates: Updates = ()
    refusal: str = ""
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """Everything that decisions depend on. Mappings keep the order in which containers came; none is changed."""

    online: CPUSet = EMPTY
    reserved: CPUSet = EMPTY
    claims: Mapping[str, ClaimRecord] = field(default_factory=dict)  # prepared ones, by UID
    claims_known: bool = False  # false until a checkpoint has been read: absent is never read as empty
    owners: Mapping[str, Owner] = field(default_factory=dict)  # by claim UID
    ended: frozenset[str] = frozenset()  # UIDs of owners' pods whose sandbox was stopped, removed, or is not listed
    containers: Mapping[str, Container] = field(default_factory=dict)  # by id
    book: Mapping[str, CPUSet] = field(default_factory=dict)  # what the runtime is known to hold, by id
    deliveries: tuple[Delivery, ...] = ()  # what was sent and is not confirmed
    # Derived from the rest, kept because hooks have no time to make them anew:
    claimed: Mapping[str, Container] = field(default_factory=dict)  # the containers that have claims
    pool: CPUSet = EMPTY  # where shared containers belong; empty: there is no such place
    behind: frozenset[str] = frozenset()  # ids of stored containers that the runtime must be told about

    def wanted(self, container: Container) -> CPUSet:
        """Where the container belongs; empty when there is no such place, and then it is left alone.

        A claim's container with none of its CPUs on line gets the shared pool: an empty cpuset would let it run
        everywhere (known fault H5).
        """
        return (container.own & self.online) or self.pool if container.claims else self.pool


def derive(state: State) -> State:
    """The state with `claimed`, `pool` and `behind` made anew from all the rest."""
    state = replace(state, claimed={c.id: c for c in state.containers.values() if c.claims})
    state = replace(state, pool=shared_pool(state))
    return replace(state, behind=frozenset(c.id for c in state.containers.values() if is_behind(state, c)))


def put(state: State, container: Container) -> State:
    """The state with this container new or changed; as `derive` would have it, but only what changes is made."""
    claimed = {**state.claimed, container.id: container} if container.claims else state.claimed
    state = replace(state, containers={**state.containers, container.id: container}, claimed=claimed)
    if not container.own.isdisjoint(state.pool):
        return derive(state)
    return _judge(state, container)


def drop(state: State, container_id: str) -> State:
    """The state without this container and all that is known of it; as `derive` would have it."""
    deliveries = tuple(delivery for delivery in state.deliveries if delivery.container != container_id)
    gone = state.containers.get(container_id)
    if gone is None:
        return replace(state, deliveries=deliveries)
    state = replace(
        state,
        deliveries=deliveries,
        containers=_without(state.containers, container_id),
        book=_without(state.book, container_id),
        claimed=_without(state.claimed, container_id) if gone.claims else state.claimed,
        behind=state.behind - {container_id},
    )
    return state if gone.own <= prepared(state) else derive(state)


def believe(state: State, held: Mapping[str, CPUSet]) -> State:
    """The state in which the runtime is known to hold these cpusets; ids of containers that are gone are left out."""
    held = {container_id: cpus for container_id, cpus in held.items() if container_id in state.containers}
    state = replace(state, book={**state.book, **held})
    late = frozenset(known for known in held if is_behind(state, state.containers[known]))
    return replace(state, behind=(state.behind - held.keys()) | late)


def prepared(state: State) -> CPUSet:
    """The CPUs of all prepared claims."""
    cpus = EMPTY
    for claim in state.claims.values():
        cpus |= claim.cpus
    return cpus


def shared_pool(state: State) -> CPUSet:
    """CPUs for shared containers: on line, not reserved, in no prepared claim, of no living claim container.

    With none left, the reserved CPUs (feature E3); with none there either, empty.
    """
    taken = prepared(state)
    for container in state.claimed.values():
        taken |= container.own
    free = state.online - taken
    return (free - state.reserved) or (free & state.reserved)


def is_behind(state: State, container: Container) -> bool:
    """Whether the runtime is not known to hold the container's wanted cpuset, and can be told."""
    wanted = state.wanted(container)
    return container.stored and bool(wanted) and state.book.get(container.id) != wanted


def _judge(state: State, container: Container) -> State:
    if is_behind(state, container):
        return replace(state, behind=state.behind | {container.id})
    return replace(state, behind=state.behind - {container.id})


def _without(mapping: Mapping[str, _Value], key: str) -> dict[str, _Value]:
    rest = dict(mapping)
    rest.pop(key, None)
    return rest

"""What the policy knows, as values: containers, owners, what the runtime was sent and what it is known to hold.

A State is never changed; every event makes a new one, by the functions below alone, which keep what is derived in it
as `derive` would make it. Thousands of shared containers differ in nothing but their ids, so they are kept by what the
runtime holds for them: a change of the pool then costs a hook a few steps, not one for each container.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from nri_cpu.checkpoint.model import ClaimRecord, Owner
from nri_cpu.cpuset import EMPTY, CPUSet

_Value = TypeVar("_Value")

# Container ids by the cpuset that they are to get, in the order in which the runtime is to apply them. An id stands in
# it once, and no cpuset is empty (nri-protocol: two updates for one container conflict; "" means "leave as is").
Updates = tuple[tuple[CPUSet, tuple[str, ...]], ...]

# Ids of containers, in order, by the cpuset that they have in common.
Groups = Mapping[CPUSet, Mapping[str, None]]


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

    def __repr__(self) -> str:
        """Without env, which holds proof and may hold secrets."""
        return f"<facts of container {self.id}, {self.name} of pod {self.pod_namespace}/{self.pod_name}>"


class Container(NamedTuple):
    """A container that is not known to have ended."""

    id: str
    name: str
    pod_uid: str
    sandbox: str = ""
    claims: tuple[str, ...] = ()  # UIDs; none: it is a shared container
    own: CPUSet = EMPTY  # all CPUs of its claims; they stay its own while it lives, whatever becomes of the claims
    stored: bool = True  # the runtime can apply updates to it; before PostCreateContainer it drops them silently
    pod_namespace: str = ""
    pod_name: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Who may own a claim: restarts of a container keep it."""
        return (self.pod_uid, self.name)

    @property
    def title(self) -> str:
        return f"container {self.name} of pod {self.pod_namespace}/{self.pod_name}"


class Delivery(NamedTuple):
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


class Decision(NamedTuple):
    """The answer to an event. `refusal`: the event fails with that text, and nothing else has happened."""

    adjust: CPUSet | None = None
    updates: Updates = ()
    refusal: str = ""
    notes: tuple[Note, ...] = ()


class State(NamedTuple):
    """Everything that decisions depend on. Mappings keep the order in which containers came; none is changed."""

    online: CPUSet = EMPTY
    reserved: CPUSet = EMPTY
    claims: Mapping[str, ClaimRecord] = {}  # prepared ones, by UID
    claims_known: bool = False  # false until a checkpoint has been read: absent is never read as empty
    owners: Mapping[str, Owner] = {}  # by claim UID
    ended: frozenset[str] = frozenset()  # UIDs of owners' pods whose sandbox was stopped, removed, or is not listed
    containers: Mapping[str, Container] = {}  # by id
    shared: Mapping[CPUSet, Mapping[str, None]] = {}  # Groups of stored shared containers by what the runtime holds
    exclusive: Mapping[str, CPUSet] = {}  # what the runtime holds for the stored claim containers, by id
    deliveries: tuple[Delivery, ...] = ()  # what was sent and is not confirmed; one for each creation under way
    # Derived from the rest, kept because hooks have no time to make them anew:
    claimed: Mapping[str, Container] = {}  # the containers that have claims
    pool: CPUSet = EMPTY  # where shared containers belong; empty: there is no such place

    def wanted(self, container: Container) -> CPUSet:
        """Where the container belongs; empty when there is no such place, and then it is left alone.

        A claim's container with none of its CPUs on line gets the shared pool: an empty cpuset would let it run
        everywhere (known fault H5).
        """
        return (container.own & self.online) or self.pool if container.claims else self.pool


def derive(state: State) -> State:
    """The state with `claimed` and `pool` made anew from all the rest."""
    claimed = {c.id: c for c in state.containers.values() if c.claims}
    return state._replace(claimed=claimed, pool=_shared_pool(state, claimed))


def put(state: State, container: Container) -> State:
    """The state with this container new, or changed; its claims stay the same."""
    containers = {**state.containers, container.id: container}
    if not container.claims:
        return state._replace(containers=containers)
    state = state._replace(containers=containers, claimed={**state.claimed, container.id: container})
    return state if container.own.isdisjoint(state.pool) else derive(state)


def drop(state: State, container_id: str) -> State:
    """The state without this container and all that is known of it."""
    deliveries = state.deliveries
    if any(delivery.container == container_id for delivery in deliveries):
        deliveries = tuple(delivery for delivery in deliveries if delivery.container != container_id)
    gone = state.containers.get(container_id)
    if gone is None:
        return state._replace(deliveries=deliveries)
    containers = _without(state.containers, container_id)
    if not gone.claims:
        return state._replace(
            deliveries=deliveries, containers=containers, shared=_moved_out(state.shared, {container_id: None})
        )
    state = state._replace(
        deliveries=deliveries,
        containers=containers,
        claimed=_without(state.claimed, container_id),
        exclusive=_without(state.exclusive, container_id),
    )
    return state if gone.own <= prepared(state) else derive(state)


def believe(state: State, held: Mapping[CPUSet, Iterable[str]]) -> State:
    """The state in which the runtime is known to hold these cpusets for these containers; those that are gone, or that
    the runtime has not stored, are left out. An empty cpuset: it holds none."""
    shared, exclusive = state.shared, state.exclusive
    for cpus, ids in held.items():
        moved: dict[str, None] = {}
        for container_id in ids:
            container = state.containers.get(container_id)
            if container is None or not container.stored:
                continue
            if container.claims:
                exclusive = {**exclusive, container_id: cpus}
            else:
                moved[container_id] = None
        if moved:
            shared = _moved_out(shared, moved)
            shared[cpus] = {**shared.get(cpus, {}), **moved}
    return state._replace(shared=shared, exclusive=exclusive)


def due(state: State, leave_out: str = "") -> Updates:
    """Updates for every stored container for which the runtime is not known to hold what it should have: first those
    that must leave a CPU, then those that only gain some."""
    shrinking: list[tuple[CPUSet, tuple[str, ...]]] = []
    growing: list[tuple[CPUSet, tuple[str, ...]]] = []

    def sort_in(known: CPUSet, wanted: CPUSet, ids: Iterable[str]) -> None:
        if (
            wanted
            and known != wanted
            and (told := tuple(i for i in ids if i != leave_out) if leave_out else tuple(ids))
        ):
            (growing if known and known <= wanted else shrinking).append((wanted, told))

    for container_id, known in state.exclusive.items():
        sort_in(known, state.wanted(state.containers[container_id]), (container_id,))
    for known, ids in state.shared.items():
        sort_in(known, state.pool, ids)
    return (*shrinking, *growing)


def prepared(state: State) -> CPUSet:
    """The CPUs of all prepared claims."""
    cpus = EMPTY
    for claim in state.claims.values():
        cpus |= claim.cpus
    return cpus


def _shared_pool(state: State, claimed: Mapping[str, Container]) -> CPUSet:
    """CPUs for shared containers: on line, not reserved, in no prepared claim, of no living claim container.

    With none left, the reserved CPUs (feature E3); with none there either, empty.
    """
    taken = prepared(state)
    for container in claimed.values():
        taken |= container.own
    free = state.online - taken
    return (free - state.reserved) or (free & state.reserved)


def _moved_out(
    shared: Mapping[CPUSet, Mapping[str, None]], ids: Mapping[str, None]
) -> dict[CPUSet, Mapping[str, None]]:
    """The groups without these ids, and without groups that have become empty."""
    left: dict[CPUSet, Mapping[str, None]] = {}
    for cpus, group in shared.items():
        rest = dict(group)
        for container_id in ids:
            rest.pop(container_id, None)
        if rest:
            left[cpus] = rest
    return left


def _without(mapping: Mapping[str, _Value], key: str) -> dict[str, _Value]:
    rest = dict(mapping)
    rest.pop(key, None)
    return rest

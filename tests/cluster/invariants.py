"""The eight invariants that must hold on a node after whatever has happened (known faults, section 1), in one function.

1. CPUs of prepared claims are disjoint from each other and from reserved CPUs.
2. A shared container is where the shared pool is, and on no CPU of a claim.
3. A claim's container is on exactly its claims' CPUs, never on none.
4. A claim's CPUs stay what they were when it was prepared first.
5. What failed has left nothing: checkpoint, CDI specs, metadata, owners, kubelet and API say the same.
6. No container was ever sent an empty cpuset.
7. What may not have been applied is sent again: kernel and runtime agree.
8. Nothing is lost: shared + claimed + reserved CPUs are those on line, and so is what is published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from hack.node.errors import NodeError
from hack.node.machine import Machine
from hack.wait import wait_until
from nri_cpu.checkpoint.model import ClaimRecord
from nri_cpu.cpuset import CPUSet
from tests.cluster.facts import Allocated, Facts, Running
from tests.cluster.observe import observe, poke_runtime

if TYPE_CHECKING:
    from hack.kube.cluster import Cluster
    from hack.kube.node import KubeNode


def _places(nodes: tuple[CPUSet, ...]) -> Mapping[str, CPUSet]:
    """The CPUs of every device that the box can have, by the device's name; two NUMA nodes are a socket."""
    places = {f"cpudevnuma{node:03}": cpus for node, cpus in enumerate(nodes)}
    places |= {f"cpudevsocket{number:03}": nodes[2 * number] | nodes[2 * number + 1] for number in (0, 1)}
    places |= {"cpudevmachine": (everything := CPUSet.union(nodes))}
    return places | {f"cpudev{cpu:03}": CPUSet([cpu]) for cpu in everything}


_PLACES = _places(Machine().node_cpus())

# Everything that must settle has settled by then, on a busy machine. Seconds.
_LIMIT = 60.0


@dataclass(frozen=True, slots=True)
class Known:
    """What a test has done that excuses something, each by UIDs of claims.

    `kept_on_reserved`: prepared before their CPUs became reserved (fault R4); `by_hand`: prepared without the kubelet;
    `outlived`: unprepared while their container lives (fault K2).
    """

    kept_on_reserved: Collection[str] = ()
    by_hand: Collection[str] = ()
    outlived: Collection[str] = ()


_NOTHING = Known()


def check(cluster: Cluster, before: Collection[Facts] = (), known: Known = _NOTHING) -> tuple[Facts, ...]:
    """Wait until all invariants hold on all nodes, and return what is true then, node by node.

    That nobody is on the CPUs of a living claim's container must hold at once, before anything is waited for and before
    anybody calls the runtime. The rest may take its time: the API is told later, and a shared container gets freed CPUs
    with the runtime's next call to nri-cpu, which is made here.
    `before`: what an earlier call returned, for invariant 4. Raises AssertionError with what is wrong, after a minute.
    """
    last: list[str] = []
    earlier = tuple(before) or (None,) * len(cluster.nodes)
    for node in cluster.nodes:
        _check_at_once(cluster, node)

    def settled() -> tuple[Facts, ...] | None:
        facts = []
        last.clear()
        for node, then in zip(cluster.nodes, earlier, strict=True):
            poke_runtime(node)
            if found := _observed(cluster, node, last):
                facts.append(found)
                last.extend(f"{node.name}: {problem}" for problem in problems(found, then, known))
        return None if last else tuple(facts)

    try:
        return wait_until("the invariants", settled, _LIMIT)
    except TimeoutError:
        raise AssertionError("\n".join(last)) from None


def _check_at_once(cluster: Cluster, node: KubeNode) -> None:
    problems: list[str] = []
    facts = wait_until("an observation", lambda: _observed(cluster, node, problems), _LIMIT)
    if said := list(overlaps(facts)):
        raise AssertionError("\n".join(f"{node.name}: at once: {problem}" for problem in said))


def _observed(cluster: Cluster, node: KubeNode, problems: list[str]) -> Facts | None:
    """None, with the reason among the problems, when something went away while it was looked at."""
    try:
        return observe(cluster, node)
    except NodeError as error:
        problems.append(f"{node.name}: {error}")
        return None


def overlaps(facts: Facts) -> Iterator[str]:
    """Containers that are on CPUs of another one's claim, or of another claim's container."""
    for container in facts.exclusive:
        own = CPUSet.union(container.given.values()) & facts.online
        for other in facts.containers:
            where = CPUSet.union([other.cpus, *other.allowed])
            if other.id != container.id and (both := where & own):
                yield f"{other.title} may run on CPUs {both}, which are those of {container.title}"


def problems(facts: Facts, before: Facts | None = None, known: Known = _NOTHING) -> list[str]:
    """What is not as it must be, each with its invariant's number in front."""
    facts = replace(facts, kubelet=facts.kubelet.union(known.by_hand))
    found = (
        _disjoint(facts, known.kept_on_reserved),
        _shared(facts),
        _exclusive(facts, known.outlived),
        _unchanged(facts, before),
        _nothing_left(facts, known.outlived),
        _never_empty(facts),
        _applied(facts),
        _nothing_lost(facts),
    )
    return [f"invariant {number}: {text}" for number, texts in enumerate(found, 1) for text in texts]


def _disjoint(facts: Facts, kept_on_reserved: Collection[str]) -> Iterator[str]:
    for one, other in combinations(facts.records.values(), 2):
        if both := one.cpus & other.cpus:
            yield f"claims {one.uid} and {other.uid} both have CPUs {both}"
    for record in facts.records.values():
        both = record.cpus & facts.checkpoint.reserved
        if both and record.uid not in kept_on_reserved:
            yield f"claim {record.uid} has reserved CPUs {both}"


def _shared(facts: Facts) -> Iterator[str]:
    for container in facts.shared:
        if container.cpus != facts.pool:
            yield f"{container.title}, shared, is on CPUs {container.cpus}, the pool is {facts.pool}"
        yield from _strays(container, facts.pool)
    if not facts.shared:
        yield "there is no shared container, so that nothing shows where the pool is"
    for title in facts.unseen:
        yield f"{title} runs, and the kernel shows no cgroup of it with a process: nobody knows where it is"


def _exclusive(facts: Facts, outlived: Collection[str]) -> Iterator[str]:
    for container in facts.containers:
        if container.wants is not None and container.wants != set(container.proofs):
            yield f"{container.title} is to have claims {set(container.wants)}, and has {set(container.proofs)}"
    for container in facts.exclusive:
        cpus = CPUSet.union(
            container.given[uid] if uid in outlived else facts.records[uid].cpus
            for uid in container.proofs
            if uid in outlived or uid in facts.records
        )
        belongs = (cpus & facts.online) or facts.pool  # an empty cpuset would be everywhere (fault H5)
        if container.cpus != belongs:
            yield f"{container.title} is on CPUs {container.cpus}, its claims have {cpus}"
        yield from _strays(container, belongs)


def _strays(container: Running, belongs: CPUSet) -> Iterator[str]:
    for cpus in container.allowed - {belongs}:
        yield f"{container.title} has a process that may run on CPUs {cpus}, it belongs on {belongs}"


def _unchanged(facts: Facts, before: Facts | None) -> Iterator[str]:
    for container in facts.exclusive:
        for uid, cpus in container.given.items():
            record = facts.records.get(uid)
            if record and (cpus, container.proofs.get(uid)) != (record.cpus, record.preparation):
                yield f"{container.title} was made when claim {uid} had CPUs {cpus}, now it has {record.cpus}"
    if before:
        for uid, then in before.records.items():
            now = facts.records.get(uid)
            if now and now.preparation == then.preparation and now.cpus != then.cpus:
                yield f"claim {uid} had CPUs {then.cpus}, now it has {now.cpus}"


def _nothing_left(facts: Facts, outlived: Collection[str]) -> Iterator[str]:
    yield from (f"{name} is left over" for name in facts.leftovers)
    for uid in {*facts.records, *facts.specs}:
        if facts.records.get(uid) != facts.specs.get(uid):
            yield f"checkpoint and CDI spec of claim {uid} differ: {facts.records.get(uid)}, {facts.specs.get(uid)}"
    for what, uids in (("metadata files", facts.metadata), ("mounts of metadata", facts.mounts)):
        if uids != facts.records.keys():
            yield f"claims with {what} are {set(uids)}, prepared are {set(facts.records)}"
    yield from (f"claim {uid} has an owner, and is not prepared" for uid in facts.owners if uid not in facts.records)
    for uid in facts.handed.difference(facts.records, outlived):
        yield f"claim {uid} is not prepared, and the kubelet has got its devices"
    for uid, record in facts.records.items():
        if uid not in facts.kubelet:
            yield f"claim {uid} is prepared, and the kubelet knows nothing of it: nobody will unprepare it"
        yield from _not_as_allocated(record, facts.allocated.get(uid))
    for container in facts.exclusive:
        for uid in container.proofs:
            if uid in outlived:
                continue
            if uid not in facts.records:
                yield f"{container.title} runs with claim {uid}, which is not prepared"
            elif (container.pod_uid, container.name) != _owner(facts, uid):
                yield f"claim {uid} belongs to {_owner(facts, uid)} by the owners' file, {container.title} has it"


def _not_as_allocated(record: ClaimRecord, allocated: Allocated | None) -> Iterator[str]:
    prepared = tuple((device.device, len(device.cpus)) for device in record.devices)
    if allocated and allocated.results != prepared:
        yield f"claim {record.uid} is prepared with {prepared}, allocated is {allocated.results}"
    if record.cpus != CPUSet.union(device.cpus for device in record.devices):
        yield f"claim {record.uid} has CPUs {record.cpus}, its devices are {record.devices}"
    for device in record.devices:
        if not device.cpus <= (place := _PLACES[device.device]):
            yield f"claim {record.uid} has CPUs {device.cpus} of {device.device}, which is CPUs {place}"


def _owner(facts: Facts, uid: str) -> tuple[str, str] | None:
    owner = facts.owners.get(uid)
    if owner is None or owner.preparation != facts.records[uid].preparation:
        return None
    return owner.pod_uid, owner.container


def _never_empty(facts: Facts) -> Iterator[str]:
    for container in facts.containers:
        for where, cpus in (("its cgroup", container.written), ("the runtime", container.book)):
            if not cpus:
                yield f"{container.title} has an empty cpuset in {where}"


def _applied(facts: Facts) -> Iterator[str]:
    for container in facts.containers:
        if container.book != container.written:
            yield f"{container.title} has CPUs {container.written}, the runtime has noted {container.book}"


def _nothing_lost(facts: Facts) -> Iterator[str]:
    reserved, claimed = facts.checkpoint.reserved, facts.claimed
    for container in facts.shared[:1]:
        fallback = container.cpus <= reserved
        parts = [claimed & facts.online, reserved & facts.online - claimed]
        if not fallback:
            parts.append(container.cpus)
        if sum(map(len, parts)) != len(facts.online):
            yield f"CPUs {facts.online} are on line: claimed, reserved and shared are {'; '.join(map(str, parts))}"
    elsewhere = CPUSet.union(
        device.cpus
        for record in facts.records.values()
        for device in record.devices
        if device.device not in facts.offered
    )
    usable = facts.online - reserved
    published = sum(facts.offered.values())
    if published != len(usable - elsewhere):
        yield f"{published} CPUs are published, {usable} can be had, of which {elsewhere} are claimed otherwise"
    yield from _overdrawn(facts, usable)


def _overdrawn(facts: Facts, usable: CPUSet) -> Iterator[str]:
    """Devices of which more is allocated than published, beyond what went off line or was reserved since."""
    room = Counter(facts.offered)
    for record in facts.records.values():
        for device in record.devices:
            if device.device in facts.offered:
                room[device.device] += len(device.cpus - usable)
    for allocated in facts.allocated.values():
        for name, count in allocated.results:
            room[name] -= count
    for name in facts.offered:
        if room[name] < 0:
            yield f"{name} has {facts.offered[name]} CPUs and {-room[name]} more than that are allocated"

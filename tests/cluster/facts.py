"""What is true on one node of a cluster at one moment, as values: who reads it is observe.py, who judges invariants.py.

A fact has one source, and what two sources say is kept apart, since whether they agree is what is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord, Owner
from nri_cpu.cpuset import CPUSet


@dataclass(frozen=True, slots=True)
class Running:
    """A running container, sandboxes excepted.

    From the kernel: `written`, its cgroup's cpuset.cpus, empty when nobody has set any; `cpus`, what is in effect
    there; `allowed`, where its processes may run; `given` and `proofs`, the CPUs and preparations in the environment
    that its first process was started with, by claim UID. From the runtime: `book`, the cpuset it has noted. From the
    API: `wants`, the UIDs of the claims that its pod gives to it, None when there is no such pod any more.
    """

    id: str
    pod_uid: str
    name: str
    title: str
    written: CPUSet
    cpus: CPUSet
    allowed: frozenset[CPUSet]
    book: CPUSet
    given: Mapping[str, CPUSet] = field(default_factory=dict)
    proofs: Mapping[str, str] = field(default_factory=dict, repr=False)
    wants: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Allocated:
    """A claim of the API with an allocation on this node: how many CPUs of which device, result by result."""

    title: str
    results: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """One node. `online`: by the kernel; `specs`: the claims of our CDI specs; `leftovers`: files of ours that nobody
    reads; `kubelet`: UIDs of the claims that the kubelet has to unprepare, `handed`: of those, the ones that it has got
    devices of; `offered`: CPUs of each published device; `metadata` and `mounts`: UIDs of the claims with metadata
    files, and of those with CDI specs that mount them; `unseen`: containers that run by the runtime or by the API, and
    of which the kernel shows nothing."""

    online: CPUSet
    checkpoint: Checkpoint
    owners: Mapping[str, Owner]
    specs: Mapping[str, ClaimRecord]
    leftovers: tuple[str, ...]
    containers: tuple[Running, ...]
    allocated: Mapping[str, Allocated]
    kubelet: frozenset[str]
    handed: frozenset[str]
    offered: Mapping[str, int]
    metadata: frozenset[str]
    mounts: frozenset[str]
    unseen: tuple[str, ...]

    @property
    def records(self) -> Mapping[str, ClaimRecord]:
        return self.checkpoint.claims

    @property
    def exclusive(self) -> tuple[Running, ...]:
        """The containers that have been given claims."""
        return tuple(container for container in self.containers if container.proofs)

    @property
    def shared(self) -> tuple[Running, ...]:
        return tuple(container for container in self.containers if not container.proofs)

    @property
    def claimed(self) -> CPUSet:
        """CPUs of prepared claims, and of those whose container has outlived them."""
        living = CPUSet.union(cpus for container in self.exclusive for cpus in container.given.values())
        return self.checkpoint.prepared | living

    @property
    def pool(self) -> CPUSet:
        """Where shared containers belong: on line, not reserved, in no prepared claim, of no living claim container;
        with none left the reserved CPUs (fault A23)."""
        free = self.online - self.claimed
        return (free - self.checkpoint.reserved) or (free & self.checkpoint.reserved)

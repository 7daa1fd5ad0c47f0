"""One request to both allocators, and in what their answers differ; docs/choosing-cpus.md has an example of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from dra.allocation import AllocationError, Strategy, allocate
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology import Topology
from tests.kubelet_allocator.driver import LIMIT, Answer, Kubelet, NoAnswer
from tests.kubelet_allocator.quality import Level, halves, quality, shares
from tests.kubelet_allocator.ways import Way


class Difference(StrEnum):
    """What is wrong with the kubelet's answer, where ours is another one."""

    ENDLESS = "never answers"
    NOT_FREE = "takes CPUs that are not free"
    HALF_CORES = "takes half cores in spite of full-pcpus-only"
    REFUSES = "refuses what there is"
    UNEVEN = "does not distribute what can be distributed"
    SOCKETS = "takes more sockets than needed"
    NODES = "takes more NUMA nodes than needed"
    L3 = "takes more L3 groups than needed"
    SIBLINGS = "takes two threads of a core although there are more cores"
    TYPES = "mixes core types"
    BROKEN = "breaks more cores than needed"
    IMBALANCE = "leaves the NUMA nodes less balanced"
    TIE = "nothing: as good"


_OF_LEVEL: Mapping[Level, Difference] = {
    Level.UNEVEN: Difference.UNEVEN,
    Level.SOCKETS: Difference.SOCKETS,
    Level.NODES: Difference.NODES,
    Level.L3: Difference.L3,
    Level.CORES_SHORT: Difference.SIBLINGS,
    Level.TYPES: Difference.TYPES,
    Level.BROKEN: Difference.BROKEN,
    Level.IMBALANCE: Difference.IMBALANCE,
}


class OursIsWorseError(AssertionError):
    """The kubelet's answer is better than ours; the message has the request."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both answers, None where there is none; `difference` is None where they are the same."""

    ours: CPUSet | None
    kubelets: CPUSet | None
    difference: Difference | None


def held_against(
    kubelet: Kubelet,
    topology: Topology,
    free: CPUSet,
    count: int,
    way: Way,
    reserved: CPUSet = EMPTY,
    *,
    limit: float = LIMIT,
) -> Outcome:
    """Ask both; an answer of the kubelet's that takes more than `limit` seconds is none. Raises OursIsWorseError."""
    try:
        ours = allocate(topology, free, count, way.options)
    except AllocationError:
        ours = None
    try:
        answer = kubelet.allocate(topology, free, count, replace(way.policy, reserved=reserved), limit=limit)
    except NoAnswer:
        return Outcome(ours, None, Difference.ENDLESS)
    return Outcome(ours, answer.cpus, _difference(topology, free, count, way, ours, answer))


def _difference(
    topology: Topology, free: CPUSet, count: int, way: Way, ours: CPUSet | None, answer: Answer
) -> Difference | None:
    kubelets = answer.cpus
    if kubelets is None:
        return Difference.REFUSES if ours else None
    if not kubelets <= free:
        return Difference.NOT_FREE
    if way.options.full_physical_cores and halves(topology, kubelets):
        return Difference.HALF_CORES
    asked = f"{way.name}: {count} CPUs of {free} on {topology}: the kubelet's allocator takes {kubelets}"
    if len(kubelets) != count:
        raise OursIsWorseError(f"{asked}; that is another number, and no case that is known")
    if ours is None:
        raise OursIsWorseError(f"{asked}, ours refuses")
    if ours == kubelets:
        return None
    level = _first_level(topology, free, way, ours, kubelets)
    if level is None:
        return Difference.TIE
    if level not in _OF_LEVEL:
        raise OursIsWorseError(f"{asked}, ours {ours}, which is worse by {level.removeprefix('-')}")
    return _OF_LEVEL[Level(level)]


def _first_level(topology: Topology, free: CPUSet, way: Way, ours: CPUSet, kubelets: CPUSet) -> str | None:
    """The first level on which they differ, with a minus before it where the kubelet's is better."""
    pairs = [(quality(topology, free, ours, way.options), quality(topology, free, kubelets, way.options))]
    our_shares, their_shares = shares(topology, ours), shares(topology, kubelets)
    if way.options.strategy is Strategy.DISTRIBUTED and _sizes(our_shares) == _sizes(their_shares):
        # Each node gives as many CPUs in both, so that each share is a choice of its own.
        packed = replace(way.options, strategy=Strategy.PACKED)
        pairs += [
            (
                quality(topology, free & node, our_shares[number], packed),
                quality(topology, free & node, their_shares[number], packed),
            )
            for number, node in topology.nodes.items()
            if number in our_shares
        ]
    for our_quality, their_quality in pairs:
        for level, value in our_quality.items():
            if level not in their_quality or value < their_quality[level]:
                return level
            if value > their_quality[level]:
                return f"-{level}"
    return None


def _sizes(given: Mapping[int, CPUSet]) -> Mapping[int, int]:
    return {number: len(cpus) for number, cpus in given.items()}

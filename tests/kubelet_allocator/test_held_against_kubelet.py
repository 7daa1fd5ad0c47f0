"""Ours against the kubelet's allocator, on random machines: never worse, and the same where the kubelet's is best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from dra.allocation import AllocationError, AllocationOptions, Strategy
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Cpu, Topology
from tests.kubelet_allocator import compare
from tests.kubelet_allocator.compare import Difference, OursIsWorseError, held_against
from tests.kubelet_allocator.driver import Kubelet
from tests.kubelet_allocator.quality import Level, quality
from tests.kubelet_allocator.survey import askable, outcomes
from tests.kubelet_allocator.ways import (
    DISTRIBUTED,
    FULL_CORES,
    FULL_CORES_NO_L3,
    PACKED,
    PACKED_NO_L3,
    SPREAD,
    WAYS,
    Way,
)
from tests.unit.dra.allocation.random_machines import Request, random_free
from tests.unit.topology.machines import box, hybrid, machine, t1, t1b, t2

REQUESTS = 1000  # for each way to choose; less than a second

D = Difference
_PACKED = {D.NOT_FREE, D.SOCKETS, D.NODES, D.TYPES, D.BROKEN, D.TIE}
_FULL_CORES = (_PACKED - {D.BROKEN}) | {D.HALF_CORES, D.REFUSES}
# What so many requests come upon in each way, and nothing else.
FOUND = {
    "packed": _PACKED | {D.L3},
    "packed, no L3": _PACKED,
    "full cores": _FULL_CORES | {D.L3},
    "full cores, no L3": _FULL_CORES,
    "spread": _PACKED | {D.SIBLINGS},
    "distributed": _PACKED | {D.UNEVEN},
    "distributed by socket": _PACKED | {D.UNEVEN},
    "distributed, full cores": {D.HALF_CORES, D.SOCKETS, D.NODES, D.TIE},
}


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    with Kubelet() as started:
        yield started


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_ours_is_never_worse_and_what_differs_has_a_name(kubelet: Kubelet, way: Way) -> None:
    counts: Counter[Difference | None] = Counter()
    for _, outcome in outcomes(kubelet, way, range(REQUESTS)):
        counts[outcome.difference] += 1
    assert counts[None] > counts.total() / 3
    rare = {D.UNEVEN, D.IMBALANCE, D.REFUSES}
    found = {difference for difference in counts if difference}
    assert FOUND[way.name] - rare <= found <= FOUND[way.name] | rare, counts


@pytest.mark.parametrize("way", [PACKED, PACKED_NO_L3, FULL_CORES, FULL_CORES_NO_L3], ids=lambda way: way.name)
def test_packed_takes_the_same_cpus_where_the_kubelets_are_the_best(kubelet: Kubelet, way: Way) -> None:
    compared = same = 0
    for request, outcome in outcomes(kubelet, way, range(REQUESTS, 2 * REQUESTS)):
        if orders_alike(request, way):
            assert outcome.difference is not Difference.TIE, f"{request}: {outcome}"
            compared += 1
            same += outcome.difference is None
    assert compared > REQUESTS / 8
    assert same > compared / 2


MACHINES = {
    "no SMT": machine(sockets=2, cores=8),
    "SMT2": machine(sockets=2, cores=6, threads=2),
    "SMT4": machine(sockets=2, cores=3, threads=4),
    "siblings side by side": Topology.of(Cpu(n, n // 12, 0, -1, n // 2, n // 12, n // 12) for n in range(24)),
    "T1": t1(),
    "T1b": t1b(),
    "T2": t2(),
    "sub-NUMA": machine(sockets=2, nodes=4, cores=8, threads=2),
    "several L3": machine(sockets=2, cores=8, threads=2, l3_per_node=4),
    "two sockets a node": Topology.of(Cpu(n, n % 16 // 4, 0, -1, n % 4, n % 16 // 8, n % 16 // 4) for n in range(32)),
    "an offline sibling": machine(sockets=2, cores=4, threads=2, offline=[15]),
    "offline siblings": machine(sockets=2, cores=6, threads=2, offline=[0, 5, 17, 18]),
    "hybrid": hybrid(4, 8),
}


@pytest.mark.parametrize("topology", MACHINES.values(), ids=MACHINES)
def test_ours_is_never_worse_on_machines_that_there_are(kubelet: Kubelet, topology: Topology) -> None:
    rng = Random(len(topology.online))
    for _ in range(REQUESTS // 40):
        free = random_free(rng, topology)
        request = Request(topology, free, rng.randint(1, len(free)))
        for way in WAYS:
            if askable(topology, way):
                outcome = held_against(kubelet, topology, free, request.count, way)
                if way.options.strategy is Strategy.PACKED and orders_alike(request, way):
                    assert outcome.difference is not Difference.TIE, f"{request}: {outcome}"


def orders_alike(request: Request, way: Way) -> bool:
    """Whether both take equals in the same order on this machine.

    Ours takes them by their lowest CPU and P-cores before E-cores. The kubelet takes sockets, nodes and L3 groups by
    their number, knows no types, and calls a socket an L3 group where there is none.
    """
    topology = request.topology
    if len({cpu.core_type for cpu in topology.cpus.values()}) > 1:
        return False
    if not way.options.align_l3:
        return True
    l3_groups: dict[int, CPUSet] = {}
    for cpu in topology.cpus.values():
        if cpu.l3 is None:
            return False
        l3_groups[cpu.l3] = l3_groups.get(cpu.l3, CPUSet()) | CPUSet([cpu.id])
    return all(ascending(groups) for groups in (dict(topology.sockets), dict(topology.nodes), l3_groups))


def ascending(groups: dict[int, CPUSet]) -> bool:
    firsts = [groups[number].first() for number in sorted(groups)]
    return firsts == sorted(firsts)


# The comparison itself


@pytest.mark.parametrize(
    ("topology", "free", "cpus", "options", "expected"),
    [
        (t1(), "0-15", "0-1,8", AllocationOptions(), [1, 1, 1, 0, 1]),
        (t1(), "0-8", "1", AllocationOptions(), [1, 1, 1, 0, 0]),
        (t1b(), "3,5,7,11-15", "3,5,11-13", AllocationOptions(), [1, 1, 2, 0, 0]),
        (t1b(), "3,5,7,11-15", "3,5,11-13", AllocationOptions(align_l3=False), [1, 1, 0, 0]),
        (box(), "0-15", "0,2,4,6", AllocationOptions(), [2, 4, 4, 0, 4]),
        (hybrid(), "0-7", "3-4", AllocationOptions(), [1, 1, 1, 1, 1]),
        (hybrid(), "3-7", "3-4", AllocationOptions(), [1, 1, 1, 1, 0]),
        (t1(), "0-15", "0,8,1", AllocationOptions(Strategy.SPREAD), [1, 1, 1, 0, 1]),
        (t2(), "0-15", "0-1,8-9", AllocationOptions(Strategy.DISTRIBUTED), [0, 1, 1, 1, 0, 0]),
        (t2(), "0-15", "0,4,8,12", AllocationOptions(Strategy.DISTRIBUTED), [0, 2, 2, 72]),
        (t2(), "0-15", "0-2,4", AllocationOptions(Strategy.DISTRIBUTED), [1, 2, 2, 2, 0, 4]),
        (
            t2(),
            "0-15",
            "0,8,4,12,5,13",
            AllocationOptions(Strategy.DISTRIBUTED, full_physical_cores=True),
            [0, 2, 2, 52],
        ),
    ],
)
def test_quality_counts_what_the_spec_says(
    topology: Topology, free: str, cpus: str, options: AllocationOptions, expected: list[int]
) -> None:
    assert list(quality(topology, CPUSet.parse(free), CPUSet.parse(cpus), options).values()) == expected


@pytest.mark.parametrize("way", [PACKED, SPREAD, DISTRIBUTED], ids=lambda way: way.name)
def test_an_answer_of_ours_that_is_worse_is_an_error_that_says_in_what(
    kubelet: Kubelet, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.kubelet_allocator.compare.allocate", lambda *_: CPUSet([0, 4]))
    with pytest.raises(OursIsWorseError, match=r"ours 0,4, which is worse by (sockets|NUMA nodes)"):
        held_against(kubelet, t2(), t2().online, 2, way)


def test_a_refusal_of_ours_where_the_kubelet_does_well_is_an_error(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> CPUSet:
        raise AllocationError("no")

    monkeypatch.setattr("tests.kubelet_allocator.compare.allocate", refuse)
    with pytest.raises(OursIsWorseError, match="ours refuses"):
        held_against(kubelet, t1(), t1().online, 2, PACKED)


def test_every_level_that_can_differ_has_a_difference() -> None:
    assert set(compare._OF_LEVEL) == set(Level)

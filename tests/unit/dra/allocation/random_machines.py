"""Random machines and requests: everything that kernels show, and some things that only broken firmware does.

`random_request(Random(seed))` is the same every time; `requests()` is the same maker under hypothesis, which looks for
the smallest machine that breaks a promise. Sockets, NUMA nodes and L3 groups contain each other in any order, but never
cross; cores lie within one of each and have one type.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Cpu, Topology


@dataclass(frozen=True, slots=True)
class Request:
    """`count` CPUs (1 or more, never more than are free) out of `free` (never empty) on this machine."""

    topology: Topology
    free: CPUSet
    count: int


@dataclass(frozen=True, slots=True)
class _Core:
    """A core without its CPUs' numbers: (socket, die, cluster, core id), where it lies, threads and type."""

    key: tuple[int, int, int, int]
    node: int
    l3: int | None
    threads: int
    core_type: CoreType


def random_topology(rng: Random, cpus: int = 48, smt: tuple[int, ...] = (1, 2, 2, 2, 4, 8)) -> Topology:
    """A machine of at most `cpus` online CPUs: 1-4 sockets, SMT of one of `smt` or hybrid, CPUs off line or not."""
    cores = _cores(rng, cpus, smt)
    threads = [(core, thread) for core in cores for thread in range(core.threads)]
    numbering = rng.choice(("siblings adjacent", "siblings far", "no order"))
    if numbering == "siblings far":
        threads.sort(key=lambda each: each[1])
    elif numbering == "no order":
        rng.shuffle(threads)
    highest = len(threads) * rng.choice((1, 1, 1, 3))
    numbers = sorted(rng.sample(range(highest), len(threads)))
    made = [
        Cpu(number, *core.key, numa_node=core.node, l3=core.l3, core_type=core.core_type)
        for number, (core, _) in zip(numbers, threads, strict=True)
    ]
    online = made
    if rng.random() < 0.3 and len(made) > 1:
        online = rng.sample(made, rng.randint(1, len(made)))
    if len(online) > cpus:
        online = rng.sample(online, cpus)
    return Topology.of(online, CPUSet(numbers))


def _cores(rng: Random, cpus: int, smt: tuple[int, ...]) -> list[_Core]:
    sockets = rng.randint(1, 4)
    parts = rng.choice((1, 1, 1, 2, 4))  # NUMA nodes a socket
    together = rng.choice((1, 1, 2, 4)) if parts == 1 else 1  # sockets a NUMA node
    l3_parts = rng.choice((1, 1, 2, 3))  # L3 a NUMA node
    l3_kind = rng.choice(("node", "node", "node", "none", "some", "socket", "machine"))
    hybrid = rng.random() < 0.2
    width = rng.choice(smt)
    ids = rng.choice((1, 1, 4))
    repeating = rng.choice((False, False, True))  # core ids start again in each cluster, as on ARM
    found = []
    most = max(1, cpus // (width * sockets))
    number = rng.randint(1, most)
    for socket in range(sockets):
        if rng.random() < 0.1:
            number = rng.randint(1, most)
        for core in range(number):
            # Each part of the finer division lies in one part of the coarser one.
            l3_part = core * parts * l3_parts // number
            node = (socket * parts + l3_part // l3_parts) // together
            l3: int | None = {"socket": socket, "machine": 0}.get(l3_kind, socket * parts * l3_parts + l3_part)
            if l3_kind == "none" or (l3_kind == "some" and node % 2):
                l3 = None
            kind, threads = CoreType.STANDARD, width
            if hybrid:
                performant = core % 4 < 2
                kind, threads = (CoreType.P_CORE, 2) if performant else (CoreType.E_CORE, 1)
            key = (socket, 0, core // 2, core % 2) if repeating else (socket, 0, -1, core * ids)
            found.append(_Core(key, node, l3, threads, kind))
    return found


def random_free(rng: Random, topology: Topology) -> CPUSet:
    """What may be free: everything, single threads, whole cores, or whole objects and something of the rest."""
    free = topology.online
    match rng.choice(("all", "threads", "threads", "cores", "mixed", "objects")):
        case "threads":
            free = _some(rng, free, rng.choice((0.1, 0.5, 0.9)))
        case "cores":
            free = CPUSet.union(core for core in topology.cores if rng.random() < 0.6)
        case "mixed":
            share = rng.choice((0.3, 0.7))
            free = CPUSet.union(core if rng.random() < share else _some(rng, core, 0.5) for core in topology.cores)
        case "objects":
            objects = rng.choice((topology.l3_groups, tuple(topology.nodes.values()), tuple(topology.sockets.values())))
            free = CPUSet.union(each if rng.random() < 0.5 else _some(rng, each, 0.6) for each in objects)
        case _:
            pass
    return free or CPUSet([rng.choice(list(topology.online))])


def _some(rng: Random, cpus: CPUSet, share: float) -> CPUSet:
    return CPUSet(cpu for cpu in cpus if rng.random() < share)


def random_request(
    rng: Random, cpus: int = 48, smt: tuple[int, ...] = (1, 2, 2, 2, 4, 8), most_free: int | None = None
) -> Request:
    """A request on a random machine; with `most_free`, at most that many CPUs are free."""
    topology = random_topology(rng, cpus, smt)
    free = random_free(rng, topology)
    if most_free is not None and len(free) > most_free:
        free = CPUSet(rng.sample(list(free), most_free))
    count = rng.randint(1, rng.choice((len(free), min(len(free), 4))))
    return Request(topology, free, count)


@st.composite
def requests(draw: st.DrawFn, cpus: int = 32, most_free: int | None = None) -> Request:
    """The same for hypothesis."""
    return random_request(draw(st.randoms(use_true_random=False)), cpus, most_free=most_free)

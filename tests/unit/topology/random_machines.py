"""Random machines for property tests: everything that a Topology can say, as values."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from hypothesis import strategies as st

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Cpu, Topology

_IDS = st.integers(0, 9000)  # firmware's numbers have gaps, and repeat where nothing forbids it
_WIDTHS = st.sampled_from([1, 1, 2, 2, 4, 8])


@st.composite
def topologies(draw: st.DrawFn, highest: int = 8191) -> Topology:
    """1-4 sockets of 1-2 dies of 1-2 clusters of 1-3 cores of 1-8 threads, with CPU ids up to `highest` in any order,
    cores of any node and any L3 or none, of any type; some CPUs off line, some nodes with memory only or CPUs only."""
    cores = [core for core in _cores(draw) for _ in range(draw(_WIDTHS))]
    ids = draw(st.lists(st.integers(0, highest), min_size=len(cores), max_size=len(cores), unique=True))
    cpus = [Cpu(cpu, *core) for cpu, core in zip(ids, cores, strict=True)]
    offline = draw(st.sets(st.sampled_from(ids), max_size=len(ids) - 1))
    told = {cpu.id: cpu.numa_node for cpu in cpus if cpu.id in offline and draw(st.booleans())}
    online = [cpu for cpu in cpus if cpu.id not in offline]
    present = CPUSet(ids)
    some = st.sets(st.sampled_from(ids)).map(CPUSet)
    return Topology.of(
        online,
        present,
        told,
        possible=present | CPUSet(draw(st.sets(st.integers(0, highest), max_size=5))),
        isolated=draw(some),
        memory_nodes=draw(st.sets(st.integers(200, 300), max_size=3)),
        memoryless_nodes=draw(st.sets(st.sampled_from(sorted({cpu.numa_node for cpu in cpus})))),
        pcie_roots=draw(st.dictionaries(st.from_regex(r"\Apci[0-9a-f]{4,8}:[0-9a-f]{2}\Z"), some, max_size=3)),
    )


def _cores(draw: st.DrawFn) -> Iterator[tuple[int, int, int, int, int, int | None, CoreType]]:
    """The facts of each core, in the order of Cpu's fields after its id."""
    nodes = st.sampled_from(draw(st.lists(st.integers(0, 199), min_size=1, max_size=4, unique=True)))
    caches = st.sampled_from([None, *draw(st.lists(_IDS, max_size=4, unique=True))])
    kinds = st.sampled_from(list(CoreType) if draw(st.booleans()) else [CoreType.STANDARD])
    level = st.lists(_IDS, min_size=1, max_size=2, unique=True)
    for socket in draw(st.lists(_IDS, min_size=1, max_size=4, unique=True)):
        for die in draw(st.just([-1]) | level):
            for cluster in draw(st.just([-1]) | level):
                for core in draw(st.lists(_IDS, min_size=1, max_size=3, unique=True)):
                    yield socket, die, cluster, core, draw(nodes), draw(caches), draw(kinds)


def large(cpus: int) -> Topology:
    """A machine of so many CPUs, every second number left out, CPU 0 off line: 4 threads a core, 8 cores a node."""
    numbers = zip(range(0, 2 * cpus, 2), count())
    made = [Cpu(number, n // 512, -1, -1, n // 4, n // 32, n // 16) for number, n in numbers]
    return Topology.of(made[1:], CPUSet([0]), {0: 0}, memory_nodes=[1000])

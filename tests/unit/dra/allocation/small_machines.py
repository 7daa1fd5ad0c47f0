"""Machines of few CPUs in every arrangement, small enough to try all choices; also those that nobody builds."""

from __future__ import annotations

from hypothesis import strategies as st

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Cpu, Topology

# (socket, node) of the core with this number: one place, sockets of one node each, sockets of two nodes, nodes of two
# sockets, sockets and nodes that cut through each other.
_PLACES = (
    lambda _: (0, 0),
    lambda core: (core % 2, core % 2),
    lambda core: (core % 3, core % 3),
    lambda core: (core % 4 // 2, core % 4),
    lambda core: (core % 4, core % 4 // 2),
    lambda core: (core % 2, core % 3),
)


@st.composite
def small_machines(draw: st.DrawFn, most: int = 10) -> Topology:
    """2 to `most` CPUs: cores of 1 to 4 threads, of one or more types, numbered by thread, by core or anyhow."""
    widest = draw(st.sampled_from([1, 2, 2, 2, 3, 4]))
    widths = draw(st.lists(st.integers(1, widest) if draw(st.booleans()) else st.just(widest), min_size=1, max_size=8))
    while sum(widths) > most:
        widths.pop()
    place = draw(st.sampled_from(_PLACES))
    types = draw(st.sampled_from([[CoreType.STANDARD], [CoreType.P_CORE, CoreType.E_CORE], list(CoreType)]))
    by_width = draw(st.booleans())
    threads = [(core, thread) for core, width in enumerate(widths) for thread in range(width)]
    if draw(st.booleans()):
        threads.sort(key=lambda each: (each[1], each[0]))
    elif draw(st.booleans()):
        threads = draw(st.permutations(threads))
    # Now and then a core that lies in two nodes, as only broken tables say.
    torn = draw(st.integers(0, 9)) == 0
    cpus = []
    for number, (core, thread) in enumerate(threads):
        socket, node = place(core + (thread if torn else 0))
        kind = types[(widths[core] if by_width else core) % len(types)]
        cpus.append(Cpu(number, place(core)[0] if torn else socket, 0, -1, core, node, core % 2, kind))
    return Topology.of(cpus)


@st.composite
def small_requests(draw: st.DrawFn, most: int = 10) -> tuple[Topology, CPUSet, int]:
    """A machine, what is free of it, and a number of CPUs that it can give."""
    topology = draw(small_machines(most))
    free = topology.online
    if len(free) > 1 and draw(st.booleans()):
        free -= CPUSet(draw(st.sets(st.sampled_from(list(free)), max_size=len(free) - 1)))
    return topology, free, draw(st.integers(1, len(free)))

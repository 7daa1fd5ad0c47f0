"""Machines of few CPUs whose cores differ in everything, small enough to try all choices: harder than what is built."""

from __future__ import annotations

from hypothesis import strategies as st

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Cpu, Topology
from tests.unit.dra.allocation.random_machines import Request

# (socket, node) of the core with this number: one place, sockets of one node each, sockets of two nodes, nodes of two
# sockets.
_PLACES = (
    lambda _: (0, 0),
    lambda core: (core % 2, core % 2),
    lambda core: (core % 3, core % 3),
    lambda core: (core % 4 // 2, core % 4),
    lambda core: (core % 4, core % 4 // 2),
)


@st.composite
def small_machines(draw: st.DrawFn, most: int = 10) -> Topology:
    """1 to `most` CPUs: cores of 1 to 4 threads, of one or more types, numbered by core, by thread or anyhow."""
    widest = draw(st.sampled_from([1, 2, 2, 2, 3, 4]))
    widths = draw(st.lists(st.integers(1, widest) if draw(st.booleans()) else st.just(widest), min_size=1, max_size=8))
    while sum(widths) > most:
        widths.pop()
    place = draw(st.sampled_from(_PLACES))
    types = draw(st.sampled_from([[CoreType.STANDARD], [CoreType.P_CORE, CoreType.E_CORE], list(CoreType)]))
    kinds = [types[number % len(types)] for number in widths]
    if draw(st.booleans()):
        kinds = draw(st.lists(st.sampled_from(types), min_size=len(widths), max_size=len(widths)))
    threads = [(core, thread) for core, width in enumerate(widths) for thread in range(width)]
    match draw(st.sampled_from(["core", "thread", "anyhow"])):
        case "thread":
            threads.sort(key=lambda each: (each[1], each[0]))
        case "anyhow":
            threads = draw(st.permutations(threads))
    cpus = []
    for number, (core, _) in enumerate(threads):
        socket, node = place(core)
        cpus.append(Cpu(number, socket, 0, -1, core, node, node, kinds[core]))
    return Topology.of(cpus)


@st.composite
def small_requests(draw: st.DrawFn, most: int = 10) -> Request:
    """A machine, what is free of it, and a number of CPUs that it can give."""
    topology = draw(small_machines(most))
    free = topology.online
    if len(free) > 1 and draw(st.booleans()):
        free -= CPUSet(draw(st.sets(st.sampled_from(list(free)), max_size=len(free) - 1)))
    return Request(topology, free, draw(st.integers(1, len(free))))

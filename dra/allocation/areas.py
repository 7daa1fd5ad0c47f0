"""Sockets, NUMA nodes and L3 groups as a forest: each set of CPUs once, with what touching it costs.

A machine's objects contain each other in any order (dra.allocation.machine). Sets that are equal, as a socket that is
one NUMA node, are one area that costs both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dra.allocation.machine import Machine, lowest_bit, touching
from dra.allocation.sets import fewest

# A cost is one number: sockets, NUMA nodes and L3 groups touched, in 14 bits each (CPUs are below 8192), so that
# costs compare as levels 1 to 3 do and add up.
BITS = 14
COSTS = (1 << 2 * BITS, 1 << BITS, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Area:
    """A set of CPUs, what touching it costs without the areas inside, and these: all of it, or none; by kind and id."""

    cpus: int
    cost: int
    children: tuple[Area, ...]


@lru_cache(maxsize=32)
def areas_of(machine: Machine, align_l3: bool) -> tuple[Area, ...]:
    """The outermost areas of the machine; L3 groups are areas only with `align_l3`."""
    kinds = (machine.sockets, machine.nodes, machine.l3_groups) if align_l3 else (machine.sockets, machine.nodes)
    cost: dict[int, int] = {}
    for objects, price in zip(kinds, COSTS, strict=False):
        for cpus in objects:
            cost[cpus] = cost.get(cpus, 0) + price
    # The dict is in order of kind and id; sorting by size keeps that, and puts what contains before what it contains.
    inside: dict[int, list[int]] = {}
    innermost: dict[int, int] = {}
    for cpus in sorted(cost, key=int.bit_count, reverse=True):
        inside.setdefault(innermost.get(lowest_bit(cpus), 0), []).append(cpus)
        rest = cpus
        while rest:
            innermost[rest & -rest] = cpus
            rest &= rest - 1
    order = {cpus: number for number, cpus in enumerate(cost)}

    def made(parts: list[int]) -> tuple[Area, ...]:
        parts = sorted(parts, key=order.__getitem__)
        return tuple(Area(cpus, cost[cpus], made(inside.get(cpus, []))) for cpus in parts)

    return made(inside[0])


def cost_of(machine: Machine, cpus: int, align_l3: bool) -> int:
    """What these CPUs touch: levels 1 to 3 as one number."""
    found = COSTS[0] * touching(machine.sockets, cpus) + COSTS[1] * touching(machine.nodes, cpus)
    return found + touching(machine.l3_groups, cpus) if align_l3 else found


def least_cost(machine: Machine, free: int, count: int, align_l3: bool) -> int:
    """A bound that no choice can go below: for each kind alone, the number of its objects that it takes at least.

    `count` is at most the number of free CPUs.
    """
    found = COSTS[0] * fewest([(each & free).bit_count() for each in machine.sockets], count)
    found += COSTS[1] * fewest([(each & free).bit_count() for each in machine.nodes], count)
    return found + fewest([(each & free).bit_count() for each in machine.l3_groups], count) if align_l3 else found

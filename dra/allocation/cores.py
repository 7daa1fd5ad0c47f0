"""Cores as bit masks, all of them at a time: which are whole, which are touched, how many threads each has free.

A set of cores is the mask of their leads; a core's lead is its lowest CPU, which is its id as well. Cores whose
siblings have the same distances (n and n + 256 on most x86 machines, n and n + 1 elsewhere) form one shape, and one
shift of the free CPUs answers for all of them at once. A machine has few shapes, at worst one for each core.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreShape:
    """Cores whose threads lie at the same `distances` from the lead; the first distance is 0."""

    leads: int
    distances: tuple[int, ...]


def shapes_of(cores: Iterable[int]) -> tuple[CoreShape, ...]:
    """The shapes of these cores, each a mask of CPUs."""
    found: dict[tuple[int, ...], int] = {}
    for core in cores:
        lead = core & -core
        first, distances, rest = lead.bit_length(), [], core
        while rest:
            low = rest & -rest
            distances.append(low.bit_length() - first)
            rest ^= low
        found[tuple(distances)] = found.get(tuple(distances), 0) | lead
    return tuple(CoreShape(leads, distances) for distances, leads in found.items())


def whole(shapes: Iterable[CoreShape], cpus: int) -> int:
    """The cores that have all their threads in `cpus`."""
    found = 0
    for shape in shapes:
        leads = shape.leads & cpus
        for distance in shape.distances[1:]:
            leads &= cpus >> distance
        found |= leads
    return found


def touched(shapes: Iterable[CoreShape], cpus: int) -> int:
    """The cores that have any thread in `cpus`."""
    found = 0
    for shape in shapes:
        threads = 0
        for distance in shape.distances:
            threads |= cpus >> distance
        found |= threads & shape.leads
    return found


def cpus_of(shapes: Iterable[CoreShape], cores: int) -> int:
    """All threads of these cores."""
    found = 0
    for shape in shapes:
        leads = cores & shape.leads
        for distance in shape.distances:
            found |= leads << distance
    return found


def by_threads(shapes: Iterable[CoreShape], cpus: int) -> list[int]:
    """At index k the cores that have exactly k threads in `cpus`, from 0 to the most threads that a core has."""
    found: list[int] = []
    for shape in shapes:
        # at_least[k]: cores with k threads or more among those looked at so far.
        at_least = [shape.leads] + [0] * (len(shape.distances) + 1)
        for looked_at, distance in enumerate(shape.distances):
            here = cpus >> distance
            for number in range(looked_at + 1, 0, -1):
                at_least[number] |= at_least[number - 1] & here
        found += [0] * (len(at_least) - 1 - len(found))
        for number in range(len(at_least) - 1):
            found[number] |= at_least[number] & ~at_least[number + 1]
    return found


def lowest(mask: int, number: int) -> int:
    """The lowest `number` bits of `mask`, or all where it has fewer."""
    if number >= mask.bit_count():
        return mask
    # The answer is the part below the point where `number` bits are: halve the distance until it is found.
    low, high = number, mask.bit_length()
    while low < high:
        middle = (low + high) // 2
        if (mask & ((1 << middle) - 1)).bit_count() < number:
            low = middle + 1
        else:
            high = middle
    return mask & ((1 << low) - 1)

"""Cores of one shape: those whose CPU numbers have the same distances, so that one shift of a mask serves them all.

On nearly every machine all cores have one or two shapes (CPUs n and n + 256; a core of one thread), so what would be
a loop over cores is a handful of operations on masks. A machine with many shapes costs time, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra.allocation.machine import Machine


@dataclass(frozen=True, slots=True)
class Shape:
    """`distances`: of a core's CPUs from its lowest one, ascending, the first is 0. `bases`: the lowest CPUs."""

    distances: tuple[int, ...]
    bases: int

    @property
    def width(self) -> int:
        """Threads of each of these cores."""
        return len(self.distances)


def shapes_of(machine: Machine) -> tuple[Shape, ...]:
    """All cores of the machine by shape, narrow ones first; every core is in exactly one."""
    bases: dict[tuple[int, ...], int] = {}
    for core in machine.cores:
        low = lowest_bit(core)
        distances = tuple(bits_of(core // low))
        bases[distances] = bases.get(distances, 0) | low
    return tuple(Shape(distances, bases[distances]) for distances in sorted(bases, key=lambda each: (len(each), each)))


def whole(shape: Shape, free: int) -> int:
    """The bases of the cores of this shape that lie wholly in `free`."""
    cores = shape.bases
    for distance in shape.distances:
        cores &= free >> distance
    return cores


def expanded(shape: Shape, bases: int) -> int:
    """All CPUs of the cores with these bases."""
    cpus = 0
    for distance in shape.distances:
        cpus |= bases << distance
    return cpus


def first_threads(shapes: Sequence[Shape], pool: int) -> int:
    """The lowest CPU in `pool` of each core that has any there."""
    firsts = 0
    for shape in shapes:
        untouched = shape.bases
        for distance in shape.distances:
            found = (pool >> distance) & untouched
            firsts |= found << distance
            untouched &= ~found
    return firsts


def lowest_bit(mask: int) -> int:
    """The mask of the lowest CPU of `mask`."""
    return mask & -mask


def bits_of(mask: int) -> list[int]:
    """The numbers of the CPUs of `mask`, ascending."""
    numbers = []
    while mask:
        low = mask & -mask
        numbers.append(low.bit_length() - 1)
        mask ^= low
    return numbers


def lowest(mask: int, number: int) -> int:
    """The `number` (1 or more) lowest CPUs of `mask`, all of it when there are no more."""
    if mask.bit_count() <= number:
        return mask
    short, enough = 0, mask.bit_length()
    while enough - short > 1:
        middle = (short + enough) // 2
        if (mask & ((1 << middle) - 1)).bit_count() < number:
            short = middle
        else:
            enough = middle
    return mask & ((1 << enough) - 1)

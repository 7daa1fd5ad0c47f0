"""Which numbers of CPUs can be made of whole cores and of threads of broken ones, as bits: bit n stands for n CPUs."""

from __future__ import annotations

from dataclasses import dataclass

from dra.allocation import cores
from dra.allocation.machine import Machine


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a set of free CPUs can be taken apart into without breaking a core.

    `whole`: for each width the number of whole free cores, each taken entirely or not at all. `loose`: threads of
    cores that are broken already, any number of which can be taken.
    """

    whole: tuple[tuple[int, int], ...]
    loose: int


def pieces_of(machine: Machine, whole: int, cpus: int) -> Pieces:
    """The pieces of `cpus`, a part of what was free at the start; `whole` are the cores that were whole then.

    A whole core of which `cpus` has only a part counts for nothing: any thread of it would break it.
    """
    inside = cores.whole(machine.shapes, cpus)
    numbers = tuple((width, (inside & leads).bit_count()) for width, leads in machine.widths)
    loose = cpus & ~cores.cpus_of(machine.shapes, whole)
    return Pieces(numbers, loose.bit_count())


def sums(pieces: Pieces, start: int, limit: int) -> int:
    """Each of the numbers in `start` with each that the pieces can give added, up to `limit`."""
    keep = (2 << limit) - 1
    found = _added(start, 1, pieces.loose, keep)
    for width, number in pieces.whole:
        found = _added(found, width, number, keep)
    return found


def differences(pieces: Pieces, start: int) -> int:
    """Each of the numbers in `start` less each that the pieces can give, down to 0."""
    found = _taken(start, 1, pieces.loose)
    for width, number in pieces.whole:
        found = _taken(found, width, number)
    return found


def can_give(pieces: Pieces, count: int) -> bool:
    """Whether these pieces can be exactly `count` CPUs."""
    return bool(differences(pieces, 1 << count) & 1)


def _added(found: int, width: int, number: int, keep: int) -> int:
    """0 to `number` times `width` added: 1, 2, 4, ... at a time."""
    step = 1
    while number > 0:
        step = min(step, number)
        found = (found | found << width * step) & keep
        number -= step
        step *= 2
    return found


def _taken(found: int, width: int, number: int) -> int:
    step = 1
    while number > 0:
        step = min(step, number)
        found |= found >> width * step
        number -= step
        step *= 2
    return found

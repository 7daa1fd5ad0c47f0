"""Full physical cores: which CPUs can be taken, and why a number of CPUs can't be made of them (fault U1)."""

from __future__ import annotations

from dra.allocation import cores
from dra.allocation.errors import SMTAlignmentError, said
from dra.allocation.machine import Machine
from dra.allocation.sums import pieces_of, sums


def on_whole_cores(machine: Machine, free: int, count: int) -> int:
    """The CPUs of `free` that are on whole free cores; a core is whole with the threads that it has on line.

    Raises SMTAlignmentError if no set of these cores has exactly `count` CPUs, however many are asked for.
    """
    whole = cores.whole(machine.shapes, free)
    cpus = cores.cpus_of(machine.shapes, whole)
    total = cpus.bit_count()
    possible = sums(pieces_of(machine, whole, cpus), 1, total)
    if possible >> count & 1:
        return cpus
    # Nothing above the total is possible, and a mask of as many bits as somebody asks for could fill the memory.
    smaller = (possible & ((1 << min(count, total + 1)) - 1)).bit_length() - 1
    larger = possible >> count
    would_fit = [smaller] if smaller else []
    if larger:
        would_fit.append(count + (larger & -larger).bit_length() - 1)
    raise SMTAlignmentError(_message(machine, whole, count, total, would_fit), tuple(would_fit))


def _message(machine: Machine, whole: int, count: int, total: int, would_fit: list[int]) -> str:
    there = f"{said(total)} {'is' if total == 1 else 'are'} on whole free cores"
    widths = [width for width, leads in machine.widths if leads & whole] or [width for width, _ in machine.widths]
    if len(widths) > 1:
        possible = f"; possible are {' or '.join(map(str, would_fit))}" if would_fit else ""
        threads = ", ".join(map(str, widths))
        return f"requested {said(count)} cannot be made of full physical cores of {threads} threads{possible}; {there}"
    if count % widths[0]:
        return f"requested {said(count)} is not a multiple of {widths[0]} threads per core; {there}"
    return f"requested {said(count)} on full physical cores; {there}"

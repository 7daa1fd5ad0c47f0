"""Full physical cores: which CPUs can be taken, and why a number of CPUs can't be made of them (fault U1)."""

from __future__ import annotations

from dra.allocation import cores
from dra.allocation.errors import SMTAlignmentError
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
    smaller = (possible & ((1 << count) - 1)).bit_length() - 1
    larger = possible >> count
    would_fit = [smaller] if smaller else []
    if larger:
        would_fit.append(count + (larger & -larger).bit_length() - 1)
    raise SMTAlignmentError(_message(machine, whole, count, total, would_fit), tuple(would_fit))


def _message(machine: Machine, whole: int, count: int, total: int, would_fit: list[int]) -> str:
    there = f"{total} CPUs are on whole free cores"
    widths = [width for width, leads in machine.widths if leads & whole] or [width for width, _ in machine.widths]
    if len(widths) > 1:
        possible = f"; possible are {' or '.join(map(str, would_fit))}" if would_fit else ""
        threads = ", ".join(map(str, widths))
        return f"requested {count} CPUs cannot be made of full physical cores of {threads} threads{possible}; {there}"
    if count % widths[0]:
        return f"requested {count} CPUs is not a multiple of {widths[0]} threads per core; {there}"
    return f"requested {count} CPUs on full physical cores; {there}"

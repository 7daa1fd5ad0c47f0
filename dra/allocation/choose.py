"""From a topology and a set of CPUs to the strategy that chooses: `allocate` checks what is asked and dispatches."""

from __future__ import annotations

from dra.allocation import packed
from dra.allocation.errors import AllocationError
from dra.allocation.machine import machine_of
from dra.allocation.options import AllocationOptions
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology.model import Topology

_DEFAULTS = AllocationOptions()


def allocate(topology: Topology, free: CPUSet, count: int, options: AllocationOptions = _DEFAULTS) -> CPUSet:
    """Exactly `count` CPUs out of `free`; raises AllocationError when there are fewer, or `count` is not positive.

    CPUs of `free` that the topology doesn't have (they came on line after it was read) are not taken.
    """
    if count < 1:
        raise AllocationError(f"{count} CPUs requested: the number must be positive")
    known = free & topology.online
    if count > len(known):
        there = f"{len(known)} free" + (f" ({known})" if known else "")
        raise AllocationError(f"{count} CPUs requested, {there}", would_fit=(len(known),) if known else ())
    return CPUSet.from_mask(packed.packed(machine_of(topology), known.mask, count, options))

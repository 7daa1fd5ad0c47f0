"""From a topology and a set of CPUs to the strategy that chooses: `allocate` checks what is asked and dispatches."""

from __future__ import annotations

from dra.allocation.distributed import distributed, distributed_would_fit
from dra.allocation.errors import AllocationError, said
from dra.allocation.machine import machine_of
from dra.allocation.options import AllocationOptions, Strategy
from dra.allocation.packed import packed
from dra.allocation.spread import spread
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology.model import Topology

_DEFAULTS = AllocationOptions()


def allocate(topology: Topology, free: CPUSet, count: int, options: AllocationOptions = _DEFAULTS) -> CPUSet:
    """Exactly `count` CPUs out of `free`, the same ones each time.

    Raises AllocationError when there are fewer, when `count` is not positive, or when the options can't be met
    (SMTAlignmentError with full physical cores). CPUs of `free` that the topology doesn't have (they came on line
    after it was read) are not taken.
    """
    if count < 1:
        raise AllocationError(f"{said(count)} requested: the number must be positive")
    known = free & topology.online
    machine = machine_of(topology)
    # The refusal of full cores knows what would fit.
    if count > len(known) and not options.full_physical_cores:
        fits: tuple[int, ...] = (len(known),) if known else ()
        if options.strategy is Strategy.DISTRIBUTED:
            fits = distributed_would_fit(machine, known.mask, count, options)
        raise AllocationError(f"{said(count)} requested, {len(known)} free" + (f" ({known})" if known else ""), fits)
    match options.strategy:
        case Strategy.SPREAD:
            chosen = spread(machine, known.mask, count)
        case Strategy.DISTRIBUTED:
            chosen = distributed(machine, known.mask, count, options)
        case Strategy.PACKED:
            chosen = packed(machine, known.mask, count, options)
    return CPUSet.from_mask(chosen)

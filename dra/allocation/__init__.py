"""Choosing CPUs: `allocate(topology, free, count, options)`. Pure: same input, same output, nothing else looked at."""

from dra.allocation.choose import allocate
from dra.allocation.errors import AllocationError, SMTAlignmentError
from dra.allocation.options import AllocationOptions, NumaNodes, OptionsError, Strategy

__all__ = [
    "AllocationError",
    "AllocationOptions",
    "NumaNodes",
    "OptionsError",
    "SMTAlignmentError",
    "Strategy",
    "allocate",
]

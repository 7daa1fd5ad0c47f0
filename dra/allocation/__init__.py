"""Choosing CPUs: `allocate(topology, free, count, options)`. Pure: same input, same output, nothing else looked at."""

from dra.allocation.packed import AllocationError, AllocationOptions, allocate

__all__ = ["AllocationError", "AllocationOptions", "allocate"]

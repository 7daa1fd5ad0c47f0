"""CPUSet: an immutable set of CPU ids, kept as the bits of one int.

Text is the kernel's list format (`0-3,8`), as in cpuset.cpus, /sys/devices/system/cpu/online and NRI messages
(Documentation/admin-guide/cputopology.rst). Text that we write is canonical: ascending, ranges merged, no blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

# The largest NR_CPUS that any architecture's Kconfig allows is 8192 (x86 MAXSMP, powerpc).
MAX_CPUS = 8192

# Characters, with room to spare for a newline: the longest canonical list is every other one of MAX_CPUS.
MAX_TEXT = 24576

# Eight digits are more than any id needs, and keep int() cheap on hostile text.
_PART = re.compile(r"([0-9]{1,8})(?:-([0-9]{1,8}))?")


class CPUSetError(ValueError):
    """Text that is not a list of CPUs; the message quotes it."""


class CPUSet:
    """An immutable set of CPU ids below MAX_CPUS. Iterates in ascending order; false when empty."""

    __slots__ = ("_mask",)
    _mask: int

    def __init__(self, cpus: Iterable[int] = ()) -> None:
        mask = 0
        for cpu in cpus:
            if not 0 <= cpu < MAX_CPUS:
                raise CPUSetError(f"CPU {cpu} is not between 0 and {MAX_CPUS - 1}")
            mask |= 1 << cpu
        self._mask = mask

    @classmethod
    def from_mask(cls, mask: int) -> CPUSet:
        """The set whose CPUs are the bits of `mask`; raises CPUSetError if a bit is out of range."""
        if mask < 0 or mask >> MAX_CPUS:
            raise CPUSetError(f"a mask of {mask.bit_length()} bits has CPUs that are not between 0 and {MAX_CPUS - 1}")
        return _of(mask)

    @classmethod
    def parse(cls, text: str) -> CPUSet:
        """Read the kernel's list format; blanks and a newline around it are ignored, empty text is the empty set.

        Raises CPUSetError for anything else: signs, reversed ranges, ids of MAX_CPUS and above, empty parts, strides.
        Overlapping and unordered parts are legal, as they are in the kernel.
        """
        text = text.strip(" \t\n")
        if not text:
            return EMPTY
        mask = 0
        for part in text.split(","):
            found = _PART.fullmatch(part)
            if not found:
                raise CPUSetError(f"{quote(text)} is not a list of CPUs such as 0-3,8: {quote(part)}")
            low = int(found[1])
            high = int(found[2]) if found[2] else low
            if high < low:
                raise CPUSetError(f"{quote(text)} has the reversed range {part}")
            if high >= MAX_CPUS:
                raise CPUSetError(f"{quote(text)} has CPU {high}, the highest possible is {MAX_CPUS - 1}")
            mask |= ((1 << (high - low + 1)) - 1) << low
        return _of(mask)

    @classmethod
    def union(cls, sets: Iterable[CPUSet]) -> CPUSet:
        """All CPUs of all `sets`; of none, the empty set."""
        mask = 0
        for each in sets:
            mask |= each._mask
        return _of(mask)

    @property
    def mask(self) -> int:
        """The set as bits: bit n is CPU n."""
        return self._mask

    def first(self) -> int:
        """The lowest CPU; raises CPUSetError when empty."""
        if not self._mask:
            raise CPUSetError("an empty CPU set has no first CPU")
        return (self._mask & -self._mask).bit_length() - 1

    def isdisjoint(self, other: CPUSet) -> bool:
        return not self._mask & other._mask

    def __or__(self, other: CPUSet) -> CPUSet:
        return _of(self._mask | other._mask)

    def __and__(self, other: CPUSet) -> CPUSet:
        return _of(self._mask & other._mask)

    def __sub__(self, other: CPUSet) -> CPUSet:
        return _of(self._mask & ~other._mask)

    def __le__(self, other: CPUSet) -> bool:
        """Subset, as with Python's sets."""
        return not self._mask & ~other._mask

    def __lt__(self, other: CPUSet) -> bool:
        return self._mask != other._mask and self <= other

    def __eq__(self, other: object) -> bool:
        return self._mask == other._mask if isinstance(other, CPUSet) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._mask)

    def __bool__(self) -> bool:
        return bool(self._mask)

    def __len__(self) -> int:
        return self._mask.bit_count()

    def __contains__(self, cpu: int) -> bool:
        return cpu >= 0 and bool(self._mask >> cpu & 1)

    def __iter__(self) -> Iterator[int]:
        mask = self._mask
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    def __str__(self) -> str:
        return _text(self._mask)

    def __repr__(self) -> str:
        return f"CPUSet.parse({_text(self._mask)!r})"


def _of(mask: int) -> CPUSet:
    made = CPUSet.__new__(CPUSet)
    made._mask = mask
    return made


@lru_cache(maxsize=256)
def _text(mask: int) -> str:
    parts = []
    while mask:
        low = mask & -mask
        first = low.bit_length() - 1
        carried = mask + low  # the addition runs through the first run of ones and sets the bit above it
        last = (carried & -carried).bit_length() - 2
        parts.append(f"{first}-{last}" if last > first else str(first))
        mask &= carried
    return ",".join(parts)


def quote(text: str, limit: int = 60) -> str:
    """`text` for a message: quoted, on one line, cut after `limit` characters."""
    return repr(text if len(text) <= limit else text[:limit] + "…")


EMPTY = CPUSet()

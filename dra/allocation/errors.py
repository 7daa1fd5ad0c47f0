"""Why a request gets no CPUs. Messages say what was asked and what was there; values stand beside them for tools."""

from __future__ import annotations


def said(count: int) -> str:
    """A number of CPUs for a message."""
    return f"{count} CPU" if count == 1 else f"{count} CPUs"


class AllocationError(ValueError):
    """The request can't be met.

    `would_fit`: numbers of CPUs near the one that was asked for that could be had, ascending; empty when none could.
    """

    def __init__(self, message: str, would_fit: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.would_fit = would_fit


class SMTAlignmentError(AllocationError):
    """With full physical cores: the number can't be made of whole free cores (fault U1)."""

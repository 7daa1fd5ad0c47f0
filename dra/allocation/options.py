"""How to choose CPUs: the strategy and what goes with it, as one value that can't contradict itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OptionsError(ValueError):
    """Options that exclude each other, or a number that can't be one; the message names the keys."""


class Strategy(StrEnum):
    """packed: as few sockets, nodes and L3 groups as possible; spread: as many cores; distributed: over NUMA nodes."""

    PACKED = "packed"
    SPREAD = "spread"
    DISTRIBUTED = "distributed"


class NumaNodes(StrEnum):
    """Over how many NUMA nodes to distribute. auto: the fewest that can share evenly; all: all that have free CPUs."""

    AUTO = "auto"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class AllocationOptions:
    """How to choose. Raises OptionsError for combinations that make no sense.

    `numa_nodes`: for distributed only, a number of nodes, auto or all; None is auto (KEP-2902). `full_physical_cores`:
    only whole cores (full-pcpus-only of the kubelet). `align_l3`: keep a request in as few L3 groups as possible; it
    has no effect on spread.
    """

    strategy: Strategy = Strategy.PACKED
    numa_nodes: NumaNodes | int | None = None
    full_physical_cores: bool = False
    align_l3: bool = True

    def __post_init__(self) -> None:
        if self.numa_nodes is not None and self.strategy is not Strategy.DISTRIBUTED:
            raise OptionsError(
                f"numaNodes: {self.numa_nodes} needs strategy: distributed, not {self.strategy}: "
                "set that strategy beside it, or take numaNodes away"
            )
        if isinstance(self.numa_nodes, int) and self.numa_nodes < 1:
            raise OptionsError(f"numaNodes: {self.numa_nodes} is not auto, all or a number from 1")
        if self.full_physical_cores and self.strategy is Strategy.SPREAD:
            raise OptionsError(
                "strategy: spread and fullPhysicalCores: true exclude each other: one takes single threads"
            )

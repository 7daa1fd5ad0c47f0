"""Why a request got the CPUs that it got, or none: the answer with its quality, for people and tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra.allocation import cores
from dra.allocation.choose import allocate
from dra.allocation.distributed import distributed_quality
from dra.allocation.errors import AllocationError
from dra.allocation.machine import Machine, machine_of
from dra.allocation.options import AllocationOptions, Strategy
from dra.allocation.quality import packed_quality
from dra.allocation.spread import spread_quality
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology.model import Topology


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer and what speaks for it; `cpus` is None when there is none, and then `error` says why.

    `quality`: what was made small, in the order in which it counts. `free`: what could be taken; `whole_cores`: those
    CPUs of it that are on whole free cores. `would_fit`: numbers of CPUs near a refused one that could be had.
    """

    requested: int
    free: CPUSet
    whole_cores: CPUSet
    cpus: CPUSet | None = None
    quality: Mapping[str, object] = field(default_factory=dict)
    error: str | None = None
    would_fit: tuple[int, ...] = ()


def explain(topology: Topology, free: CPUSet, count: int, options: AllocationOptions | None = None) -> Explanation:
    """What `allocate` answers, with reasons. Raises nothing: a refusal is an answer as well."""
    options = options or AllocationOptions()
    try:
        return explain_outcome(topology, free, count, options, allocate(topology, free, count, options))
    except AllocationError as error:
        return explain_outcome(topology, free, count, options, error)


def explain_outcome(
    topology: Topology, free: CPUSet, count: int, options: AllocationOptions, outcome: CPUSet | AllocationError
) -> Explanation:
    """The reasons for what `allocate` has answered to this request: CPUs, or the refusal that it raised."""
    machine = machine_of(topology)
    known = free & topology.online
    whole = CPUSet.from_mask(cores.cpus_of(machine.shapes, cores.whole(machine.shapes, known.mask)))
    if isinstance(outcome, AllocationError):
        return Explanation(count, known, whole, error=str(outcome), would_fit=outcome.would_fit)
    return Explanation(count, known, whole, outcome, _quality(machine, known.mask, outcome.mask, options))


def _quality(machine: Machine, free: int, cpus: int, options: AllocationOptions) -> Mapping[str, object]:
    match options.strategy:
        case Strategy.SPREAD:
            return spread_quality(machine, free, cpus)
        case Strategy.DISTRIBUTED:
            return distributed_quality(machine, free, cpus)
        case _:
            return packed_quality(machine, free, cpus, options.align_l3)

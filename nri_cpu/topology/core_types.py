"""Kinds of cores, from what the kernel tells: performance counters on x86, capacities on ARM.

x86: each kind of core of a hybrid machine has a PMU of its own, whose file lists its CPUs; elsewhere there are none and
all cores are standard (fault P-6). ARM and RISC-V: each CPU has a capacity, 1024 for the strongest of the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology.files import CPUS, Sysfs, integer
from nri_cpu.topology.model import CoreType
from nri_cpu.topology.oddities import Oddities

# cpu_lowpower: the low-power E-cores that stand outside the ring.
_PMUS = {"cpu_core": CoreType.P_CORE, "cpu_atom": CoreType.E_CORE, "cpu_lowpower": CoreType.E_CORE}

# Cores of one kind differ in capacity as their clocks do, by a fifth at most (a phone's prime core and its big ones);
# little ones have half of a big one's, or less.
_SAME_KIND = 0.8


def core_types(sysfs: Sysfs, present: CPUSet, oddities: Oddities) -> Mapping[int, CoreType]:
    """The kind of each CPU that is not standard; of offline ones too, as far as the kernel tells."""
    types: dict[int, CoreType] = {}
    for pmu, kind in _PMUS.items():
        for cpu in sysfs.cpu_list(f"/sys/devices/{pmu}/cpus") or EMPTY:
            if types.setdefault(cpu, kind) is not kind:
                types[cpu] = CoreType.E_CORE
                oddities.note("two kinds of core, taken as e-core for CPUs {}", cpu)
    return types or _by_capacity(_capacities(sysfs, present, oddities))


def _capacities(sysfs: Sysfs, present: CPUSet, oddities: Oddities) -> Mapping[int, int]:
    """Offline CPUs count, so that no core changes its kind when the last strong one goes off line."""
    found = {}
    for cpu in present:
        text = sysfs.text(f"{CPUS}/cpu{cpu}/cpu_capacity")
        capacity = integer(text)
        if capacity is not None and capacity > 0:
            found[cpu] = capacity
        elif text is not None:
            oddities.note("cpu_capacity is not a number above 0 for CPUs {}", cpu)
    return found


def _by_capacity(capacities: Mapping[int, int]) -> Mapping[int, CoreType]:
    """Of several tiers the highest has p-cores and the lowest e-cores; those between are standard, as are all of one
    tier."""
    tiers = _tiers(capacities.values())
    if len(tiers) < 2:
        return {}
    return {
        cpu: CoreType.P_CORE if capacity >= tiers[0] else CoreType.E_CORE
        for cpu, capacity in capacities.items()
        if capacity >= tiers[0] or capacity < tiers[-2]
    }


def _tiers(capacities: Iterable[int]) -> list[int]:
    """The lowest capacity of each tier, highest tier first. A tier goes down to a fixed part of its highest one."""
    lowest: list[int] = []
    highest = 0
    for capacity in sorted(set(capacities), reverse=True):
        if not lowest or capacity < highest * _SAME_KIND:
            highest = capacity
            lowest.append(capacity)
        else:
            lowest[-1] = capacity
    return lowest

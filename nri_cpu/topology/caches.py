"""L3 caches: which online CPUs share one, by the cache directories of the CPUs.

A cache's list counts when it names the CPU in whose directory it stands, else its mask does; a cache that tells of no
sharers is none. Sharing is symmetric, so that one look a cache is enough, and the first cache that names a CPU has it.
"""

from __future__ import annotations

from collections.abc import Mapping

from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology.files import CPUS, Sysfs, integer
from nri_cpu.topology.oddities import Oddities

# Where level 3 stands, the usual place first. x86 and ARM have index0-3, some leave levels out.
_INDICES = (3, 2, 4, 1, 0, 5, 6, 7, 8, 9)


def l3_of(sysfs: Sysfs, online: CPUSet, oddities: Oddities) -> Mapping[int, int]:
    """The number of its L3 for each online CPU that has one. Numbers are unique in the machine.

    They are the kernel's ids. Where a cache has none (ARM kernels without firmware tables, and those before 4.9) or
    two have the same (fault A26), all caches are named after their lowest online CPU.
    """
    caches: list[tuple[int | None, CPUSet]] = []
    done = EMPTY
    for cpu in online:
        if cpu in done:
            continue
        index = _l3_index(sysfs, cpu)
        if index is None:
            continue
        sharers = _sharers(sysfs, index, cpu, oddities)
        if sharers is None:
            oddities.note("the L3 cache doesn't tell who shares it, taken as none for CPUs {}", cpu)
            continue
        sharers = (sharers & online) - done
        caches.append((integer(sysfs.text(f"{index}/id")), sharers))
        done |= sharers
    if missing := online - done:
        oddities.note_all("no L3 cache for CPUs {}", missing)
    ids = [number for number, _ in caches if number is not None and number >= 0]
    if len(ids) == len(caches) and len(set(ids)) == len(ids):
        return {cpu: number for number, (_, sharers) in zip(ids, caches, strict=True) for cpu in sharers}
    if len(ids) == len(caches):
        oddities.note_all("L3 caches have the same id, all are named after their lowest CPU: CPUs {}", done)
    return {cpu: sharers.first() for _, sharers in caches for cpu in sharers}


def _l3_index(sysfs: Sysfs, cpu: int) -> str | None:
    for index in _INDICES:
        path = f"{CPUS}/cpu{cpu}/cache/index{index}"
        if sysfs.text(f"{path}/level") == "3":
            return path
    return None


def _sharers(sysfs: Sysfs, index: str, cpu: int, oddities: Oddities) -> CPUSet | None:
    listed = sysfs.cpu_list(f"{index}/shared_cpu_list")
    if listed is not None and cpu in listed:
        return listed
    if listed is not None:
        oddities.note("the list of an L3 cache's sharers leaves out CPUs {}", cpu)
    masked = sysfs.cpu_mask(f"{index}/shared_cpu_map")
    return masked if masked is not None and cpu in masked else None

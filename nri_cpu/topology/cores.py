"""Which online CPUs are one core: by the ids of socket, die, cluster and core, and by the kernel's lists of siblings.

Either may be missing or wrong. Ids alone make one core of two where a kernel repeats core ids inside a socket (AMD's
Magny-Cours and Interlagos count them anew on each of two dies, and no die id tells them apart) and two of one where
core_id is missing; siblings are the kernel's own set of a core's threads, and win when all of them say the same.
Where neither helps, a core id that is missing or -1 is the CPU's own id (faults R11, R14, A26, A27).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology.files import CPUS, Sysfs, integer
from nri_cpu.topology.oddities import Oddities

_NO_CLUSTER = 65535  # what kernels without a cluster level print for -1 in an unsigned field (fault A26)

# The newer name of each comes first; lists before masks, which is all that kernels before 2.6.30 have.
_SIBLING_LISTS = ("core_cpus_list", "thread_siblings_list")
_SIBLING_MASKS = ("core_cpus", "thread_siblings")


class Core(NamedTuple):
    """What identifies a core in the machine; -1 where there is none, or it isn't known."""

    socket: int
    die: int
    cluster: int
    core: int


def cores_of(sysfs: Sysfs, online: CPUSet, oddities: Oddities) -> Mapping[int, Core]:
    """The core of each online CPU; its core id is always known."""
    ids = {cpu: _ids(sysfs, cpu, oddities) for cpu in online}
    by_ids: dict[tuple[Core, int], int] = {}
    for cpu, core in ids.items():
        unknown = core.core == -1
        if unknown:
            oddities.note("no core id for CPUs {}", cpu)
        key = (core, cpu if unknown else -1)
        by_ids[key] = by_ids.get(key, 0) | 1 << cpu
    siblings = _Siblings(sysfs, online)
    cores: Collection[int] = by_ids.values()
    # One look a core where both agree, as they do on every kernel of today.
    if any(siblings.of(_first(mask)) not in (None, mask) for mask in cores):
        cores = _settled(ids, set(cores), siblings, oddities)
    return _numbered(ids, cores)


def _ids(sysfs: Sysfs, cpu: int, oddities: Oddities) -> Core:
    def number(name: str) -> int:
        text = sysfs.text(f"{CPUS}/cpu{cpu}/topology/{name}")
        value = integer(text)
        if value is None and text is not None:
            oddities.note(f"{name} is not a number for CPUs {{}}", cpu)
        return -1 if value is None or value < 0 else value

    cluster = number("cluster_id")
    return Core(
        max(number("physical_package_id"), 0),
        number("die_id"),
        -1 if cluster == _NO_CLUSTER else cluster,
        number("core_id"),
    )


class _Siblings:
    """What each CPU's files say of its core, read at most once."""

    def __init__(self, sysfs: Sysfs, online: CPUSet) -> None:
        self._sysfs = sysfs
        self._online = online.mask
        self._known: dict[int, int | None] = {}

    def of(self, cpu: int) -> int | None:
        """The mask of the online CPUs of its core, itself among them; None when the files don't tell."""
        if cpu not in self._known:
            self._known[cpu] = self._read(cpu)
        return self._known[cpu]

    def _read(self, cpu: int) -> int | None:
        home = f"{CPUS}/cpu{cpu}/topology"
        for names, read in ((_SIBLING_LISTS, self._sysfs.cpu_list), (_SIBLING_MASKS, self._sysfs.cpu_mask)):
            for name in names:
                found = read(f"{home}/{name}")
                if found is not None and cpu in found:
                    return found.mask & self._online
        return None


def _settled(ids: Mapping[int, Core], by_ids: Collection[int], siblings: _Siblings, oddities: Oddities) -> list[int]:
    """The cores, as masks, of a machine whose ids and siblings contradict each other somewhere."""
    agreed: dict[int, bool] = {}
    for cpu, core in ids.items():
        said = siblings.of(cpu)
        if said is not None and said not in agreed:
            # A core is in one socket, and all its threads say the same of it.
            agreed[said] = all(ids[other].socket == core.socket and siblings.of(other) == said for other in _bits(said))
    cores = [mask for mask, good in agreed.items() if good]
    left = 0
    for cpu in ids:
        said = siblings.of(cpu)
        if said is None or not agreed[said]:
            left |= 1 << cpu
    cores += [mask & left for mask in by_ids if mask & left]
    for mask in cores:
        if mask not in by_ids and all(ids[cpu].core != -1 for cpu in _bits(mask)):
            oddities.note_all("core ids and lists of siblings contradict each other for CPUs {}", _bits(mask))
    return cores


def _numbered(ids: Mapping[int, Core], cores: Iterable[int]) -> Mapping[int, Core]:
    """Each CPU's core, by ids that no two cores share: where they would, a core has the id of its lowest CPU."""
    named = {mask: _named(ids, mask) for mask in cores}
    repeated = {core[:3] for core, count in Counter(named.values()).items() if count > 1}
    return {
        cpu: core._replace(core=_first(mask)) if core[:3] in repeated else core
        for mask, core in named.items()
        for cpu in _bits(mask)
    }


def _named(ids: Mapping[int, Core], mask: int) -> Core:
    """The ids of a core. What one of its threads doesn't know, another one may; without a core id it is its lowest
    CPU's."""
    threads = [ids[cpu] for cpu in _bits(mask)]
    return Core(
        threads[0].socket,
        max(thread.die for thread in threads),
        max(thread.cluster for thread in threads),
        next((thread.core for thread in threads if thread.core != -1), _first(mask)),
    )


def _first(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _bits(mask: int) -> CPUSet:
    return CPUSet.from_mask(mask)

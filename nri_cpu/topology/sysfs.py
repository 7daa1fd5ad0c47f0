"""Reads the machine from /sys into a Topology: thin, and tolerant of what kernels and virtual machines leave out.

Each kind of gap or contradiction is one log line, and what is left is a usable machine (faults R14, A26, A27). Files
are those of Documentation/ABI/stable/sysfs-devices-system-cpu and .../sysfs-devices-node. What is read of each subject,
and what counts when files contradict each other, stands in cores, caches, nodes, core_types and pci.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology.caches import l3_of
from nri_cpu.topology.core_types import core_types
from nri_cpu.topology.cores import cores_of
from nri_cpu.topology.errors import TopologyError
from nri_cpu.topology.files import CPUS, Sysfs, parsed
from nri_cpu.topology.model import CoreType, Cpu, Topology
from nri_cpu.topology.nodes import read_nodes
from nri_cpu.topology.oddities import Oddities
from nri_cpu.topology.oddities import log as oddities_log
from nri_cpu.topology.overlay import Overlay
from nri_cpu.topology.pci import pcie_roots

# The files of a CPU that goes off line while they are read are gone: then all is read again, so many times in all.
_TRIES = 3


def read_online(root: Path, overlay: Overlay | None = None) -> CPUSet:
    """The online CPUs of the machine whose /sys lies under `root`: the file `online`, else the cpuN directories.

    Raises TopologyError when neither tells of any CPU.
    """
    return _online(Sysfs(root, overlay), root, Oddities())


def read_topology(
    root: Path, overlay: Overlay | None = None, tell: Callable[[Sequence[str]], object] = oddities_log
) -> Topology:
    """The topology of the machine whose /sys lies under `root`. Raises TopologyError when there is no CPU at all.

    `tell` is called once with what is odd about the files, a sentence for each kind: by default that is logged.
    CPUs that `online` names and that have no directory, where others have one, are left out: they aren't there.
    """
    for _ in range(_TRIES):
        sysfs = Sysfs(root, overlay)
        oddities = Oddities()
        listed = sysfs.text(f"{CPUS}/online")
        try:
            topology = _read(sysfs, root, oddities)
        except TopologyError:
            tell(oddities.sentences())  # they may be why
            raise
        if sysfs.ended:
            oddities.note("more files than those of any machine, the rest is passed over: {}", f"{root / 'sys'}")
            break
        if sysfs.text(f"{CPUS}/online") == listed:
            break
    tell(oddities.sentences())
    return topology


def _read(sysfs: Sysfs, root: Path, oddities: Oddities) -> Topology:
    online, present, possible = _cpus(sysfs, _online(sysfs, root, oddities), oddities)
    nodes = read_nodes(sysfs, online, present, oddities)
    cores = cores_of(sysfs, online, oddities)
    l3 = l3_of(sysfs, online, oddities)
    types = core_types(sysfs, present, oddities)
    isolated = _told(sysfs, "isolated", oddities) or EMPTY
    return Topology.of(
        (Cpu(cpu, *cores[cpu], nodes.of[cpu], l3.get(cpu), types.get(cpu, CoreType.STANDARD)) for cpu in online),
        present,
        nodes.offline,
        possible=possible,
        isolated=isolated & present,
        memory_nodes=nodes.memory,
        memoryless_nodes=nodes.memoryless,
        pcie_roots=pcie_roots(sysfs, present, oddities),
    )


def _online(sysfs: Sysfs, root: Path, oddities: Oddities) -> CPUSet:
    online = _told(sysfs, "online", oddities) or _not_offline(sysfs, sysfs.numbered(CPUS, "cpu"))
    if not online:
        for path in (f"{CPUS}/online", CPUS):
            if error := sysfs.refusal(path):
                reason = f"{root / path[1:]} can't be read: {error.strerror}"
                raise TopologyError(f"{reason}; be a user who may, or allow reading of the folders on its path")
        raise TopologyError(
            f"{root / CPUS[1:] / 'online'} tells of no CPU: is /sys mounted there? HOST_ROOT names the folder above it"
        )
    return online


def _not_offline(sysfs: Sysfs, cpus: Iterable[int]) -> CPUSet:
    """By each CPU's own file, which one that can't be taken off line has not."""
    return CPUSet(cpu for cpu in cpus if sysfs.text(f"{CPUS}/cpu{cpu}/online") != "0")


def _cpus(sysfs: Sysfs, online: CPUSet, oddities: Oddities) -> tuple[CPUSet, CPUSet, CPUSet]:
    """The CPUs that are online, present and possible, each among the next, by the kernel's lists and the cpuN
    directories: every kernel has one for each CPU that is on line. One that is present and can't be used, as of a
    virtual machine that may get more, has none."""
    there = CPUSet(sysfs.numbered(CPUS, "cpu"))
    # Of a directory of which a part was read the rest may be there.
    if there and not sysfs.ended and (missing := online - there):
        oddities.note_all("on line and without a directory, left out, are CPUs {}", missing)
        online = online & there or _not_offline(sysfs, there) or there
    present = _told(sysfs, "present", oddities) or there
    if missing := online - present:
        oddities.note_all("on line and not present, taken as both, are CPUs {}", missing)
    present |= online
    return online, present, (_told(sysfs, "possible", oddities) or present) | present


def _told(sysfs: Sysfs, name: str, oddities: Oddities) -> CPUSet | None:
    """The CPUs that one of the kernel's lists for the whole machine names; None when it can't be understood."""
    text = sysfs.text(f"{CPUS}/{name}")
    cpus = parsed(text)
    if cpus is None and text is not None:
        oddities.note("not a list of CPUs, and passed over: {}", name)
    return cpus

"""Reads the machine from /sys/devices/system into a Topology: thin, and tolerant of what kernels and VMs leave out.

Rules for what is missing (faults R14, A26, A27): no node directory is NUMA node 0, no L3 is None, a core id that
is missing or -1 is the CPU's own id, a socket that is missing or -1 is socket 0. Each kind of gap is one log line.
Files are those of Documentation/ABI/stable/sysfs-devices-system-cpu and .../sysfs-devices-node.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from loguru import logger

from nri_cpu.cpuset import EMPTY, MAX_CPUS, CPUSet, CPUSetError
from nri_cpu.topology.model import CoreType, Cpu, Topology

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
# A list of 8192 CPUs with every second one missing has 23 KiB; nothing that is read here is longer.
_READ_LIMIT = 65536
_CLUSTER_NONE = 65535  # what kernels without a cluster level print for -1 in an unsigned field (fault A26)


class TopologyError(Exception):
    """No CPU can be found; the message names the file and the way out."""


def read_online(root: Path) -> CPUSet:
    """The online CPUs of the machine whose /sys lies under `root`: the file `online`, else the cpuN directories.

    Raises TopologyError when neither tells of any CPU.
    """
    base = root / _CPUS
    online = _cpu_list(base / "online")
    if not online:
        # A CPU that can't be taken off line has no file of its own.
        online = CPUSet(cpu for cpu in _numbered(base, "cpu") if _text(base / f"cpu{cpu}" / "online") in (None, "1"))
    if not online:
        raise TopologyError(
            f"{base / 'online'} tells of no CPU: is /sys mounted there? HOST_ROOT names the folder above it"
        )
    return online


def read_topology(root: Path) -> Topology:
    """The topology of the machine whose /sys lies under `root`. Raises TopologyError when there is no CPU at all."""
    base = root / _CPUS
    online = read_online(root)
    nodes = _node_of(root)
    l3 = _l3_of(base, online)
    types = _core_types(root)
    gaps: dict[str, list[int]] = {}

    def number(cpu: int, name: str, instead: int) -> int:
        path = base / f"cpu{cpu}" / "topology" / name
        text = _text(path)
        value = _integer(text)
        if value is None and text is not None:
            gaps.setdefault(f"{name} is not a number", []).append(cpu)
        return instead if value is None or value < 0 else value

    cpus = []
    for cpu in online:
        cluster = number(cpu, "cluster_id", -1)
        cpus.append(
            Cpu(
                id=cpu,
                socket=number(cpu, "physical_package_id", 0),
                die=number(cpu, "die_id", -1),
                cluster=-1 if cluster == _CLUSTER_NONE else cluster,
                core=number(cpu, "core_id", cpu),
                numa_node=nodes.get(cpu, 0),
                l3=l3.get(cpu),
                core_type=types.get(cpu, CoreType.STANDARD),
            )
        )
        if cpu not in nodes:
            gaps.setdefault("no NUMA node, taken as 0", []).append(cpu)
        if cpu not in l3:
            gaps.setdefault("no L3 cache", []).append(cpu)
    for gap, which in gaps.items():
        logger.info("topology: {} for CPUs {}", gap, CPUSet(which))
    present = _cpu_list(base / "present")
    return Topology.of(cpus, present, _offline_nodes(base, present - online))


def _node_of(root: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    base = root / _NODES
    for node in _numbered(base, "node"):
        cpus = _cpu_list(base / f"node{node}" / "cpulist") or _cpu_mask(base / f"node{node}" / "cpumap")
        for cpu in cpus:
            found.setdefault(cpu, node)
    return found


def _offline_nodes(base: Path, offline: CPUSet) -> dict[int, int]:
    found = {}
    for cpu in offline:
        # A node's list leaves offline CPUs out, the link in the CPU's own directory stays.
        for node in _numbered(base / f"cpu{cpu}", "node"):
            found[cpu] = node
    return found


def _l3_of(base: Path, online: CPUSet) -> dict[int, int]:
    found: dict[int, int] = {}
    owners: dict[int, CPUSet] = {}
    for cpu in online:
        if cpu in found:
            continue  # one look a cache, not one a CPU: sharing is symmetric
        index = _l3_index(base / f"cpu{cpu}" / "cache")
        if index is None:
            continue
        shared = _cpu_list(index / "shared_cpu_list") or _cpu_mask(index / "shared_cpu_map") or CPUSet([cpu])
        number = _integer(_text(index / "id"))
        if number is None or number < 0 or number in owners:
            # ARM kernels without firmware tables give no id (fault A26); an id that two caches have is none.
            number = shared.first()
        owners[number] = shared
        for sharer in (shared & online) | CPUSet([cpu]):
            found.setdefault(sharer, number)
    return found


def _l3_index(cache: Path) -> Path | None:
    for index in _numbered(cache, "index"):
        if _text(cache / f"index{index}" / "level") == "3":
            return cache / f"index{index}"
    return None


def _core_types(root: Path) -> dict[int, CoreType]:
    """Kinds of cores from the two PMUs of hybrid Intel machines; elsewhere neither exists and all are standard."""
    efficient = _cpu_list(root / "sys/devices/cpu_atom/cpus")
    performant = _cpu_list(root / "sys/devices/cpu_core/cpus") - efficient
    return dict.fromkeys(efficient, CoreType.E_CORE) | dict.fromkeys(performant, CoreType.P_CORE)


def _text(path: Path) -> str | None:
    """The stripped text of a small file; None when it can't be read. Old kernels end node lists with a NUL."""
    try:
        # O_NONBLOCK: HOST_ROOT may name any folder, and opening a FIFO in it must not hang the start.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return file.read(_READ_LIMIT).decode("ascii", "replace").strip("\0 \t\n")
    except OSError:
        return None


def _integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,9}", text) else None


def _cpu_list(path: Path) -> CPUSet:
    """The CPUs that a file lists; empty when it is missing or says nothing that can be understood."""
    text = _text(path)
    try:
        return CPUSet.parse(text or "")
    except CPUSetError as error:
        logger.warning("topology: {} is ignored: {}", path, error)
        return EMPTY


def _cpu_mask(path: Path) -> CPUSet:
    """The CPUs of a file in the kernel's mask format, 32-bit hexadecimal words: kernels that lack the lists have it."""
    text = (_text(path) or "").replace(",", "")
    if not re.fullmatch(rf"[0-9a-fA-F]{{1,{MAX_CPUS // 4}}}", text):
        return EMPTY
    return CPUSet.from_mask(int(text, 16))


def _numbered(directory: Path, prefix: str) -> Iterator[int]:
    """The numbers N of the entries prefixN of a directory, ascending; none when it can't be read."""
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return iter(())
    found = (re.fullmatch(rf"{prefix}([0-9]{{1,4}})", name) for name in names)
    return iter(sorted(number for match in found if match and (number := int(match[1])) < MAX_CPUS))

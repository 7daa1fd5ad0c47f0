"""PCIe roots: the CPUs local to each root bus, as firmware says through /sys/devices/pciDDDD:BB.

This is a device's attribute only. It says nothing of where CPUs are, and is unreliable where a socket is split into
several NUMA nodes (fault C6).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology.files import Sysfs
from nri_cpu.topology.oddities import Oddities

# Domains have four digits, those of Hyper-V and of volume management devices up to eight.
_ROOT = re.compile(r"pci([0-9a-f]{4,8}:[0-9a-f]{2})")


def pcie_roots(sysfs: Sysfs, present: CPUSet, oddities: Oddities) -> Mapping[str, CPUSet]:
    """Root bus ("pci0000:00") -> the CPUs that are local to it, of those that are present. Kernels before 2.6.30 have
    masks only; a bus without either is left out."""
    found: dict[str, CPUSet] = {}
    for match in sysfs.matching("/sys/devices", _ROOT):
        name = match[0]
        bus = f"/sys/devices/{name}/pci_bus/{match[1]}"
        cpus = sysfs.cpu_list(f"{bus}/cpulistaffinity")
        if cpus is None:
            cpus = sysfs.cpu_mask(f"{bus}/cpuaffinity")
        if cpus is None:
            oddities.note("no CPUs are told for the PCIe root {}", name)
        else:
            found[name] = cpus & present
    return found

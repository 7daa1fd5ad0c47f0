"""The machine's CPUs: model (pure), sysfs (reader) with overlay and one file for each subject, map (text picture)."""

from nri_cpu.topology.errors import TopologyError
from nri_cpu.topology.model import CoreType, Cpu, Topology
from nri_cpu.topology.overlay import Overlay, load_overlay
from nri_cpu.topology.sysfs import read_online, read_topology

__all__ = ["CoreType", "Cpu", "Overlay", "Topology", "TopologyError", "load_overlay", "read_online", "read_topology"]

"""The machine's CPUs: model (pure), sysfs (reader), map (text picture)."""

from nri_cpu.topology.model import CoreType, Cpu, Topology
from nri_cpu.topology.sysfs import TopologyError, read_online, read_topology

__all__ = ["CoreType", "Cpu", "Topology", "TopologyError", "read_online", "read_topology"]

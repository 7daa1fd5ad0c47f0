"""Machines for tests: topologies as values, and the /sys that a kernel would show for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Cpu, Topology


def machine(
    *,
    sockets: int = 1,
    dies: int = 1,
    cores: int,
    threads: int = 1,
    nodes: int = 1,
    offline: Iterable[int] = (),
    l3_per_node: int = 1,
) -> Topology:
    """`dies` a socket, `cores` a die, `nodes` a socket; siblings n and n + cores; each socket has core id 0."""
    per_socket = dies * cores
    total = sockets * per_socket
    cpus = []
    for cpu in range(total * threads):
        socket, core = divmod(cpu % total, per_socket)
        node = socket * nodes + core * nodes // per_socket
        cpus.append(
            Cpu(
                id=cpu,
                socket=socket,
                die=core // cores,
                cluster=-1,
                core=core,
                numa_node=node,
                l3=socket * nodes * l3_per_node + core * nodes * l3_per_node // per_socket,
            )
        )
    gone = CPUSet(offline)
    return Topology.of(
        (cpu for cpu in cpus if cpu.id not in gone),
        CPUSet(range(total * threads)),
        {cpu.id: cpu.numa_node for cpu in cpus if cpu.id in gone},
    )


def t1(offline: Iterable[int] = ()) -> Topology:
    """One socket, 8 cores of 2 threads, one L3."""
    return machine(cores=8, threads=2, offline=offline)


def t1b() -> Topology:
    """t1 with two L3: cores 0-3 and 4-7."""
    return machine(cores=8, threads=2, l3_per_node=2)


def t2() -> Topology:
    """Two sockets, each a NUMA node of 4 cores of 2 threads; core ids 0-3 on both."""
    return machine(sockets=2, cores=4, threads=2)


def box() -> Topology:
    """The node in a box: 2 sockets of 2 dies, a NUMA node and an L3 each; siblings n and n + 8."""
    return machine(sockets=2, dies=2, cores=2, threads=2, nodes=2)


def hybrid(performant: int = 2, efficient: int = 4) -> Topology:
    """P-cores of 2 threads, then E-cores of one; one L3; siblings adjacent."""
    cpus = [Cpu(n, 0, 0, -1, n // 2, 0, 0, CoreType.P_CORE) for n in range(2 * performant)]
    first = 2 * performant
    cpus += [Cpu(first + n, 0, 0, -1, first + n, 0, 0, CoreType.E_CORE) for n in range(efficient)]
    return Topology.of(cpus)


def write_sysfs(root: Path, topology: Topology) -> Path:
    """The files that a kernel shows for this machine, under root/sys; returns root."""
    base = root / "sys/devices/system/cpu"
    _write(base / "online", topology.online)
    _write(base / "present", topology.present)
    for cpu in topology.cpus.values():
        home = base / f"cpu{cpu.id}"
        for name, value in (
            ("physical_package_id", cpu.socket),
            ("die_id", cpu.die),
            ("cluster_id", 65535 if cpu.cluster == -1 else cpu.cluster),
            ("core_id", cpu.core),
        ):
            _write(home / "topology" / name, value)
        _write(home / "cache/index0/level", 1)
        _write(home / "cache/index0/shared_cpu_list", cpu.id)
        if cpu.l3 is not None:
            _write(home / "cache/index3/level", 3)
            _write(home / "cache/index3/id", cpu.l3)
            sharers = CPUSet(other.id for other in topology.cpus.values() if other.l3 == cpu.l3)
            _write(home / "cache/index3/shared_cpu_list", sharers)
    for node, cpus in topology.nodes.items():
        _write(root / f"sys/devices/system/node/node{node}/cpulist", cpus)
    for cpu_id, node in topology.offline_nodes.items():
        _write(base / f"cpu{cpu_id}/online", 0)
        (base / f"cpu{cpu_id}/node{node}").mkdir()
    for name, kind in (("cpu_core", CoreType.P_CORE), ("cpu_atom", CoreType.E_CORE)):
        if members := [cpu.id for cpu in topology.cpus.values() if cpu.core_type is kind]:
            _write(root / f"sys/devices/{name}/cpus", CPUSet(members))
    return root


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")

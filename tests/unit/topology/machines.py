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
    for path, text in sysfs_files(topology).items():
        file = root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        if text:
            file.write_text(text)
        else:
            file.mkdir(exist_ok=True)
    return root


def sysfs_files(topology: Topology) -> dict[str, str]:
    """The same as path -> text, in the form of an overlay: the empty text is a directory."""
    base = "/sys/devices/system/cpu"
    files = {
        f"{base}/{name}": f"{cpus}\n"
        for name, cpus in (
            ("online", topology.online),
            ("present", topology.present),
            ("possible", topology.possible),
            ("isolated", topology.isolated),
        )
    }
    for cpu in topology.present - topology.online:
        files[f"{base}/cpu{cpu}/online"] = "0\n"
    for cpu, node in topology.offline_nodes.items():
        files[f"{base}/cpu{cpu}/node{node}"] = ""
    for core in topology.cores:
        for cpu in core:
            files |= _cpu_files(topology.cpus[cpu], core)
    for group in topology.l3_groups:
        for cpu in group:
            if topology.cpus[cpu].l3 is not None:
                files |= _cache_files(cpu, 3, group) | {
                    f"{base}/cpu{cpu}/cache/index3/id": f"{topology.cpus[cpu].l3}\n"
                }
    return files | _node_files(topology) | _pmu_files(topology) | _pci_files(topology)


def _cpu_files(cpu: Cpu, core: CPUSet) -> dict[str, str]:
    home = f"/sys/devices/system/cpu/cpu{cpu.id}"
    values = {
        "topology/physical_package_id": cpu.socket,
        "topology/die_id": cpu.die,
        "topology/cluster_id": 65535 if cpu.cluster == -1 else cpu.cluster,
        "topology/core_id": cpu.core,
        "topology/core_cpus_list": core,
        "topology/core_cpus": mask_text(core),
        "topology/thread_siblings_list": core,
        "topology/thread_siblings": mask_text(core),
    }
    files = {f"{home}/{name}": f"{value}\n" for name, value in values.items()}
    return files | {f"{home}/node{cpu.numa_node}": ""} | _cache_files(cpu.id, 0, core)


def _cache_files(cpu: int, index: int, sharers: CPUSet) -> dict[str, str]:
    home = f"/sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {
        f"{home}/level": f"{index or 1}\n",
        f"{home}/shared_cpu_list": f"{sharers}\n",
        f"{home}/shared_cpu_map": f"{mask_text(sharers)}\n",
    }


def _node_files(topology: Topology) -> dict[str, str]:
    files = {}
    for node, cpus in [*topology.nodes.items(), *((node, CPUSet()) for node in topology.memory_nodes)]:
        home = f"/sys/devices/system/node/node{node}"
        files[f"{home}/cpulist"] = f"{cpus}\n"
        files[f"{home}/cpumap"] = f"{mask_text(cpus)}\n"
        total = 0 if node in topology.memoryless_nodes else 1048576
        files[f"{home}/meminfo"] = f"Node {node} MemTotal:       {total} kB\nNode {node} MemFree:  0 kB\n"
    return files


def _pmu_files(topology: Topology) -> dict[str, str]:
    files = {}
    for name, kind in (("cpu_core", CoreType.P_CORE), ("cpu_atom", CoreType.E_CORE)):
        if members := [cpu.id for cpu in topology.cpus.values() if cpu.core_type is kind]:
            files[f"/sys/devices/{name}/cpus"] = f"{CPUSet(members)}\n"
    return files


def _pci_files(topology: Topology) -> dict[str, str]:
    files = {}
    for name, cpus in topology.pcie_roots.items():
        home = f"/sys/devices/{name}/pci_bus/{name.removeprefix('pci')}"
        files[f"{home}/cpulistaffinity"] = f"{cpus}\n"
        files[f"{home}/cpuaffinity"] = f"{mask_text(cpus)}\n"
    return files


def mask_text(cpus: CPUSet) -> str:
    """The kernel's mask format: 32-bit words in hexadecimal, the highest first."""
    digits = f"{cpus.mask:x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(digits[start : start + 8] for start in range(0, len(digits), 8))

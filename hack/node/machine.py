"""The machine that a box emulates: its sockets, dies, cores, threads and NUMA nodes, and how Linux numbers the CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nri_cpu.cpuset import EMPTY, CPUSet

# QEMU's software emulation has no x2APIC before 9.0, and the id 255 means all CPUs.
MAX_APIC_ID = 254

# ACPI SLIT: a node to itself, to a node of the same socket, to a node of another one.
NEAR, SAME_SOCKET, FAR = 10, 12, 32


@dataclass(frozen=True, slots=True)
class Place:
    """Where one CPU sits.

    `cpu` is Linux's id, `index` is QEMU's; socket and node count from 0 over the whole machine, die within its socket,
    core within its die, thread within its core.
    """

    cpu: int
    index: int
    socket: int
    die: int
    core: int
    thread: int
    node: int


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine to emulate; raises ValueError when it can't be built.

    dies are per socket, cores per die, threads per core; NUMA nodes split the CPUs in equal parts, in order. An L3
    cache belongs to a die. `siblings` is the order of Linux's ids: "split" numbers all first threads, then all second
    ones, as most firmware does; "adjacent" puts a core's threads side by side. `memory` is MiB per NUMA node that has
    some: `memory_nodes` more nodes, with the next numbers, have no CPUs, and nodes of `memoryless` no memory. CPUs of
    `offline` are taken off line as soon as the box is up.
    """

    sockets: int = 2
    dies: int = 2
    cores: int = 2
    threads: int = 2
    nodes: int = 4
    memory: int = 512
    memory_nodes: int = 0
    memoryless: tuple[int, ...] = ()
    siblings: Literal["split", "adjacent"] = "split"
    offline: CPUSet = EMPTY
    kernel_words: tuple[str, ...] = ()
    # EPYC models show no shared L1 and L2 under software emulation.
    cpu_model: str = "Skylake-Server-v4"

    def __post_init__(self) -> None:
        if min(self.sockets, self.dies, self.cores, self.threads, self.nodes) < 1:
            raise ValueError("a machine has at least one socket, die, core, thread and NUMA node")
        if self.siblings not in ("split", "adjacent"):
            raise ValueError(f"siblings are numbered split or adjacent, not {self.siblings}")
        if self.cores_total % self.nodes:
            raise ValueError(f"{self.cores_total} cores can't be split equally over {self.nodes} NUMA nodes")
        if self.apic_id(self.sockets - 1, self.dies - 1, self.cores - 1, self.threads - 1) > MAX_APIC_ID:
            raise ValueError(f"emulation allows APIC ids up to {MAX_APIC_ID}; this machine needs more")
        if self.memory_nodes < 0:
            raise ValueError(f"{self.memory_nodes} nodes of memory can't be")
        # The kernel is loaded into node 0.
        if not set(self.memoryless) <= set(range(1, self.nodes)):
            raise ValueError(f"of nodes {self.memoryless} not all are among 1-{self.nodes - 1}, which can lack memory")
        if self.memory_total < 512:
            raise ValueError("the box needs 512 MiB of memory in all")
        if not self.offline <= CPUSet(range(1, self.total)):
            raise ValueError(f"CPUs 1-{self.total - 1} can be off line, {self.offline} can't")

    @property
    def cores_total(self) -> int:
        return self.sockets * self.dies * self.cores

    @property
    def total(self) -> int:
        """Number of CPUs (threads) of the machine."""
        return self.cores_total * self.threads

    @property
    def node_memory(self) -> tuple[int, ...]:
        """MiB of each NUMA node, by node id."""
        nodes = range(self.nodes + self.memory_nodes)
        return tuple(0 if node in self.memoryless else self.memory for node in nodes)

    @property
    def memory_total(self) -> int:
        """MiB of the machine."""
        return sum(self.node_memory)

    def apic_id(self, socket: int, die: int, core: int, thread: int) -> int:
        """The APIC id: each level has as many bits as its largest number needs (Intel SDM, vol. 3, 9.9.3.2)."""
        value = socket
        for count, number in ((self.dies, die), (self.cores, core), (self.threads, thread)):
            value = value << (count - 1).bit_length() | number
        return value

    def places(self) -> tuple[Place, ...]:
        """Every CPU's place, in the order of QEMU's indices (threads run fastest)."""
        return tuple(self._places())

    def _places(self) -> Iterator[Place]:
        per_node = self.total // self.nodes
        for index in range(self.total):
            rest, thread = divmod(index, self.threads)
            core_of_machine = rest
            rest, core = divmod(rest, self.cores)
            socket, die = divmod(rest, self.dies)
            cpu = index if self.siblings == "adjacent" else thread * self.cores_total + core_of_machine
            yield Place(cpu, index, socket, die, core, thread, index // per_node)

    def node_cpus(self) -> tuple[CPUSet, ...]:
        """The CPUs of each NUMA node that has some, by node id."""
        return tuple(CPUSet(p.cpu for p in self.places() if p.node == node) for node in range(self.nodes))

    def distance(self, one: int, other: int) -> int:
        """The ACPI distance between two NUMA nodes; nodes without CPUs are far from all others."""
        if one == other:
            return NEAR
        sockets = {node: {p.socket for p in self.places() if p.node == node} for node in (one, other)}
        return SAME_SOCKET if sockets[one] & sockets[other] else FAR

"""Promises of the reader on real kernels: from inside, the machine is what the emulator was told."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from hack.node.access import Box
from hack.node.machine import Machine, Place
from nri_cpu.cpuset import EMPTY, CPUSet
from tests.node.conftest import StartNode

# A boot alone may take minutes on a busy machine.
pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

PROGRAM = """
import json, pathlib
from nri_cpu.topology import read_topology

topology = read_topology(pathlib.Path("/"))
texts = lambda sets: [str(cpus) for cpus in sets]
print(json.dumps({
    "online": str(topology.online),
    "present": str(topology.present),
    "isolated": str(topology.isolated),
    "cores": texts(topology.cores),
    "l3_groups": texts(topology.l3_groups),
    "dies": texts(topology.dies),
    "sockets": {number: str(cpus) for number, cpus in topology.sockets.items()},
    "nodes": {number: str(cpus) for number, cpus in topology.nodes.items()},
    "offline_nodes": dict(topology.offline_nodes),
    "memory_nodes": topology.memory_nodes,
    "memoryless_nodes": topology.memoryless_nodes,
    "core_types": sorted({cpu.core_type for cpu in topology.cpus.values()}),
    "pcie_roots": {name: str(cpus) for name, cpus in topology.pcie_roots.items()},
}))
"""


@dataclass(frozen=True, slots=True)
class Expected:
    """The machine as the emulator was told, in the words of PROGRAM."""

    machine: Machine
    isolated: CPUSet = EMPTY

    def facts(self) -> dict[str, object]:
        machine = self.machine
        online = [place for place in machine.places() if place.cpu not in machine.offline]
        every = CPUSet(range(machine.total))
        return {
            "online": str(every - machine.offline),
            "present": str(every),
            "isolated": str(self.isolated),
            "cores": _sets(online, "socket", "die", "core"),
            "l3_groups": _sets(online, "socket", "die"),
            "dies": _sets(online, "socket", "die"),
            "sockets": _numbered(online, "socket"),
            "nodes": _numbered(online, "node"),
            "offline_nodes": {str(p.cpu): p.node for p in machine.places() if p.cpu in machine.offline},
            "memory_nodes": list(range(machine.nodes, machine.nodes + machine.memory_nodes)),
            "memoryless_nodes": list(machine.memoryless),
            "core_types": ["standard"],
            # The emulator's firmware calls no CPU nearer to it than others.
            "pcie_roots": {"pci0000:00": str(every - machine.offline)},
        }


def _groups(places: Iterable[Place], *facts: str) -> dict[tuple[int, ...], CPUSet]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for place in places:
        groups.setdefault(tuple(getattr(place, fact) for fact in facts), []).append(place.cpu)
    return {key: CPUSet(cpus) for key, cpus in groups.items()}


def _sets(places: Iterable[Place], *facts: str) -> list[str]:
    return [str(cpus) for cpus in sorted(_groups(places, *facts).values(), key=CPUSet.first)]


def _numbered(places: Iterable[Place], fact: str) -> dict[str, str]:
    return {str(number): str(cpus) for (number,), cpus in sorted(_groups(places, fact).items())}


def check(box: Box, expected: Expected) -> None:
    box.install_project()
    done = box.run(["python3", "-c", PROGRAM], timeout=120)
    assert json.loads(done.stdout) == expected.facts()
    assert done.stderr == b""  # nothing about a kernel of today is odd


@pytest.mark.fault("R11")
def test_two_sockets_of_two_dies_and_nodes_with_two_threads_a_core(start_node: StartNode) -> None:
    machine = Machine()
    check(start_node(machine), Expected(machine))


@pytest.mark.fault("R12", "H1")
def test_siblings_off_line(start_node: StartNode) -> None:
    machine = Machine(offline=CPUSet.parse("3,9,12-13"))
    check(start_node(machine), Expected(machine))


def test_one_socket_without_siblings_and_isolated_cpus(start_node: StartNode) -> None:
    machine = Machine(1, 1, 4, 1, 1, kernel_words=("isolcpus=1,3",))
    check(start_node(machine, cold=True), Expected(machine, isolated=CPUSet([1, 3])))


@pytest.mark.fault("R11")
def test_four_sockets_of_a_node_each_one_without_memory_and_a_node_of_memory(start_node: StartNode) -> None:
    machine = Machine(4, 1, 2, 2, 4, memory=256, memory_nodes=1, memoryless=(2,))
    check(start_node(machine, cold=True), Expected(machine))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memory": 128, "memoryless": (3,)}, "512 MiB"),
        ({"memory_nodes": -1}, "-1 nodes of memory"),
        ({"memoryless": (0,)}, r"\(0,\) not all are among 1-3"),
        ({"memory_nodes": 1, "memoryless": (1, 4)}, r"\(1, 4\) not all are among 1-3"),
    ],
)
def test_memory_that_no_machine_can_have_is_refused_with_the_reason(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Machine(**change)


def test_adjacent_siblings_on_cores_whose_ids_have_gaps_and_nodes_within_a_die(start_node: StartNode) -> None:
    machine = Machine(2, 1, 6, 2, 4, memory=256, siblings="adjacent", offline=CPUSet([7]))
    check(start_node(machine, cold=True), Expected(machine))

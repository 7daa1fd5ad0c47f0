"""Figures of the choice of CPUs on a machine with 512, beside the kubelet's; of reading a machine; of dra-cpu allocate.

Both allocators get the same requests in turn. Each is timed alone: the kubelet's in its own process, without what it
takes to ask it. What is free differs from request to request, where not everything is.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dra.allocation import AllocationOptions, Strategy, allocate
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Topology, read_topology
from tests.bench.figures import Latency
from tests.kubelet_allocator.driver import Kubelet
from tests.kubelet_allocator.ways import DISTRIBUTED, FULL_CORES, PACKED, PACKED_NO_L3, SPREAD, Way
from tests.unit.topology.machines import machine, write_sysfs

PEER = "kubelet"
COUNTS = (1, 2, 7, 16, 64, 100, 256)

_MOST = 1.0  # ms; also never more than the kubelet's
_MOST_TO_READ = {"512 CPUs": 50.0, "this machine": 3.0}
_MOST_FROM_SHELL = 150.0


class WrongChoiceError(Exception):
    """What was timed is not what was asked for."""


# Distributed by its default, which looks at L3 groups too.
_WAYS = (
    PACKED,
    PACKED_NO_L3,
    FULL_CORES,
    SPREAD,
    replace(DISTRIBUTED, options=AllocationOptions(Strategy.DISTRIBUTED)),
)


def big_machine() -> Topology:
    """512 CPUs: 2 sockets of 4 NUMA nodes of 4 L3 groups of 8 cores of 2 threads; CPUs n and n + 256 share a core."""
    return machine(sockets=2, cores=128, threads=2, nodes=4, l3_per_node=4)


def fragmented(topology: Topology, seed: int) -> CPUSet:
    """What is free of a machine on which about every fifth core is taken and every fifth is broken."""
    chance = random.Random(seed)
    free: list[int] = []
    for core in topology.cores:
        kept = chance.choices([0, 1, 2], [2, 2, 6])[0]
        free += chance.sample(list(core), kept)
    return CPUSet(free)


class Allocation:
    """Rounds of all cases; each round has `requests` of each case."""

    def __init__(self, directory: Path, requests: int) -> None:
        self._host = directory / "512"
        self._requests = requests
        self._topology = big_machine()
        self._rounds = 0
        self._cases = {
            (way, whole, count): Latency(
                f"{way.name}, {'whole' if whole else 'fragmented'}, {count} of 512",
                PEER,
                goal=_MOST,
                gated_by_peer=True,
            )
            for way in _WAYS
            for whole in (True, False)
            for count in _counts(way)
        }
        self._reads = {name: Latency(f"read the topology, {name}", goal=most) for name, most in _MOST_TO_READ.items()}
        self._shell = Latency("dra-cpu allocate, from shell to answer", goal=_MOST_FROM_SHELL)

    @property
    def rows(self) -> list[Latency]:
        return [*self._cases.values(), *self._reads.values(), self._shell]

    def round(self, kubelet: Kubelet) -> None:
        """Every case in turn, and in each case both allocators in turn."""
        if not self._rounds:
            for way, whole, count in self._cases:
                self._both(
                    kubelet, way, next(self._free_sets(whole)), count
                )  # code and tables that only a first call makes
        for (way, whole, count), latency in self._cases.items():
            for free in self._free_sets(whole):
                ours, peers = self._both(kubelet, way, free, count)
                latency.ours.append(ours)
                latency.peers.append(peers)
        if not self._host.exists():
            write_sysfs(self._host, self._topology)
        for name, root in (("512 CPUs", self._host), ("this machine", Path("/"))):
            for _ in range(self._requests):
                self._reads[name].ours.append(_milliseconds(read_topology, root))
        self._shell.ours.append(_milliseconds(self._from_shell))
        self._rounds += 1

    def _free_sets(self, whole: bool) -> Iterator[CPUSet]:
        for number in range(self._requests):
            yield self._topology.online if whole else fragmented(self._topology, self._rounds * self._requests + number)

    def _both(self, kubelet: Kubelet, way: Way, free: CPUSet, count: int) -> tuple[float, float]:
        """Milliseconds of our allocator and of the kubelet's."""
        begin = time.perf_counter()
        chosen = allocate(self._topology, free, count, way.options)
        ours = (time.perf_counter() - begin) * 1e3
        if len(chosen) != count or not chosen <= free:
            raise WrongChoiceError(f"{way.name}: {count} CPUs of {free}: {chosen}")
        answer = kubelet.allocate(self._topology, free, count, way.policy)
        return ours, answer.nanoseconds[0] / 1e6

    def _from_shell(self) -> None:
        command = [str(Path(sys.executable).with_name("dra-cpu")), "allocate", "--cpus=16", "--output=json"]
        done = subprocess.run(
            command, env=os.environ | {"HOST_ROOT": str(self._host)}, capture_output=True, text=True, check=False
        )
        if done.returncode or len(CPUSet.parse(json.loads(done.stdout)["cpus"])) != 16:
            raise WrongChoiceError(f"dra-cpu allocate: exit code {done.returncode}: {done.stdout}{done.stderr}")


def _counts(way: Way) -> list[int]:
    """All of COUNTS, where whole cores of two threads are taken the next that can be had."""
    return [count + count % 2 for count in COUNTS[1:]] if way.options.full_physical_cores else list(COUNTS)


def _milliseconds(call: Callable[..., object], *arguments: object) -> float:
    begin = time.perf_counter()
    call(*arguments)
    return (time.perf_counter() - begin) * 1e3

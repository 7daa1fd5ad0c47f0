"""Asks the kubelet's allocator from Python: Kubelet runs the program and keeps it for many requests."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Self

from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology import Topology
from tests.kubelet_allocator.build import program

LIMIT = 20.0  # seconds; a hundred times what the slowest answer takes on a busy machine


class NoAnswer(Exception):  # noqa: N818 - what happened, not an error of the caller
    """The allocator has not returned in time. It was ended; the next request starts it again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`cpus` is None where `error` says why. `nanoseconds`: what each round took in the allocator alone."""

    cpus: CPUSet | None
    error: str
    nanoseconds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """How the static policy is set up.

    `strategy`: packed, spread (its option distribute-cpus-across-cores) or distributed (distribute-cpus-across-numa);
    the rest are full-pcpus-only, prefer-align-cpus-by-uncorecache, align-by-socket and reservedSystemCPUs. These are
    never in what is free; full-pcpus-only looks at their cores.
    """

    strategy: str = "packed"
    full_pcpus_only: bool = False
    align_l3: bool = False
    align_by_socket: bool = False
    reserved: CPUSet = EMPTY


_NO_OPTIONS = Policy()


class Kubelet:
    """The CPU manager's static policy as a function: which CPUs a container gets, without hints from elsewhere."""

    def __init__(self) -> None:
        self._path = program()
        self._process: subprocess.Popen[str] | None = None
        self._topology: Topology | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the program, if it runs."""
        process, self._process, self._topology = self._process, None, None
        if process:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream
                stream.close()

    def allocate(
        self,
        topology: Topology,
        free: CPUSet,
        count: int,
        policy: Policy = _NO_OPTIONS,
        *,
        rounds: int = 1,
        limit: float = LIMIT,
    ) -> Answer:
        """What the kubelet's allocator answers; raises NoAnswer after `limit` seconds."""
        request: dict[str, Any] = {
            "free": str(free),
            "reserved": str(policy.reserved),
            "count": count,
            "strategy": policy.strategy,
            "fullPCPUsOnly": policy.full_pcpus_only,
            "alignL3": policy.align_l3,
            "alignBySocket": policy.align_by_socket,
            "rounds": rounds,
        }
        if topology is not self._topology:
            request["topology"] = as_the_kubelet_sees_it(topology)
        answer = self._ask(json.dumps(request), limit)
        self._topology = topology
        cpus = answer.get("cpus")
        taken = None if cpus is None else CPUSet.parse(cpus)
        return Answer(taken, answer.get("error", ""), tuple(answer.get("ns", ())))

    def _ask(self, line: str, limit: float) -> Mapping[str, Any]:
        if not self._process:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen([self._path], stdin=pipe, stdout=pipe, text=True)
        process = self._process
        assert process.stdin
        assert process.stdout
        process.stdin.write(line + "\n")
        process.stdin.flush()
        answer = _line(process.stdout, limit)
        if answer is None:
            self.close()
            raise NoAnswer(f"the kubelet's allocator has not returned within {limit:g} s: {line}")
        if not answer:
            raise RuntimeError(f"the kubelet's allocator ended with exit code {process.wait()}: {line}")
        found: Mapping[str, Any] = json.loads(answer)
        return found


def _line(stream: IO[str], limit: float) -> str | None:
    """The next line; None when there is none in time. One answer a request, so nothing else is ever buffered."""
    ready, _, _ = select.select([stream], [], [], limit)
    return stream.readline() if ready else None


def as_the_kubelet_sees_it(topology: Topology) -> list[dict[str, int]]:
    """The online CPUs with their objects' numbers: a core's is its lowest CPU, an L3 that isn't there is the socket's.

    As pkg/kubelet/cm/cpumanager/topology makes them of what cAdvisor finds (getUniqueCoreID, getUncoreCacheID).
    """
    core_of = {cpu: core.first() for core in topology.cores for cpu in core}
    return [
        {
            "cpu": cpu.id,
            "core": core_of[cpu.id],
            "socket": cpu.socket,
            "numa": cpu.numa_node,
            "uncore": cpu.socket if cpu.l3 is None else cpu.l3,
        }
        for cpu in topology.cpus.values()
    ]

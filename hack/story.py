"""The demo: a real node in a box, claims, pods, a thief, a crash. Each line is checked by the node's own /proc."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Mapping

from hack.node.cri.client import Container, Cri, CriError
from hack.node.errors import NodeError
from hack.node.launch import start
from hack.node.node import Node
from hack.product import Claim, Product, first_instruction
from nri_cpu.cpuset import CPUSet

_MAP = """
import json, pathlib, sys
from nri_cpu.topology import read_topology
from nri_cpu.topology.map import render
who, legend = json.loads(sys.argv[1])
print(render(read_topology(pathlib.Path("/")), {int(cpu): label for cpu, label in who.items()}, legend), end="")
"""


_FACTS = """
import pathlib
from nri_cpu.topology import read_topology
machine = read_topology(pathlib.Path("/"))
smt = "SMT" if max(map(len, machine.cores)) > 1 else "no SMT"
print(f"{len(machine.online)} CPUs, {len(machine.nodes)} NUMA nodes, {len(machine.sockets)} sockets, {smt}", end="")
"""


class NotTrueError(Exception):
    """A line of the story that the node does not bear out."""


class Story:
    """Tells and checks. `used` are the claims' containers, `others` the rest, as they live."""

    def __init__(self, node: Node, cri: Cri, clock: Clock) -> None:
        self.node = node
        self.cri = cri
        self.clock = clock
        self.product = Product(node)
        self.used: dict[str, tuple[Claim, Container]] = {}  # by the letter on the map
        self.others: list[Container] = []

    def tell(self, text: str) -> None:
        self.clock.tell(text)

    def check(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise NotTrueError(f"{what}: {found}, and not {expected}")

    def map(self) -> None:
        """Who may run where, by /proc/<pid>/status of every container; fails where two claims, or a claim and anybody
        else, meet."""
        containers = [container for _, container in self.used.values()] + self.others
        allowed = self.product.allowed(self.cri, containers)
        who: dict[int, str] = {}
        legend: dict[str, str] = {}
        for letter, (claim, container) in self.used.items():
            self.check(f"CPUs of {container.sandbox.name}", allowed[container.id], self.product.cpus_of(claim))
            legend[letter] = f"claim {claim.name}, pod {container.sandbox.name}"
            for cpu in allowed[container.id]:
                self.check(f"owners of CPU {cpu}", who.get(cpu, letter), letter)
                who[cpu] = letter
        for container in self.others:
            self.check(f"CPUs of {container.sandbox.name}", allowed[container.id], self.pool())
        self.show(self.node.run(["python3", "-c", _MAP, json.dumps([who, legend])], timeout=120).stdout.decode())

    def show(self, text: str) -> None:
        print(textwrap.indent(text.rstrip("\n"), " " * 10), flush=True)

    def pool(self) -> CPUSet:
        return self.node.online_cpus() - self.product.checkpoint().prepared

    # Chapters

    def the_machine(self) -> None:
        name, version = self.cri.version()
        kernel = self.node.run("uname -r").text
        cgroups = self.node.run("stat -fc %T /sys/fs/cgroup").text
        self.node.install_project()
        facts = self.node.run(["python3", "-c", _FACTS], timeout=120).text
        self.tell(f"A node: Linux {kernel}, {cgroups}, {name} {version}, {facts}.")
        self.product.start_companion()
        self.tell("dra-cpu runs: it has read the topology and serves the kubelet's socket.")
        self.product.start_plugin()
        self.tell("nri-cpu runs: it is in the runtime.")

    def shared_pods(self) -> None:
        for name in ("web", "batch"):
            self.others.append(self.cri.container(self.cri.sandbox(name), "main"))
        self.check("CPUs of shared pods", set(self.where(self.others)), {self.pool()})
        self.tell(f"Two pods without a claim run, each on all CPUs ({self.pool()}):")
        self.map()

    def claims(self) -> None:
        for letter, name, cpus, device in (("T", "trading", 4, "cpudevnuma001"), ("F", "firewall", 2, "cpudevnuma003")):
            claim = self.product.claim(name, cpus, device)
            begin = time.monotonic()
            devices = self.product.prepare(claim)
            took = (time.monotonic() - begin) * 1e3
            got = self.product.cpus_of(claim)
            self.tell(f"Claim {name}: {cpus} CPUs of {device}, prepared in {took:.0f} ms. It has CPUs {got}.")
            container = self.cri.container(self.cri.sandbox(f"{name}-pod"), "main", cdi_devices=devices)
            first = first_instruction(self.cri, container)
            self.check(f"first instruction of {name}-pod", first, got)
            self.used[letter] = claim, container
            self.tell(f"Pod {name}-pod runs. Its first instruction found Cpus_allowed_list: {first}")
        self.others.append(self.cri.container(self.cri.sandbox("late"), "main"))
        self.tell(f"One more pod without a claim starts. All such pods now run on {self.pool()}:")
        self.map()

    def a_thief(self) -> None:
        claim, _ = self.used["T"]
        sandbox = self.cri.sandbox("thief")
        self.tell("A second pod asks for the claim trading. The kubelet would show this:")
        self.refused(lambda: self.cri.container(sandbox, "main", cdi_devices=(f"dra.k8s.io/cpu=claim-{claim.uid}",)))
        self.tell("It tries again with the variable written by hand:")
        self.refused(lambda: self.cri.container(sandbox, "main", env={f"DRA_CPUSET_{claim.uid}": "2-3"}))
        self.cri.remove_sandbox(sandbox)

    def refused(self, attempt: Callable[[], object]) -> None:
        try:
            attempt()
        except CriError as error:
            self.check("the claim's name in the error", "default/trading" in error.text, True)
            self.show("\n".join(textwrap.wrap(error.text.rpartition("desc = ")[2], 90)))
            return
        raise NotTrueError("the container was created")

    def crashes(self) -> None:
        assert self.product.plugin
        claim, old = self.used["T"]
        before = self.pids()
        self.product.plugin.kill(signal.SIGKILL)
        self.product.start_plugin()
        self.node.restart_containerd()
        self.product.wait_for_plugin()
        self.check("pids of all containers", self.pids(), before)
        self.tell("nri-cpu was killed and started again, containerd too: nobody has moved, nobody was disturbed.")
        self.node.run(["kill", "-9", str(self.cri.pid(old))])
        devices = (f"dra.k8s.io/cpu=claim-{claim.uid}",)
        again = self.cri.container(old.sandbox, "main", cdi_devices=devices, attempt=1)
        self.check("first instruction after the crash", first_instruction(self.cri, again), self.product.cpus_of(claim))
        self.used["T"] = claim, again
        self.tell("The container of trading-pod was killed and created again: same CPUs.")
        self.map()

    def release(self) -> None:
        claim, container = self.used.pop("T")
        self.cri.remove_sandbox(container.sandbox)
        self.product.unprepare(claim)
        self.others.append(self.cri.container(self.cri.sandbox("last"), "main"))
        self.tell(f"Pod trading-pod is gone and its claim released. With the next container all share {self.pool()}:")
        self.map()

    def where(self, containers: list[Container]) -> list[CPUSet]:
        return list(self.product.allowed(self.cri, containers).values())

    def pids(self) -> Mapping[str, int]:
        containers = [container for _, container in self.used.values()] + self.others
        return {container.id: self.cri.pid(container) for container in containers}


class Clock:
    """Prints each step behind the seconds since the one before."""

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()

    def tell(self, text: str) -> None:
        now = time.monotonic()
        print(f"{now - self._last:7.1f} s {text}", flush=True)
        self._last = now

    @property
    def total(self) -> float:
        return time.monotonic() - self._begin


def main() -> int:
    clock = Clock()
    try:
        with start(report=clock.tell) as node, node.cri() as cri:
            story = Story(node, cri, clock)
            for chapter in (
                story.the_machine, story.shared_pods, story.claims, story.a_thief, story.crashes, story.release
            ):  # fmt: skip
                chapter()
    except (NotTrueError, NodeError, TimeoutError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    clock.tell(f"Every line was checked by the node's own /proc. The node is gone. {clock.total:.0f} s in all.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

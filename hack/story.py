"""The demo: a real node in a box, claims, pods, a thief, a crash. What it says of CPUs is checked on the node first."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hack.node.cri.client import Container, Cri, CriError
from hack.node.errors import NodeError
from hack.node.launch import start
from hack.node.node import Node
from hack.product import Claim, Product, first_instruction
from nri_cpu.cpuset import EMPTY, CPUSet

# Programs for the node: what machine it is, and a picture of who has which CPU.
_FACTS = """
import pathlib
from nri_cpu.topology import read_topology
machine = read_topology(pathlib.Path("/"))
smt = "SMT" if max(map(len, machine.cores)) > 1 else "no SMT"
print(f"{len(machine.online)} CPUs, {len(machine.nodes)} NUMA nodes, {len(machine.sockets)} sockets, {smt}", end="")
"""
_PICTURE = """
import json, pathlib, sys
from nri_cpu.topology import read_topology
from nri_cpu.topology.map import render
who, legend = json.loads(sys.argv[1])
print(render(read_topology(pathlib.Path("/")), {int(cpu): label for cpu, label in who.items()}, legend), end="")
"""


class NotTrueError(Exception):
    """A line of the story that the node does not bear out."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A claim, its CDI devices, and the container that has it."""

    claim: Claim
    devices: tuple[str, ...]
    container: Container


class Story:
    """Tells the chapters and checks them. `owners`, by their letters in the picture, and `others` are who lives."""

    def __init__(self, node: Node, cri: Cri, clock: Clock) -> None:
        self.node = node
        self.cri = cri
        self.tell = clock.tell
        self.product = Product(node)
        self.owners: dict[str, Owner] = {}
        self.others: list[Container] = []

    def the_machine(self) -> None:
        self.node.install_project()
        name, version = self.cri.version()
        kernel = self.node.run("uname -r").text
        cgroups = "cgroup v2" if "cgroup2" in self.node.run("grep /sys/fs/cgroup /proc/mounts").text else "cgroup v1"
        facts = self.node.run(["python3", "-c", _FACTS], timeout=120).text
        self.tell(f"A node: Linux {kernel}, {cgroups}, {name} {version.removesuffix('+unknown')}; {facts}.")
        self.product.start_companion()
        self.tell("dra-cpu runs: it has read the topology and serves the kubelet's socket.")
        self.product.start_plugin()
        self.tell("nri-cpu runs: it is in the container runtime.")

    def shared_pods(self) -> None:
        self.others += [self.pod(name) for name in ("web", "batch")]
        online = self.node.online_cpus()
        self.in_place()
        self.check("the shared pool", self.pool(), online)
        self.tell(
            f"Two pods without a claim run, each on all CPUs: {online}.\n"
            "In the picture a line is a NUMA node, a letter is a CPU, and letters side by side are one core."
        )
        self.picture()

    def claims(self) -> None:
        for letter, name, cpus, numa_node in (("T", "trading", 4, 1), ("F", "firewall", 2, 3)):
            claim = self.product.claim(name, cpus, f"cpudevnuma{numa_node:03}")
            begin = time.monotonic()
            devices = self.product.prepare(claim)
            took = (time.monotonic() - begin) * 1e3
            got = self.product.cpus_of(claim)
            self.check(f"number of CPUs of claim {name}", len(got), cpus)
            self.check(
                f"CPUs of claim {name} that are not of NUMA node {numa_node}", got - self.numa_node(numa_node), EMPTY
            )
            self.tell(f"Claim {name}: {cpus} CPUs of NUMA node {numa_node}. Prepared in {took:.0f} ms, it has {got}.")
            container = self.pod(f"{name}-pod", devices)
            first = first_instruction(self.cri, container)
            self.check(f"first instruction of {name}-pod", first, got)
            self.owners[letter] = Owner(claim, devices, container)
            self.in_place()
            self.tell(
                f"Pod {name}-pod runs with it. Its first instruction found Cpus_allowed_list: {first}\n"
                f"The running pods without a claim have moved by now, to {self.pool()}."
            )
        self.others.append(self.pod("late"))
        self.in_place()
        self.tell(f"One more pod without a claim starts, and runs where the others are: on {self.pool()}.")
        self.picture()

    def a_thief(self) -> None:
        owner = self.owners["T"]
        before = self.lives()
        sandbox = self.cri.sandbox("thief")
        error = self.refused(lambda: self.cri.container(sandbox, "main", cdi_devices=owner.devices))
        self.tell(f"A second pod asks for the claim trading. What the kubelet shows of it ends so:\n{error}")
        variable = {f"DRA_CPUSET_{owner.claim.uid}": str(self.product.cpus_of(owner.claim))}
        error = self.refused(lambda: self.cri.container(sandbox, "main", env=variable))
        self.tell(f"It tries again with the claim's variable written by hand:\n{error}")
        self.cri.remove_sandbox(sandbox)
        self.check("processes and CPUs of all containers", self.lives(), before)

    def crashes(self) -> None:
        assert self.product.plugin
        before = self.lives()
        self.product.plugin.kill(signal.SIGKILL)
        self.product.start_plugin()
        self.node.restart_containerd()
        self.product.wait_for_plugin()
        self.check("processes and CPUs of all containers", self.lives(), before)
        self.tell("nri-cpu was killed and started again, containerd too: nobody has moved, nobody was disturbed.")
        owner = self.owners["T"]
        self.node.run(["kill", "-9", str(self.cri.pid(owner.container))])
        again = self.cri.container(owner.container.sandbox, "main", cdi_devices=owner.devices, attempt=1)
        self.check("its first instruction", first_instruction(self.cri, again), self.product.cpus_of(owner.claim))
        self.owners["T"] = replace(owner, container=again)
        self.tell("The container of trading-pod was killed and created again: same CPUs.")
        self.picture()

    def release(self) -> None:
        owner = self.owners.pop("T")
        self.cri.remove_sandbox(owner.container.sandbox)
        self.product.unprepare(owner.claim)
        left = {owner.claim.uid for owner in self.owners.values()}
        self.check("prepared claims", set(self.product.checkpoint().claims), left)
        self.others.append(self.pod("last"))
        self.in_place()
        self.tell(f"Pod trading-pod is gone and its claim released. With the next container all share {self.pool()}:")
        self.picture()

    # What chapters are made of

    def pod(self, name: str, devices: tuple[str, ...] = ()) -> Container:
        """A pod of one container, running."""
        return self.cri.container(self.cri.sandbox(name), "main", cdi_devices=devices)

    def check(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise NotTrueError(f"{what}: {found}, and not {expected}")

    def refused(self, attempt: Callable[[], object]) -> str:
        """The error of an attempt that must fail with the claim's name: its end, which is our own."""
        try:
            attempt()
        except CriError as error:
            self.check("the claim's name in the error", "default/trading" in error.text, True)
            own = error.text.rpartition("desc = ")[2]
            return "\n".join(textwrap.wrap(own, 90, break_on_hyphens=False))
        raise NotTrueError("the container was created")

    def in_place(self) -> dict[int, str]:
        """By CPU: the letter of the claim that has it, by /proc/<pid>/status of every container. Raises NotTrueError
        where two claims, or a claim and anybody else, meet, and where anybody is not where it belongs."""
        allowed = self.product.allowed(self.cri, self.containers())
        who: dict[int, str] = {}
        for letter, owner in self.owners.items():
            name, found = owner.container.sandbox.name, allowed[owner.container.id]
            self.check(f"CPUs of {name}", found, self.product.cpus_of(owner.claim))
            for cpu in found:
                self.check(f"owners of CPU {cpu}", who.get(cpu, letter), letter)
                who[cpu] = letter
        pool = self.pool()
        for container in self.others:
            self.check(f"CPUs of {container.sandbox.name}", allowed[container.id], pool)
        return who

    def picture(self) -> None:
        """Show who may run where; checked as by `in_place`."""
        who = self.in_place()
        owners = self.owners.items()
        legend = {letter: f"claim {owner.claim.name}, pod {owner.container.sandbox.name}" for letter, owner in owners}
        show(self.node.run(["python3", "-c", _PICTURE, json.dumps([who, legend])], timeout=120).stdout.decode())

    def numa_node(self, number: int) -> CPUSet:
        """The CPUs of a NUMA node, by the machine's own sysfs."""
        return CPUSet.parse(self.node.read(f"/sys/devices/system/node/node{number}/cpulist").decode())

    def pool(self) -> CPUSet:
        """Where containers without a claim must be: all CPUs on line but those of prepared claims."""
        return self.node.online_cpus() - self.product.checkpoint().prepared

    def containers(self) -> list[Container]:
        return [owner.container for owner in self.owners.values()] + self.others

    def lives(self) -> dict[str, tuple[int, CPUSet]]:
        """By container id: its process, and where that may run."""
        allowed = self.product.allowed(self.cri, self.containers())
        return {container.id: (self.cri.pid(container), allowed[container.id]) for container in self.containers()}


class Clock:
    """Prints each step behind the seconds since the one before."""

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()

    def tell(self, text: str) -> None:
        now = time.monotonic()
        first, *rest = text.splitlines()
        print(f"{now - self._last:7.1f} s {first}", flush=True)
        show("\n".join(rest))
        self._last = now

    @property
    def total(self) -> float:
        return time.monotonic() - self._begin


def show(text: str) -> None:
    """Print below a step what belongs to it."""
    if text:
        print(textwrap.indent(text.rstrip("\n"), " " * 10), flush=True)


def main(arguments: Sequence[str] = ()) -> int:
    if arguments:
        asked = arguments[0] in ("-h", "--help")
        print(
            "usage: hack/demo, without arguments:",
            "claims on an emulated node, checked there. Or: make demo",
            file=sys.stdout if asked else sys.stderr,
        )
        return 0 if asked else 2
    clock = Clock()
    print("Seconds are those of each step. The machine is emulated: real ones are faster.", flush=True)
    try:
        with start(report=clock.tell) as node, node.cri() as cri:
            story = Story(node, cri, clock)
            story.the_machine()
            story.shared_pods()
            story.claims()
            story.a_thief()
            story.crashes()
            story.release()
    except (NotTrueError, NodeError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    clock.tell(
        "The node is gone. What the lines say of CPUs was checked on it first: where each container may run\n"
        "by the kernel's /proc, NUMA nodes and CPUs on line by its sysfs, claims by the checkpoint.\n"
        f"{clock.total:.0f} s in all."
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

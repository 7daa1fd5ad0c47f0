"""Claims on a real node: real kernel, real containerd. What is asserted comes from its own /proc and cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hack.node.access import Box
from hack.node.cri.client import Container, Cri, CriError
from hack.node.node import Node
from hack.product import CDI, CHECKPOINT, Claim, PrepareError, Product, first_instruction
from nri_cpu.cpuset import CPUSet

# Under emulation, on a busy machine, everything takes long.
pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

ALL = CPUSet.parse("0-15")


class Stage:
    """A node with both processes running, and a kubelet's hands."""

    def __init__(self, node: Box, cri: Cri) -> None:
        self.node = node
        self.cri = cri
        self.product = Product(node)

    def shared(self, pod: str) -> Container:
        return self.cri.container(self.cri.sandbox(pod), "shared")

    def claimed(self, pod: str, claim: Claim, devices: tuple[str, ...]) -> Container:
        """A pod whose container uses the claim; its first instruction must have been on the claim's CPUs."""
        container = self.cri.container(self.cri.sandbox(pod), "app", cdi_devices=devices)
        assert first_instruction(self.cri, container) == self.product.cpus_of(claim)
        return container

    def assert_in_place(self, exclusive: dict[Container, Claim], shared: list[Container]) -> None:
        """Invariants 2 and 3, by the kernel's word: /proc/<pid>/status and the cgroup of every first process."""
        checkpoint = self.product.checkpoint()
        pool = ALL - checkpoint.reserved - checkpoint.prepared
        allowed = self.product.allowed(self.cri, [*exclusive, *shared])
        for container in shared:
            assert allowed[container.id] == pool
        for container, claim in exclusive.items():
            assert allowed[container.id] == checkpoint.claims[claim.uid].cpus
            assert self.product.cgroup_cpus(self.cri.pid(container)) == checkpoint.claims[claim.uid].cpus


@pytest.fixture
def stage(node: Node) -> Iterator[Stage]:
    node.install_project()
    with ExitStack() as stack:
        stage = Stage(node, stack.enter_context(node.cri()))
        stage.product.start_companion()
        stage.product.start_plugin()
        yield stage


@pytest.mark.fault("A17", "A20", "A22", "R10", "B1", "P-11", "F-14")
def test_the_life_of_a_claim_on_a_real_node(stage: Stage) -> None:
    before = stage.shared("before")
    assert first_instruction(stage.cri, before) == ALL

    claim = stage.product.claim("two", cpus=2, device="cpudevnuma001")
    devices = stage.product.prepare(claim)
    assert len(stage.product.cpus_of(claim)) == 2
    exclusive = stage.claimed("owner", claim, devices)
    after = stage.shared("after")
    stage.assert_in_place({exclusive: claim}, [before, after])

    # A second user, in the same pod and in another one, is refused, and nothing changes.
    thief = stage.cri.sandbox("thief")
    for sandbox in (exclusive.sandbox, thief):
        with pytest.raises(CriError) as refused:
            stage.cri.container(sandbox, "second", cdi_devices=devices)
        assert f"default/two ({claim.uid})" in refused.value.text
        assert "container app of pod default/owner" in refused.value.text
    # So is one that writes the variable by hand: it gets nothing, and takes nothing.
    cpus = str(stage.product.cpus_of(claim))
    with pytest.raises(CriError, match=claim.uid):
        stage.cri.container(thief, "forger", env={f"DRA_CPUSET_{claim.uid}": cpus})
    stage.assert_in_place({exclusive: claim}, [before, after])

    # Killed and created again by the kubelet: same CPUs.
    stage.node.run(["kill", "-9", str(stage.cri.pid(exclusive))])
    again = stage.cri.container(exclusive.sandbox, "app", cdi_devices=devices, attempt=1)
    assert first_instruction(stage.cri, again) == stage.product.cpus_of(claim)
    stage.assert_in_place({again: claim}, [before, after])

    # Unprepared: with the next container the pool has grown back for all.
    stage.cri.remove_sandbox(again.sandbox)
    stage.product.unprepare(claim)
    late = stage.shared("late")
    assert first_instruction(stage.cri, late) == ALL
    stage.assert_in_place({}, [before, after, late])


@pytest.mark.fault("A19", "B2", "B14", "R3", "R6", "N7")
def test_killed_processes_and_a_restarted_containerd_leave_everybody_in_place_and_undisturbed(stage: Stage) -> None:
    claim, waiting = stage.product.claim("used", 2), stage.product.claim("waiting", 2, "cpudevnuma003")
    devices = {one: stage.product.prepare(one) for one in (claim, waiting)}
    exclusive, shared = stage.claimed("owner", claim, devices[claim]), stage.shared("other")
    pids = [stage.cri.pid(container) for container in (exclusive, shared)]

    assert stage.product.plugin
    stage.product.plugin.kill()
    with pytest.raises(PrepareError, match="nri-cpu"):
        stage.product.prepare(stage.product.claim("refused", 1))
    stray = stage.shared("stray")  # created while nobody was there to say where
    assert first_instruction(stage.cri, stray) == ALL
    stage.product.start_plugin()
    stage.assert_in_place({exclusive: claim}, [shared, stray])

    stage.node.restart_containerd()
    stage.product.wait_for_plugin()
    stage.assert_in_place({exclusive: claim}, [shared, stray])
    assert stage.product.companion
    stage.product.companion.kill()
    stage.product.start_companion()
    assert stage.product.prepare(waiting) == devices[waiting]
    late = stage.claimed("late", waiting, devices[waiting])
    stage.assert_in_place({exclusive: claim, late: waiting}, [shared, stray])
    assert [stage.cri.pid(container) for container in (exclusive, shared)] == pids


@pytest.mark.fault("K1", "B2")
def test_a_reboot_keeps_the_claim_and_its_cpus(stage: Stage) -> None:
    claim = stage.product.claim("kept", 4, "cpudevnuma002")
    stage.product.prepare(claim)
    cpus = stage.product.cpus_of(claim)
    stage.node.reboot()
    assert stage.node.run(f"ls {CDI}", check=False).text == ""
    stage.product.start_companion()
    stage.product.start_plugin()
    with stage.node.cri() as cri:
        stage.cri = cri
        devices = stage.product.prepare(claim)
        assert stage.product.cpus_of(claim) == cpus
        exclusive = stage.claimed("owner", claim, devices)
        stage.assert_in_place({exclusive: claim}, [stage.shared("other")])


def test_a_plugin_that_containerd_starts_itself_works_the_same(node: Node) -> None:
    node.install_project()
    node.write("/etc/nri/conf.d/10-nri-cpu.conf", f"apiVersion: v1alpha1\ncheckpoint: {CHECKPOINT}\n")
    node.run("mkdir -p /opt/nri/plugins && ln -s /usr/local/bin/nri-cpu /opt/nri/plugins/10-nri-cpu")
    node.restart_containerd()
    with node.cri() as cri:
        stage = Stage(node, cri)
        stage.product.start_companion()
        stage.product.wait_for_plugin()
        shared = stage.shared("before")
        claim = stage.product.claim("two", 2)
        exclusive = stage.claimed("owner", claim, stage.product.prepare(claim))
        stage.assert_in_place({exclusive: claim}, [shared, stage.shared("after")])
        with pytest.raises(CriError, match="container app of pod default/owner"):
            cri.container(cri.sandbox("thief"), "second", cdi_devices=(f"dra.k8s.io/cpu=claim-{claim.uid}",))
        node.restart_containerd()
        stage.product.wait_for_plugin()
        stage.assert_in_place({exclusive: claim}, [shared])
        assert "synchronized with containerd" in node.read("/var/log/nri-cpu.log").decode()


@pytest.mark.fault("A25")
def test_terminated_processes_leave_claims_and_containers_alone(stage: Stage) -> None:
    claim = stage.product.claim("kept", 2)
    exclusive = stage.claimed("owner", claim, stage.product.prepare(claim))
    assert stage.product.plugin
    assert stage.product.companion
    for daemon in (stage.product.plugin, stage.product.companion):
        daemon.kill(15)
    # Its metadata stays, since containers have it mounted.
    assert ".sock" not in stage.node.run("ls -a /var/lib/kubelet/plugins/dra.cpu").text
    assert claim.uid in stage.node.run(f"ls {CDI}").text
    stage.assert_in_place({exclusive: claim}, [])

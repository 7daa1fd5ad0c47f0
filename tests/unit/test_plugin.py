"""The plugin between NRI's messages, the policy and the files: what it keeps, what it tells, what it survives."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loguru import logger

from nri_cpu.checkpoint.locks import FileLock, held_by_other
from nri_cpu.cpuset import CPUSet
from nri_cpu.node_files import Files, Places
from nri_cpu.nri import nri_pb2 as pb
from nri_cpu.nri.hooks import HookError
from nri_cpu.nri.runtime import Runtime
from nri_cpu.plugin import Plugin
from nri_cpu.topology import TopologyError
from tests.protocol.our_plugin import Machine
from tests.unit.policy.desk import env_of, record

RUNTIME = Runtime.from_configure(pb.ConfigureRequest(runtime_name="containerd", runtime_version="v2.1.0"))


class Clock:
    """Holds what is to be done later until a test lets it be done."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay: float, work: Callable[[], None]) -> None:
        self.due.append((delay, work))

    def tick(self) -> list[float]:
        """Do all that is due now; the delays it had."""
        due, self.due = self.due, []
        for _, work in due:
            work()
        return [delay for delay, _ in due]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path / "machine")
    monkeypatch.setenv("HOST_ROOT", str(machine.root))
    return machine


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line)), format="{level} {message}", level="DEBUG")
    yield lines
    logger.remove(sink)


class Rig:
    def __init__(self, machine: Machine, reserved: str = "") -> None:
        self.machine = machine
        self.clock = Clock()
        self.files = Files(Places(machine.checkpoint, machine.root / "cdi", machine.root))
        assert self.files.running.acquire()
        self.plugin = Plugin(self.files, CPUSet.parse(reserved), self.clock)

    def create(self, name: str, pod: pb.PodSandbox | None = None, env: tuple[str, ...] = ()) -> str:
        pod = pod or pb.PodSandbox(id="s1", uid="u1", name="p1", namespace="default")
        cpus, _ = self.plugin.create_container(pod, pb.Container(id=name, name=name, pod_sandbox_id=pod.id, env=env))
        return str(cpus or "")


@pytest.mark.parametrize("text", ["reservedCPUs: '15'\n", "checkpoint: {checkpoint}\n", "minSharedCPUs: 1\n", " \n"])
def test_a_configuration_that_moves_nothing_forgets_no_claim(machine: Machine, text: str) -> None:
    claim = machine.prepare(record("A", "0,8"))
    rig = Rig(machine)
    rig.plugin.configure(RUNTIME, text.format(checkpoint=machine.checkpoint))
    assert rig.create("s1") == "1-7,9-15"
    assert rig.create("c1", env=env_of(claim)) == "0,8"


def test_reserved_cpus_of_the_runtimes_configuration_hold_until_a_checkpoint_tells_others(machine: Machine) -> None:
    machine.checkpoint.unlink()
    rig = Rig(machine)
    rig.plugin.configure(RUNTIME, "reservedCPUs: '15'\n")
    assert rig.create("s1") == "0-14"
    machine.reserved = CPUSet.parse("14")
    machine.write()
    assert rig.create("s2") == "0-13,15"


@pytest.mark.parametrize("key", ["cdiDir: {root}/elsewhere\n", "checkpoint: {root}/state/other.json\n"])
def test_the_lock_of_the_one_nri_cpu_is_held_throughout_a_new_configuration(machine: Machine, key: str) -> None:
    rig = Rig(machine)
    rig.plugin.configure(RUNTIME, key.format(root=machine.root))
    assert held_by_other(machine.checkpoint.with_name("nri-cpu.lock"))
    rig.plugin.close()
    assert not held_by_other(machine.checkpoint.with_name("nri-cpu.lock"))


def test_a_configuration_that_names_another_directory_takes_the_lock_there_and_follows_it(machine: Machine) -> None:
    rig = Rig(machine)
    moved: list[Path] = []
    rig.plugin.moved = moved.append
    other = machine.root / "other" / "checkpoint.json"
    rig.plugin.configure(RUNTIME, f"checkpoint: {other}\n")
    assert moved == [other.parent]
    assert held_by_other(other.with_name("nri-cpu.lock"))
    assert not held_by_other(machine.checkpoint.with_name("nri-cpu.lock"))


def test_a_configuration_that_names_a_directory_of_another_nri_cpu_changes_nothing_and_is_told(
    machine: Machine, log: list[str]
) -> None:
    claim = machine.prepare(record("A", "0,8"))
    rig = Rig(machine)
    other = machine.root / "other" / "checkpoint.json"
    other.parent.mkdir()
    taken = FileLock(other.with_name("nri-cpu.lock"))
    assert taken.acquire()
    rig.plugin.configure(RUNTIME, f"checkpoint: {other}\n")
    assert any("another nri-cpu holds" in line for line in log)
    assert rig.create("c1", env=env_of(claim)) == "0,8"
    rig.plugin.synchronized()
    assert not machine.plugin_is_in_the_runtime, "a wrong configuration keeps claims from being prepared"


@pytest.mark.fault("H5")
def test_a_claim_with_no_cpu_on_line_and_nothing_to_share_is_refused(machine: Machine) -> None:
    claims = [machine.prepare(record("A", "0-7")), machine.prepare(record("B", "8-15"))]
    rig = Rig(machine)
    machine.set_online("0-7")
    with pytest.raises(HookError, match="none of its CPUs 8-15 is on line"):
        rig.create("c1", env=env_of(claims[1]))
    assert rig.plugin.state.owners == {}
    assert rig.create("c0", env=env_of(claims[0])) == "0-7"


@pytest.mark.parametrize("text", ["", "\n", "all", "-1"])
def test_a_list_of_cpus_that_goes_bad_is_told_once_and_the_last_one_holds(
    machine: Machine, log: list[str], text: str
) -> None:
    rig = Rig(machine)
    machine.set_online("0-6,8-15")
    assert rig.create("s1") == "0-6,8-15"
    (machine.root / "sys/devices/system/cpu/online").write_text(text)
    for name in ("s2", "s3"):
        assert rig.create(name) == "0-6,8-15"
    assert sum("can't be read" in line for line in log) == 1
    machine.set_online("0-15")
    assert rig.create("s4") == "0-15"


def test_a_machine_without_a_list_of_cpus_is_no_machine(machine: Machine) -> None:
    (machine.root / "sys/devices/system/cpu/online").unlink()
    with pytest.raises(TopologyError, match="online"):
        Rig(machine)


def test_a_lock_that_cannot_be_had_is_tried_again_less_and_less_often_and_told_once(
    machine: Machine, log: list[str]
) -> None:
    rig = Rig(machine)
    lock = machine.checkpoint.with_name("synchronized.lock")
    lock.mkdir()
    rig.plugin.synchronized()
    delays = [delay for _ in range(12) for delay in rig.clock.tick()]
    assert delays == sorted(delays)
    assert delays[-1] > 1
    assert sum(str(lock) in line for line in log) == 1
    lock.rmdir()
    rig.clock.tick()
    assert machine.plugin_is_in_the_runtime
    rig.plugin.disconnected("gone")
    assert not machine.plugin_is_in_the_runtime


def test_a_pod_without_a_uid_gives_its_claim_up_as_any_other(machine: Machine) -> None:
    claim = machine.prepare(record("A", "0,8"))
    rig = Rig(machine)
    bare = pb.PodSandbox(id="bare", name="bare")
    rig.create("c1", bare, env_of(claim))
    rig.plugin.stop_container(bare, pb.Container(id="c1"))
    with pytest.raises(HookError):
        rig.create("c2", env=env_of(claim))
    rig.plugin.notify(pb.STOP_POD_SANDBOX, pb.PodSandbox(id="bare"), None)
    assert rig.create("c2", env=env_of(claim)) == "0,8"


def test_a_stopped_pod_stays_stopped_through_a_reconnect(machine: Machine) -> None:
    claim = machine.prepare(record("A", "0,8"))
    rig = Rig(machine)
    pod = pb.PodSandbox(id="s1", uid="u1", name="p1", namespace="default")
    rig.create("c1", pod, env_of(claim))
    rig.plugin.stop_container(pod, pb.Container(id="c1"))
    rig.plugin.notify(pb.STOP_POD_SANDBOX, pod, None)
    rig.plugin.disconnected("restart")
    rig.plugin.synchronize([pod], [])
    assert rig.create("c2", pb.PodSandbox(id="s2", uid="u2", name="p2"), env_of(claim)) == "0,8"


def test_an_owner_is_told_once_and_what_is_left_to_tell_is_told_at_the_end(machine: Machine, log: list[str]) -> None:
    claim = machine.prepare(record("A", "0,8"))
    rig = Rig(machine)
    pod = pb.PodSandbox(id="s1", uid="u1", name="p1", namespace="default")
    for number in range(2):
        name = f"c1-{number}"
        rig.plugin.create_container(pod, pb.Container(id=name, name="c1", pod_sandbox_id="s1", env=env_of(claim)))
        rig.plugin.stop_container(pod, pb.Container(id=name))
    rig.plugin.close()
    assert ["as its owner" in line for line in log if "gets CPUs" in line] == [True, False]
    assert machine.checkpoint.with_name("owners.json").exists()


@pytest.mark.fault("S2")
def test_a_checkpoint_that_is_not_there_yet_is_news_and_one_that_vanishes_an_error(
    machine: Machine, log: list[str]
) -> None:
    machine.checkpoint.unlink()
    rig = Rig(machine)
    rig.clock.tick()
    assert [line.split()[0] for line in log if "does not exist" in line] == ["INFO"]
    machine.write()
    rig.plugin.follow()
    machine.checkpoint.unlink()
    rig.plugin.follow()
    rig.clock.tick()
    assert [line.split()[0] for line in log if "does not exist" in line] == ["INFO", "ERROR"]
    machine.write()
    rig.plugin.follow()
    rig.clock.tick()
    assert any("is good again" in line for line in log)


def test_env_that_would_take_long_to_read_is_refused_unread(machine: Machine) -> None:
    claim = machine.prepare(record("A", "0,8"))
    rig = Rig(machine)
    cpuset, preparation = env_of(claim)
    for env in (
        (f"DRA_CPUSET_{claim.uid}=" + "0," * 2_000_000,),
        (cpuset + ",0" * 2_000_000, preparation),
        (*(f"DRA_CPUSET_{claim.uid}=8,0" for _ in range(1000)), preparation),
    ):
        with pytest.raises(HookError) as refused:
            rig.create("c1", env=env)
        assert len(str(refused.value)) < 300
    assert rig.create("c1", env=env_of(claim)) == "0,8"


def test_owners_that_could_not_be_written_are_written_later_and_told_once(machine: Machine, log: list[str]) -> None:
    claim = machine.prepare(record("A", "0,8"))
    rig = Rig(machine)
    owners = machine.checkpoint.with_name("owners.json")
    owners.mkdir()
    rig.create("c1", env=env_of(claim))
    for _ in range(3):
        rig.clock.tick()
    assert sum("owners.json" in line for line in log) == 1
    owners.rmdir()
    rig.clock.tick()
    assert owners.is_file()
    assert rig.clock.due == []


def test_names_that_no_kubernetes_gives_forge_no_log_line_and_spoil_no_file(machine: Machine, log: list[str]) -> None:
    claim = machine.prepare(record("A", "0,8"))
    rig = Rig(machine)
    odd = pb.PodSandbox(id="s\n1", uid="u\n1", name="p\nERROR forged", namespace="n\x1b[31m")
    rig.create("c\n1", odd, env_of(claim))
    rig.clock.tick()
    assert not any(line.startswith("ERROR forged") or "\x1b" in line for text in log for line in text.splitlines())
    assert machine.checkpoint.with_name("owners.json").is_file()
    rig.plugin.stop_container(odd, pb.Container(id="c\n1"))
    rig.plugin.notify(pb.REMOVE_POD_SANDBOX, odd, None)
    assert rig.create("c2", env=env_of(claim)) == "0,8"


@pytest.mark.parametrize("asked", ["0-15,", "0-15:16/16", "junk", "0-15"])
def test_a_request_for_cpus_in_whatever_words_is_answered_with_the_right_ones(machine: Machine, asked: str) -> None:
    rig = Rig(machine)
    machine.prepare(record("A", "0,8"))
    pod = pb.PodSandbox(id="s1", uid="u1")
    rig.plugin.synchronize([pod], [pb.Container(id="s1", pod_sandbox_id="s1")])
    resources = pb.LinuxResources(cpu=pb.LinuxCPU(cpus=asked))
    book = pb.Container(id="s1", linux=pb.LinuxContainer(resources=pb.LinuxResources(cpu=pb.LinuxCPU(cpus="1-7,9-15"))))
    updates = rig.plugin.update_container(pod, book, resources)
    assert [(str(cpus), list(ids)) for cpus, ids in updates] == [("1-7,9-15", ["s1"])]


def test_locks_are_taken_anew_when_their_directory_was_removed_and_made_again(machine: Machine) -> None:
    rig = Rig(machine)
    rig.plugin.synchronized()
    locks = [machine.checkpoint.with_name(f"{name}.lock") for name in ("nri-cpu", "synchronized")]
    assert [held_by_other(lock) for lock in locks] == [True, True]
    shutil.rmtree(machine.checkpoint.parent)
    machine.checkpoint.parent.mkdir()
    assert [held_by_other(lock) for lock in locks] == [False, False]
    rig.plugin.look()
    assert [held_by_other(lock) for lock in locks] == [True, True]


@pytest.mark.fault("N11")
def test_pods_of_virtual_machines_are_pinned_as_all_others(machine: Machine) -> None:
    claim = machine.prepare(record("A", "0,8"))
    rig = Rig(machine)
    pod = pb.PodSandbox(id="vm", uid="vm", name="vm", namespace="default", runtime_handler="kata")
    assert rig.create("c1", pod, env_of(claim)) == "0,8"
    assert rig.create("s1", pod) == "1-7,9-15"

"""The node in a box keeps its promises: it is the machine it was told to be, obeys, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hack.node import qemu
from hack.node.access import CONTAINERD, NRI, Box
from hack.node.cri import CriError
from hack.node.errors import ChannelError, CommandFailedError, QemuError
from hack.node.image import PROJECT
from hack.node.machine import Machine
from hack.node.node import Node
from hack.wait import wait_until
from nri_cpu.cpuset import CPUSet
from tests.node.conftest import StartNode

# A boot alone may take minutes on a busy machine.
pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

CPU = "/sys/devices/system/cpu"


def read_cpus(box: Box, pattern: str) -> dict[str, CPUSet]:
    """Files of the box that hold CPU lists: path -> set."""
    text = box.run(f"grep -H . {pattern}").text
    return {path: CPUSet.parse(cpus) for path, cpus in (line.split(":", 1) for line in text.splitlines())}


def assert_is(box: Box, machine: Machine) -> None:
    """The kernel in the box sees exactly this machine."""
    places = [p for p in machine.places() if p.cpu not in machine.offline]

    def cpus(*facts: str) -> dict[str, CPUSet]:
        groups: dict[tuple[int, ...], list[int]] = {}
        for p in places:
            groups.setdefault(tuple(getattr(p, fact) for fact in facts), []).append(p.cpu)
        return {str(p.cpu): CPUSet(groups[tuple(getattr(p, fact) for fact in facts)]) for p in places}

    def seen(file: str) -> dict[str, CPUSet]:
        found = read_cpus(box, f"{CPU}/cpu[0-9]*/{file}")
        return {path.removeprefix(f"{CPU}/cpu").split("/")[0]: value for path, value in found.items()}

    assert box.online_cpus() == CPUSet(p.cpu for p in places)
    assert seen("topology/package_cpus_list") == cpus("socket")
    assert seen("topology/die_cpus_list") == cpus("socket", "die")
    assert seen("topology/core_cpus_list") == cpus("socket", "die", "core")
    assert seen("cache/index3/shared_cpu_list") == cpus("socket", "die")
    nodes = read_cpus(box, "/sys/devices/system/node/node[0-9]*/cpulist")
    assert list(nodes.values()) == [cpus - machine.offline for cpus in machine.node_cpus()]


def test_the_machine_inside_is_the_machine_that_was_told(node: Node) -> None:
    assert_is(node, node.machine)
    assert node.run("cat /sys/devices/system/node/node0/distance").text == "10 12 32 32"


def test_an_odd_machine_boots_as_told(start_node: StartNode) -> None:
    machine = Machine(
        1, 1, 3, 2, 1, memory=1024, siblings="adjacent", offline=CPUSet([3]), kernel_words=("box.word=1",)
    )
    box = start_node(machine, cold=True)
    assert_is(box, machine)
    assert "box.word=1" in box.read("/proc/cmdline").decode()


def test_cpus_go_off_line_and_come_back(node: Node) -> None:
    node.offline(CPUSet.parse("3,11"))
    assert node.online_cpus() == CPUSet.parse("0-2,4-10,12-15")
    node.online(CPUSet.parse("11"))
    assert node.online_cpus() == CPUSet.parse("0-2,4-15")


def test_cpus_of_the_machine_that_are_off_line_are_so_in_a_copy(start_node: StartNode) -> None:
    machine = Machine(offline=CPUSet.parse("9"))
    assert_is(start_node(machine), machine)


def test_a_command_gives_its_code_and_both_outputs(node: Node) -> None:
    done = node.run("echo out; echo err >&2; exit 3", check=False)
    assert (done.code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert node.run(["sh", "-c", "kill -9 $$"], check=False).code == -signal.SIGKILL
    with pytest.raises(CommandFailedError, match=r"'false-friend' ended with 127: .*not found"):
        node.run("false-friend")
    with pytest.raises(ChannelError, match="No such file or directory: '/no/such/program'"):
        node.run(["/no/such/program"])


def test_a_command_gets_all_of_a_large_input_or_ends_before(node: Node) -> None:
    data = os.urandom(3 << 20)
    assert node.run(["cat"], stdin=data).stdout == data
    assert node.run(["head", "-c", "10"], stdin=data).stdout == data[:10]


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(node: Node) -> None:
    with pytest.raises(ChannelError, match="had not ended after 1 s"):
        node.run("sleep 1234 & sleep 1234", timeout=1)
    wait_until("the end of the command", lambda: node.run("pidof sleep", check=False).code, 20)


def test_a_daemon_outlives_the_call_and_dies_by_signal(node: Node) -> None:
    daemon = node.daemon("talker", ["sh", "-c", "echo $WORD; exec sleep 1000"], {"WORD": "hello"})
    wait_until("the daemon's word", lambda: daemon.output() == "hello\n", 20)
    assert daemon.alive()
    daemon.kill(signal.SIGTERM)
    assert not daemon.alive()


def test_files_go_in_and_come_out_unchanged(node: Node, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "data").write_bytes(data := os.urandom(100_000))
    (tree / "run").write_text("#!/bin/sh\necho ran\n")
    (tree / "run").chmod(0o755)
    node.push([tree], "/opt/new place")
    assert node.run(["/opt/new place/tree/run"]).text == "ran"
    node.pull("/opt/new place/tree", tmp_path / "back")
    assert (tmp_path / "back/tree/inner/data").read_bytes() == data
    node.write("/etc/made here/it's", b"\x00\xff", 0o600)
    assert node.read("/etc/made here/it's") == b"\x00\xff"


def test_a_reboot_keeps_the_disk_and_nothing_else(node: Node) -> None:
    boot = node.channel.hello()
    node.run("echo kept > /root/file; echo lost > /run/file; sleep 1000 > /dev/null 2>&1 &")
    node.reboot()
    assert node.channel.hello() != boot
    assert node.run("cat /root/file; ls /run/file; pidof sleep", check=False).stdout == b"kept\n"
    assert_is(node, node.machine)
    with node.cri() as cri:
        assert cri.images() == ["localhost/box:1"]


def test_containers_go_on_while_containerd_restarts(node: Node) -> None:
    with node.cri() as cri:
        container = cri.container(cri.sandbox("pod"), "it")
        pid = cri.pid(container)
        node.restart_containerd()
        cri.wait_until_ready()
        assert cri.pid(container) == pid
        node.restart_containerd(signal.SIGKILL)
        cri.wait_until_ready()
        assert cri.pid(container) == pid


def test_a_container_tells_the_cpus_of_its_first_instruction(node: Node) -> None:
    with node.cri() as cri:
        sandbox = cri.sandbox("pod", uid="a-uid", namespace="ns", qos="guaranteed")
        container = cri.container(sandbox, "it", resources={"cpuset_cpus": "2,10", "cpuset_mems": "0"})
        wait_until("the container's word", lambda: "Cpus_allowed_list" in cri.logs(container), 20)
        status = dict(line.split(":\t", 1) for line in cri.logs(container).splitlines())
        assert (status["Name"], status["Cpus_allowed_list"], status["Threads"]) == ("first", "2,10", "1")
        assert cri.exec(container, "/bin/sh", "-c", "echo $0; exit 4") == (4, "/bin/sh\n", "")
        cri.update(container, cpuset_cpus="5")
        assert "Cpus_allowed_list:\t5\n" in node.read(f"/proc/{cri.pid(container)}/status").decode()
        assert "/kubepods/poda-uid/" in node.read(f"/proc/{cri.pid(container)}/cgroup").decode()


def test_what_the_runtime_refuses_comes_with_its_own_words(node: Node) -> None:
    with node.cri() as cri:
        sandbox = cri.sandbox("pod")
        with pytest.raises(CriError) as refused:
            cri.container(sandbox, "it", cdi_devices=["vendor.example/thing=none"])
        assert "unresolvable CDI devices vendor.example/thing=none" in refused.value.text
        with pytest.raises(CriError) as missing:
            cri.start("no-such-container")
        assert missing.value.code == "NOT_FOUND"


def test_several_clients_use_a_served_socket_and_all_threads_end(node: Node) -> None:
    before = threading.active_count()
    with node.cri() as one, node.cri() as other:
        assert one.version() == other.version()
    with node.serve(NRI) as path:
        assert path.is_socket()
    assert not path.exists()
    wait_until("the end of the relays' threads", lambda: threading.active_count() <= before, 20)


def test_a_client_of_a_socket_that_is_not_there_is_let_go(node: Node) -> None:
    with node.serve("/run/nobody.sock") as path, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(path))
        assert client.recv(1) == b""


def test_a_server_that_ends_ends_its_clients(node: Node) -> None:
    with node.serve(CONTAINERD) as path, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(path))
        node.run("killall -9 containerd")
        while client.recv(1000):
            pass


def test_the_product_runs_inside_with_fast_protobuf(node: Node) -> None:
    node.install_project()
    assert node.run("nri-cpu --version").text.startswith("nri-cpu ")
    which = "from google.protobuf.internal import api_implementation as a; print(a.Type())"
    assert node.run(["python3", "-c", which]).text == "upb"


def test_copies_are_of_one_machine_and_go_their_own_ways(start_node: StartNode) -> None:
    one, other = start_node(), start_node()
    one.write("/root/mine", "1")
    assert other.run("ls /root/mine", check=False).code
    assert one.read("/proc/sys/kernel/random/uuid") != other.read("/proc/sys/kernel/random/uuid")


def test_the_clock_of_a_copy_is_right(node: Node) -> None:
    before = int(subprocess.check_output(["date", "+%s"]))
    assert before - 1 <= int(node.run("date +%s").text) <= int(subprocess.check_output(["date", "+%s"])) + 1


OWNER = """
import sys
from hack.node.launch import start
node = start()
print(node.directory, flush=True)
sys.stdin.read()
"""


def owner_of_a_box() -> tuple[subprocess.Popen[str], Path, list[int]]:
    """A process that owns a box, the box's directory, and the processes that run the box."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=PROJECT, stdin=-1, stdout=-1, text=True)
    assert owner.stdout
    directory = Path(owner.stdout.readline().strip())
    assert directory.is_dir()
    return owner, directory, processes_of(directory)


def processes_of(directory: Path) -> list[int]:
    """Keeper first, then QEMU: the processes whose command line names this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(directory).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sorted(found)


def end(owner: subprocess.Popen[str]) -> None:
    owner.kill()
    owner.communicate()


def test_nothing_is_left_of_a_box_whose_owner_is_killed() -> None:
    owner, directory, processes = owner_of_a_box()
    assert len(processes) == 2
    end(owner)
    wait_until("the end of the box", lambda: not processes_of(directory) and not directory.exists(), 20)


def test_nothing_is_left_of_a_box_whose_keeper_is_killed() -> None:
    owner, directory, (keeper, _qemu) = owner_of_a_box()
    os.kill(keeper, signal.SIGKILL)
    wait_until("the end of QEMU", lambda: not processes_of(directory), 20)
    end(owner)
    assert directory.exists()
    process = qemu.Process()  # the next one clears up
    assert not directory.exists()
    process.close()
    assert not process.directory.exists()


def test_a_box_that_is_gone_says_so(node: Node) -> None:
    os.kill(processes_of(node.directory)[-1], signal.SIGKILL)
    with pytest.raises(ChannelError, match="command channel"):
        node.run("true")
    with pytest.raises(QemuError, match="the box is gone"):
        node.wait_for_boot()

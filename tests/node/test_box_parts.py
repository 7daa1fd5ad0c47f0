"""The parts of the node in a box that need no node: machines, tables, the cache, relays, errors, the command line."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.kubelet import dra_pb2 as pb
from hack import product
from hack.node import acpi, cpio, debian, image, kernel, qemu, qmp, tools
from hack.node.__main__ import main
from hack.node.access import Box, Daemon
from hack.node.channel import Result
from hack.node.cri.client import log_text
from hack.node.errors import BuildError, ChannelError, NodeError, QemuError, ToolsMissingError
from hack.node.guest import frames
from hack.node.machine import Machine
from hack.node.relay import Relay
from nri_cpu.cpuset import CPUSet

counts = st.integers(1, 3)
machines = st.builds(
    lambda sockets, dies, cores, threads, siblings: Machine(sockets, dies, cores, threads, sockets, siblings=siblings),
    *(counts, counts, counts, counts),
    st.sampled_from(["split", "adjacent"]),
)


@given(machines)
def test_every_cpu_of_a_machine_has_one_place(machine: Machine) -> None:
    places = machine.places()
    assert sorted(p.cpu for p in places) == sorted(p.index for p in places) == list(range(machine.total))
    assert len({(p.socket, p.die, p.core, p.thread) for p in places}) == machine.total
    assert sorted(cpu for node in machine.node_cpus() for cpu in node) == list(range(machine.total))
    nodes = range(machine.nodes)
    assert all(machine.distance(one, other) == machine.distance(other, one) for one in nodes for other in nodes)


@given(machines)
def test_the_table_lists_cpus_in_the_order_of_their_ids(machine: Machine) -> None:
    table = acpi.madt(machine)
    length, checksum_covers = struct.unpack_from("<I", table, 4)[0], sum(table) & 255
    assert (table[:4], length, checksum_covers) == (b"APIC", len(table), 0)
    listed = [table[44 + 8 * n : 52 + 8 * n] for n in range(machine.total)]
    places = sorted(machine.places(), key=lambda p: p.cpu)
    assert [entry[2] for entry in listed] == [p.index for p in places]
    assert len({entry[3] for entry in listed}) == machine.total


def test_the_usual_machine_numbers_siblings_as_firmware_does() -> None:
    split, adjacent = Machine(), Machine(siblings="adjacent")
    assert [str(cpus) for cpus in split.node_cpus()] == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    assert [str(cpus) for cpus in adjacent.node_cpus()] == ["0-3", "4-7", "8-11", "12-15"]
    assert [split.distance(0, node) for node in range(4)] == [10, 12, 32, 32]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Machine(threads=0), "at least one"),
        (lambda: Machine(nodes=3), "8 cores can't be split equally over 3"),
        (lambda: Machine(sockets=8, cores=16, nodes=1), "APIC ids up to 254"),
        (lambda: Machine(memory=64), "512 MiB"),
        (lambda: Machine(offline=CPUSet([0])), "CPUs 1-15 can be off line, 0 can't"),
        (lambda: Machine(offline=CPUSet([16])), "CPUs 1-15 can be off line, 16 can't"),
        (lambda: Machine(siblings=cast("Any", "mixed")), "split or adjacent, not mixed"),
    ],
)
def test_a_machine_that_cannot_be_is_refused_with_the_reason(make: Callable[[], Machine], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_an_archive_holds_names_and_contents_where_the_kernel_looks_for_them() -> None:
    archive = cpio.archive({"d": None, "d/file": b"content", "empty": b""})
    found: dict[str, bytes] = {}
    start = 0
    while "TRAILER!!!" not in found:
        assert archive[start : start + 6] == b"070701"
        fields = [int(archive[start + 6 + 8 * n : start + 14 + 8 * n], 16) for n in range(13)]
        size, name_size = fields[6], fields[11]
        body = (start + 110 + name_size + 3) & ~3
        found[archive[start + 110 : start + 109 + name_size].decode()] = archive[body : body + size]
        start = (body + size + 3) & ~3
    assert found == {"d": b"", "d/file": b"content", "empty": b"", "TRAILER!!!": b""}
    assert len(archive) % 512 == 0


def test_a_missing_program_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tools.TO_RUN, "no-such-program", "its-package")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ToolsMissingError, match=r"as root: apt-get install --no-install-recommends its-package$"):
        tools.need(["no-such-program", "sh"])


def test_packages_that_apt_does_not_have_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text(
        '#!/bin/sh\ncase "$*" in *update*) ;; *) echo "E: Unable to locate package x" >&2; exit 100 ;; esac\n'
    )
    apt.chmod(0o755)
    monkeypatch.setitem(tools.TO_RUN, "no-such-program", "its-package")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ToolsMissingError, match=r"Unable to locate package x\); install by hand .*its-package$"):
        tools.need(["no-such-program"])


def test_a_build_step_that_fails_says_which_and_why() -> None:
    with pytest.raises(BuildError, match=r"sh -c .* failed with 3: why"):
        tools.run(["sh", "-c", "echo why >&2; exit 3"])


def test_the_archive_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NRI_CPU_DEBIAN_ARCHIVE", "http://archive.example/debian")
    assert debian.archive() == "http://archive.example/debian"


def test_a_machine_without_a_debian_archive_is_told_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NRI_CPU_DEBIAN_ARCHIVE", raising=False)
    monkeypatch.setattr(debian, "run", lambda _command: b"http://archive.example/other/ main noble\n")
    with pytest.raises(BuildError, match="NRI_CPU_DEBIAN_ARCHIVE="):
        debian.archive()


def test_a_kernel_packed_in_an_unknown_way_is_refused() -> None:
    with pytest.raises(BuildError, match="not known here"):
        kernel.elf_of(bytes(4096))


def test_the_box_has_what_the_product_needs_at_run_time() -> None:
    names = [requirement.split(">")[0] for requirement in image.requirements()]
    assert {"protobuf", "loguru", "inotify-simple", "PyYAML", "grpcio"} <= set(names)
    assert "kubernetes" not in names


@contextmanager
def echo_server(path: Path) -> Iterator[None]:
    """A unix socket that sends back what it gets, one client after the other, until the context ends."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                frames.pump(client, client)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def client_of(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    client.connect(str(path))
    return client


def test_a_relay_carries_bytes_and_ends_of_streams_both_ways(tmp_path: Path) -> None:
    target, served = tmp_path / "target", tmp_path / "served"
    with echo_server(target), Relay(served, lambda: client_of(target)), client_of(served) as client:
        client.sendall(b"hello")
        client.shutdown(socket.SHUT_WR)
        assert client.makefile("rb").read() == b"hello"


def test_a_relay_that_ends_takes_its_connections_and_threads_along(tmp_path: Path) -> None:
    target, served = tmp_path / "target", tmp_path / "served"
    before = threading.active_count()
    with ExitStack() as stack:
        stack.enter_context(echo_server(target))
        with Relay(served, lambda: client_of(target)):
            client = stack.enter_context(client_of(served))
            client.sendall(b"x")
            assert client.recv(1) == b"x"
        assert client.recv(1) == b""
        assert threading.active_count() == before + 1  # the echo server
        assert not served.exists()


def refuse() -> socket.socket:
    raise ChannelError("refused")


def test_a_relay_lets_clients_go_when_there_is_nobody_behind(tmp_path: Path) -> None:
    with Relay(tmp_path / "served", refuse), client_of(tmp_path / "served") as client:
        assert client.recv(1) == b""


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x09\0\0\0\0", b"\x01\xff\xff\xff\xff", b"\x01\0\0\0\x05abc"])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(frames.BrokenChannelError):
            frames.receive(ours)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff"])
def test_an_answer_that_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(frames.BrokenChannelError):
        frames.decode(data)


@contextmanager
def monitor(*answers: bytes) -> Iterator[qmp.Monitor]:
    """A monitor whose QEMU says all this at once, and ends."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"".join(answer + b"\n" for answer in answers))
        theirs.shutdown(socket.SHUT_WR)
        opened = qmp.Monitor(ours)
        yield opened
        opened.close()


def test_a_monitor_skips_events_and_names_what_qemu_refuses() -> None:
    said = (b'{"QMP": {}}', b'{"return": {}}', b'{"event": "RESUME"}', b'{"error": {"desc": "no"}}')
    with monitor(*said) as opened:
        opened.open()
        with pytest.raises(QemuError, match="QEMU refused cont: no"):
            opened.execute("cont")
        with pytest.raises(QemuError, match="QEMU has ended"):
            opened.execute("cont")


def test_a_frozen_state_may_lie_at_any_path(tmp_path: Path) -> None:
    path = tmp_path / "it's a place"
    path.write_bytes(b"frozen")
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b'{"return": {"status": "completed"}}\n' * 4)
        opened = qmp.Monitor(ours)
        opened.load(str(path))
        opened.close()
        asked = [json.loads(line) for line in theirs.makefile("rb")]
    (uri,) = (one["arguments"]["uri"] for one in asked if one["execute"] == "migrate-incoming")
    assert subprocess.check_output(["sh", "-c", uri.removeprefix("exec:")]) == b"frozen"


def test_the_port_is_the_one_that_the_host_chose() -> None:
    line = "TCP[HOST_FORWARD]  13       127.0.0.1 38381       10.0.2.15  7000     0     0"
    with monitor(json.dumps({"return": f"Hub -1 (net):\r\n  {line}\r\n"}).encode()) as opened:
        assert opened.forwarded_port() == 38381
    with monitor(b'{"return": "nothing"}') as opened, pytest.raises(QemuError, match="does not tell which port"):
        opened.forwarded_port()


def test_a_box_that_cannot_start_says_why_and_leaves_nothing() -> None:
    process = qemu.Process()
    disk = process.directory / "no-such-disk"
    files = process.directory
    (files / "initrd.img").touch()
    with pytest.raises(QemuError, match="QEMU did not start: "):
        process.start(Machine(), files, disk, qemu.Memory())
    process.close()
    assert not process.directory.exists()


def test_a_companion_that_does_not_answer_is_told_with_the_call(tmp_path: Path) -> None:
    asked, answer = pb.NodePrepareResourcesRequest(), pb.NodePrepareResourcesResponse
    with (
        Relay(tmp_path / "served", refuse),
        grpc.insecure_channel(f"unix:{tmp_path / 'served'}") as channel,
        pytest.raises(NodeError, match="dra-cpu has not answered NodePrepareResources: UNAVAILABLE: "),
    ):
        product.call(channel, "NodePrepareResources", asked, answer)


def test_logs_of_containers_join_the_parts_of_long_lines() -> None:
    raw = b"2026-01-01T00:00:00Z stdout P one \n2026-01-01T00:00:00Z stdout F two\n2026-01-01T00:00:00Z stderr F \n"
    assert log_text(raw) == "one two\n\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--box", "/no/such", "exec", "true"], 1, "there is no running box in /no/such"),
        (["up", "--nodes", "3"], 2, "8 cores can't be split equally over 3 NUMA nodes"),
        (["exec"], 2, "exec what?"),
    ],
)
def test_the_command_line_says_in_one_line_what_is_wrong(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    said = capsys.readouterr().err
    assert said.startswith("box: ")
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["fly"], ["up", "--offline", "x"], ["up", "--siblings", "mixed"]])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: hack/box" in capsys.readouterr().err


class OneProcess:
    """A box that has one process, of id 7: its boot id, state and start time."""

    def __init__(self, boot: str, state: str, born: int) -> None:
        self.facts = f"{boot}\n7 (a ) b) {state} {' '.join(['1'] * 18)} {born} 1\n"

    def run(self, command: list[str], *, check: bool) -> Result:
        there = command[-1] == "/proc/7/stat"
        return Result(not there, self.facts.encode() if there else b"one\n", b"")


@pytest.mark.parametrize(
    ("pid", "process", "alive"),
    [
        (7, OneProcess("one", "S", 100), True),
        (7, OneProcess("one", "Z", 100), False),
        (7, OneProcess("one", "S", 101), False),
        (7, OneProcess("two", "S", 100), False),
        (8, OneProcess("one", "S", 100), False),
    ],
)
def test_a_daemon_is_the_process_that_was_started_and_none_that_has_its_id_later(
    pid: int, process: OneProcess, alive: bool
) -> None:
    assert Daemon(cast("Box", process), "talker", pid, "/none", "one", "100").alive() == alive

"""Promises of nri-cpu topology: a map that fits, JSON with stable names, and no need of root, cluster or checkpoint."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from nri_cpu import cli, command
from nri_cpu.checkpoint.codec import checkpoint_to_bytes
from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Cpu, Topology
from tests.captures.machines import NAMES, capture
from tests.unit.checkpoint.samples import BOOT, CLAIM_A, CLAIM_B
from tests.unit.ordinary import as_ordinary_user, out_of_reach
from tests.unit.topology.machines import box, machine, t1, write_sysfs


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str


class Drawer:
    """`nri-cpu topology` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], directory: Path) -> None:
        self._capsys = capsys
        self.checkpoint = directory / "state/checkpoint.json"
        self.config = directory / "config.yaml"
        self.host = write_sysfs(directory / "host", box())

    def has(self, *claims: ClaimRecord, reserved: str = "") -> None:
        self.checkpoint.parent.mkdir(exist_ok=True)
        held = Checkpoint(CPUSet.parse(reserved), {claim.uid: claim for claim in claims})
        self.checkpoint.write_bytes(checkpoint_to_bytes(held, BOOT))

    def __call__(self, *arguments: str) -> Done:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOST_ROOT", str(self.host))
            patch.setattr(command, "CONFIG", self.config)
            try:
                code = cli.main(["topology", "--checkpoint", str(self.checkpoint), *arguments])
            except SystemExit as error:
                code = int(str(error.code))
        return Done(code, *self._capsys.readouterr())

    def json(self) -> Any:
        done = self("-o", "json")
        assert done.code == 0
        return json.loads(done.out)


@pytest.fixture
def topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    yield Drawer(capsys, tmp_path)
    logger.remove()
    logger.add(sys.__stderr__)  # type: ignore[arg-type]  # it is there


def test_without_a_checkpoint_it_is_the_machine(topology: Drawer) -> None:
    assert topology() == Done(
        0,
        "16 CPUs: 2 sockets, 4 NUMA nodes, 4 L3 caches, 8 cores of 2 threads.\n"
        "A column is a core, its threads below each other.\n"
        "\n"
        "socket 0\n"
        "  node 0      0   1\n"
        "              8   9\n"
        "  node 1      2   3\n"
        "             10  11\n"
        "socket 1\n"
        "  node 2      4   5\n"
        "             12  13\n"
        "  node 3      6   7\n"
        "             14  15\n",
        "",
    )


def test_a_bar_is_explained_where_there_is_one(topology: Drawer, tmp_path: Path) -> None:
    topology.host = write_sysfs(tmp_path / "other", machine(cores=4, threads=2, l3_per_node=2))
    out = topology().out
    assert "A column is a core, its threads below each other; | is between L3 caches.\n" in out
    assert "  node 0     0  1  | 2  3\n" in out


def test_nodes_that_share_an_l3_are_told(topology: Drawer, tmp_path: Path) -> None:
    cpus = [Cpu(n, 0, 0, -1, n, n // 2, n // 4) for n in range(8)]
    topology.host = write_sysfs(tmp_path / "other", Topology.of(cpus))
    assert "NUMA nodes that share an L3 cache: 0 and 1; 2 and 3.\n" in topology().out


def test_claims_and_reserved_cpus_are_drawn_and_told(topology: Drawer) -> None:
    topology.has(CLAIM_A, CLAIM_B, reserved="7")
    out = topology().out
    assert "  node 0      0A  1B\n              8A  9B\n" in out
    assert "  node 3      6   7R\n             14  15\n" in out
    assert out.endswith("A default/two-cpus: 0,8   B default/other: 1,9   a number alone: shared\nR reserved\n")


def test_without_a_checkpoint_reserved_cpus_are_those_of_the_configuration(topology: Drawer) -> None:
    topology.config.write_text("reservedCPUs: 0,8\n")
    assert "  node 0      0R  1\n              8R  9\n" in topology().out


def test_cpus_off_line_and_isolated_are_marked(topology: Drawer, tmp_path: Path) -> None:
    topology.host = write_sysfs(tmp_path / "other", t1(offline=[15]))
    (topology.host / "sys/devices/system/cpu/isolated").write_text("2,10\n")
    topology.has()
    out = topology().out
    assert "0   1   2i  3   4   5   6   7  15x\n" in out
    assert "Isolated by the kernel (isolcpus): CPUs 2,10.\n" in out
    topology.host = write_sysfs(tmp_path / "wide", machine(cores=200))
    (topology.host / "sys/devices/system/cpu/isolated").write_text(",".join(map(str, range(0, 200, 2))))
    assert max(map(len, topology().out.splitlines())) <= 80
    assert "i isolated by the kernel" in out


def claims(number: int) -> list[ClaimRecord]:
    uid = "11111111-aaaa-4aaa-8aaa-{:012x}"
    return [
        ClaimRecord(uid.format(n), "default", f"c{n}", (), CPUSet([n]), f"{n:032x}", CLAIM_A.prepared_at, ())
        for n in range(number)
    ]


def test_more_claims_than_letters_are_counted(topology: Drawer, tmp_path: Path) -> None:
    topology.host = write_sysfs(tmp_path / "wide", machine(cores=64))
    topology.has(*claims(60))
    out = topology().out
    assert "+ 11 more claims; -o json has them all" in out
    assert len(topology.json()["claims"]) == 60
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_every_captured_machine_fits_in_80_columns_and_has_each_cpu_once(topology: Drawer, name: str) -> None:
    topology.host = capture(name)
    done = topology()
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    found = topology.json()
    assert [cpu["cpu"] for cpu in found["cpus"]] == list(CPUSet.parse(found["present"]))


def test_json_has_the_names_of_its_docstring(topology: Drawer) -> None:
    topology.has(CLAIM_A, reserved="7")
    found = topology.json()
    assert list(found) == [
        *("online", "present", "possible", "isolated", "reserved", "cpus", "sockets", "numaNodes", "l3Groups"),
        *("cores", "dies", "pcieRoots", "claims"),
    ]
    assert found["cpus"][8] == {
        "cpu": 8,
        "online": True,
        "isolated": False,
        "state": "claim",
        "claim": CLAIM_A.uid,
        "socket": 0,
        "die": 0,
        "cluster": -1,
        "core": 0,
        "numaNode": 0,
        "l3": 0,
        "coreType": "standard",
        "siblings": "0,8",
    }
    assert [cpu["state"] for cpu in found["cpus"]].count("shared") == 13
    assert found["cpus"][7]["state"] == "reserved"
    assert found["sockets"] == [{"socket": 0, "cpus": "0-3,8-11"}, {"socket": 1, "cpus": "4-7,12-15"}]
    assert found["numaNodes"][1] == {"node": 1, "cpus": "2-3,10-11"}
    assert found["l3Groups"] == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    assert found["claims"] == [{"uid": CLAIM_A.uid, "namespace": "default", "name": "two-cpus", "cpus": "0,8"}]
    assert CLAIM_A.preparation not in json.dumps(found)


def test_json_says_when_claims_are_not_known(topology: Drawer) -> None:
    found = topology.json()
    assert found["claims"] is None
    assert {cpu["state"] for cpu in found["cpus"]} == {"unknown"}


def test_json_of_a_cpu_off_line_has_its_node_or_null(topology: Drawer, tmp_path: Path) -> None:
    offline = t1(offline=[3, 15])
    topology.host = write_sysfs(
        tmp_path / "other", Topology.of(offline.cpus.values(), offline.present, {15: offline.offline_nodes[15]})
    )
    cpus = topology.json()["cpus"]
    assert [(cpus[cpu]["state"], cpus[cpu]["numaNode"]) for cpu in (3, 15)] == [("offline", None), ("offline", 0)]


def test_memory_without_cpus_is_told(topology: Drawer, tmp_path: Path) -> None:
    node = topology.host / "sys/devices/system/node"
    (node / "node9").mkdir()
    (node / "node9/cpulist").write_text("\n")
    for name in ("has_memory", "has_normal_memory"):
        (node / name).write_text("0-3,9\n")
    (node / "node9/meminfo").write_text("Node 9 MemTotal: 1024 kB\n")
    assert "Memory without CPUs: NUMA nodes 9.\n" in topology().out
    assert {"node": 9, "cpus": ""} in topology.json()["numaNodes"]


def test_a_machine_without_l3_says_so(topology: Drawer, tmp_path: Path) -> None:
    cpus = [Cpu(n, 0, 0, -1, n, 0, None) for n in range(4)]
    topology.host = write_sysfs(tmp_path / "other", Topology.of(cpus))
    out = topology().out
    assert "4 CPUs: 1 socket, 1 NUMA node, no L3 cache known, 4 cores of 1 thread.\nA column is a core.\n" in out


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 100_000])
def test_a_checkpoint_that_is_damaged_is_one_line_and_the_map_is_drawn(topology: Drawer, content: bytes) -> None:
    topology.has()
    topology.checkpoint.write_bytes(content)
    done = topology()
    assert done.code == 0
    assert "socket 0" in done.out
    assert done.err.startswith(f"nri-cpu: {topology.checkpoint}: ")
    assert done.err.endswith("; who has which CPU is not shown\n")
    assert len(done.err.splitlines()) == 1


def test_an_ordinary_user_sees_the_machine(topology: Drawer) -> None:
    topology.has(CLAIM_A)
    out_of_reach(topology.checkpoint.parent)
    arguments = ("-m", "nri_cpu", "topology", "--checkpoint", str(topology.checkpoint))
    done = as_ordinary_user(*arguments, host=topology.host)
    topology.checkpoint.parent.chmod(0o700)
    assert done.returncode == 0
    assert "  node 0      0   1\n" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"nri-cpu: {topology.checkpoint} can't be read: Permission denied")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("-o", "svg"), 2, "argument -o/--output: invalid choice: 'svg'"),
        (("--config", "/nowhere"), 2, "/nowhere: can't be read: No such file"),
        (("--sysfs-overlay", "/nowhere"), 2, "sysfs overlay /nowhere: can't be read"),
        (("--checkpoint", "/"), 2, "argument --checkpoint: / is a directory"),
        (("--unknown",), 2, "unrecognized arguments: --unknown; nri-cpu topology --help tells what there is"),
    ],
)
def test_wrong_usage_is_one_line(topology: Drawer, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = topology(*arguments)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_a_default_configuration_that_is_wrong_does_not_stand_in_the_way(topology: Drawer) -> None:
    topology.config.write_text("reservedcpus: 0\n")
    done = topology()
    assert done.code == 0
    assert "reservedcpus: unknown key" in done.err
    assert done.err.endswith("; going on without it\n")


def test_a_machine_without_cpus_is_exit_code_1(topology: Drawer, tmp_path: Path) -> None:
    topology.host = tmp_path / "nowhere"
    done = topology()
    assert (done.code, done.out) == (1, "")
    assert "tells of no CPU" in done.err


def test_a_fault_of_ours_is_one_line(topology: Drawer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("nri_cpu.commands.topology.read_topology", fail)
    assert topology() == Done(1, "", "nri-cpu: KeyError: 'x'; a fault of nri-cpu itself, -v shows where\n")
    with pytest.raises(KeyError):
        topology("-v")


def test_an_output_that_is_full_is_one_line(topology: Drawer) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "nri_cpu", "topology"],
            env={**os.environ, "HOST_ROOT": str(topology.host)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    expected = "nri-cpu: standard output can't be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_help_may_be_cut_short() -> None:
    for module in ("nri_cpu", "dra"):
        command = f"{sys.executable} -m {module} --help | true"
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
        assert done.stderr == ""


def on_a_terminal(topology: Drawer, columns: int = 80, **environment: str) -> str:
    """What the command prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "HOST_ROOT": str(topology.host), "COLUMNS": str(columns), "TERM": "xterm", **environment}
    arguments = [sys.executable, "-m", "nri_cpu", "topology", "--checkpoint", str(topology.checkpoint)]
    with subprocess.Popen(arguments, stdout=theirs, env=env) as process:
        os.close(theirs)
        parts = []
        while part := _read(ours):
            parts.append(part)
        assert process.wait(30) == 0
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


def test_colours_are_for_terminals_that_want_them(topology: Drawer) -> None:
    topology.has(CLAIM_A, reserved="7")
    plain = topology().out
    assert "\033" not in plain
    coloured = on_a_terminal(topology)
    assert "\033[30;42m 0A\033[0m" in coloured
    assert coloured.count("\033[30;42m") == 3  # two CPUs, and what they mean
    assert on_a_terminal(topology, NO_COLOR="1") == plain
    assert on_a_terminal(topology, TERM="dumb") == plain


def test_a_wide_terminal_is_used_and_a_narrow_one_not_overrun(topology: Drawer, tmp_path: Path) -> None:
    topology.host = write_sysfs(tmp_path / "wide", machine(cores=128, threads=2))
    assert max(map(len, on_a_terminal(topology, 200).splitlines())) > 100
    assert max(map(len, on_a_terminal(topology, 50, NO_COLOR="1").splitlines())) <= 80


def test_a_reader_that_stops_is_no_traceback(topology: Drawer, tmp_path: Path) -> None:
    host = write_sysfs(tmp_path / "wide", machine(cores=128, threads=2))
    done = subprocess.run(
        f"{sys.executable} -m nri_cpu topology -o json | head -n 1",
        shell=True,
        env={"HOST_ROOT": str(host), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_it_needs_neither_protobuf_nor_the_plugin(topology: Drawer) -> None:
    script = (
        "import sys; from nri_cpu import cli; code = cli.main(['topology']);"
        "print(code, {'google.protobuf', 'asyncio', 'nri_cpu.plugin'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "HOST_ROOT": str(topology.host)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("\n0 set()\n")

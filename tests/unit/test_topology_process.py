"""Promises of nri-cpu topology as a process: no need of root or cluster, one line for what is wrong, terminals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.checkpoint.samples import CLAIM_A
from tests.unit.drawer import Done, Drawer, drawer, on_a_terminal
from tests.unit.ordinary import as_ordinary_user, out_of_reach
from tests.unit.topology.machines import machine, write_sysfs


@pytest.fixture
def topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Drawer]:
    yield from drawer(tmp_path, capsys)


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
    assert line.endswith("; only root may read it; who has which CPU is not shown")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("-o", "svg"), 2, "argument -o/--output: invalid choice: 'svg' (choose from map, json);"),
        (("--config", "/nowhere"), 2, "/nowhere: can't be read: No such file"),
        (("--sysfs-overlay", "/nowhere"), 2, "sysfs overlay /nowhere: can't be read"),
        (("--checkpoint", "/"), 2, "argument --checkpoint: / is a directory"),
        (("--checkpoint", "/dev/zero"), 2, "--checkpoint /dev/zero is no regular file: check the path"),
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
    line = done.err.splitlines()[0]
    assert "reservedcpus: unknown key" in line
    assert line.endswith("; going on without it")


def test_a_machine_without_cpus_is_exit_code_1(topology: Drawer, tmp_path: Path) -> None:
    topology.host = tmp_path / "nowhere"
    done = topology()
    assert (done.code, done.out) == (1, "")
    assert "tells of no CPU" in done.err


@pytest.mark.parametrize("arguments", [(), ("-v",)])
def test_a_map_is_drawn_also_where_hints_can_not_be_written(topology: Drawer, arguments: tuple[str, ...]) -> None:
    expected = topology().out
    (topology.host / "sys/devices/system/cpu/isolated").write_text("nonsense\n")
    called = f'exec "$0" -m nri_cpu topology --config {topology.config} {" ".join(arguments)} 2>/dev/full'
    environment = {**os.environ, "HOST_ROOT": str(topology.host)}

    def shell(text: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", text, sys.executable],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
        return done.returncode, done.stdout

    assert shell(called) == (0, expected)
    assert shell(f"{called} --checkpoint /nowhere") == (2, "")


def test_a_fault_of_ours_is_one_line(topology: Drawer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("nri_cpu.commands.topology.read_for_people", fail)
    assert topology() == Done(1, "", "nri-cpu: KeyError: 'x'; a fault of nri-cpu itself, -v shows where\n")
    with pytest.raises(KeyError):
        topology("-v")


def test_an_output_that_is_full_is_one_line(topology: Drawer) -> None:
    topology.has()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "nri_cpu", "topology", "--config", str(topology.config)],
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
    topology.has()
    host = write_sysfs(tmp_path / "wide", machine(cores=128, threads=2))
    done = subprocess.run(
        f"{sys.executable} -m nri_cpu topology -o json --config {topology.config} | head -n 1",
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

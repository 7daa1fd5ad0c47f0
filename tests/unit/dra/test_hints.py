"""Promises of dra-cpu about what people would not see: a machine whose files are odd, a host that can name no node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dra import cli
from dra.commands import run
from dra.report import read_report
from nri_cpu.checkpoint.errors import CheckpointUnreadable
from nri_cpu.command import UsageError
from nri_cpu.commands.holders import why
from nri_cpu.cpuset import quote
from nri_cpu.plain_yaml import parse
from tests.unit.dra.command import DraCpu, environment
from tests.unit.topology.machines import box

HINT = "dra-cpu: the machine's files are odd in 1 way; -v tells it\n"


def make_odd(dra_cpu: DraCpu, name: str = "isolated", text: str = "nonsense") -> None:
    (dra_cpu.host / "sys/devices/system/cpu" / name).write_text(f"{text}\n")


@pytest.mark.parametrize("arguments", [("allocate", "--cpus", "2"), ("slices", "--hostname-override", "node-7")])
def test_a_machine_whose_files_are_odd_is_told_in_one_line(dra_cpu: DraCpu, arguments: tuple[str, ...]) -> None:
    before = dra_cpu(*arguments)
    assert (before.code, before.err) == (0, "")
    make_odd(dra_cpu)
    done = dra_cpu(*arguments)
    assert (done.code, done.out, done.err) == (0, before.out, HINT)
    make_odd(dra_cpu, "online", "0-16")
    assert dra_cpu(*arguments).err == "dra-cpu: the machine's files are odd in 2 ways; -v tells them\n"
    verbose = dra_cpu(*arguments, "-v")
    assert verbose.out == before.out
    lines = verbose.err.splitlines()
    assert [line.partition("topology: ")[2] for line in lines] == [
        "on line and without a directory, left out, are CPUs 16",
        "not a list of CPUs, and passed over: isolated",
    ]


def test_nobody_needs_the_logger_for_a_hint(dra_cpu: DraCpu) -> None:
    script = "import sys; from dra import cli; cli.main(['allocate', '--cpus', '2']); print('loguru' in sys.modules)"

    def called() -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment(dra_cpu.host), capture_output=True, text=True, check=True
        )
        return done.stdout, done.stderr

    assert called() == ("0,8\nFalse\n", "")
    make_odd(dra_cpu)
    assert called() == ("0,8\nFalse\n", HINT)


NO_NAMES = ["Bad_Host", "(none)", "", "host.", "-a", "a\x1b", "x" * 254, "a\udcff"]


@pytest.mark.parametrize("host", NO_NAMES)
def test_a_host_that_can_name_no_node_is_exit_code_2_with_the_way_out(
    dra_cpu: DraCpu, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=host))
    done = dra_cpu("slices")
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert done.err.startswith("dra-cpu: the host is called '")
    assert ": name the node with --hostname-override, or hostnameOverride in the configuration" in done.err
    assert dra_cpu("slices", "--hostname-override", "node-1").code == 0
    with pytest.raises(UsageError, match="--hostname-override, or hostnameOverride"):
        run.settings_of(cli._parser().parse_args(["run", "--config", str(empty(dra_cpu))]), {})
    dra_cpu.config.write_text("hostnameOverride: node-1\n")
    assert dra_cpu("slices").code == 0
    assert dra_cpu("allocate", "--cpus", "2").code == 0


@pytest.mark.parametrize("host", NO_NAMES)
def test_a_report_has_such_a_name_as_it_is_and_a_note(
    dra_cpu: DraCpu, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=host))
    done = dra_cpu("gatherinfo", "--stdout", "--config", str(empty(dra_cpu)))
    assert done.code == 0
    (found,) = parse(done.out, 100_000)
    assert isinstance(found, dict)
    assert found["driverConfig"]["hostnameOverride"] == host.replace("\udcff", "\\udcff")
    (note,) = (note for note in found["notes"] if note.startswith("driverConfig: "))
    assert note.startswith(f"driverConfig: the host is called {quote(host)}, which is no name of a node")
    assert f"dra-cpu: {note}\n" in done.err
    assert read_report(done.out).topology == box()
    named = dra_cpu("gatherinfo", "--stdout", "--hostname-override", "node-1")
    assert (named.code, "the host is called" in named.err) == (0, False)
    assert dra_cpu("gatherinfo", "--stdout", "--hostname-override", "bad_name").code == 2


@pytest.mark.parametrize("arguments", [(), ("-v",)])
def test_an_answer_is_given_also_where_hints_can_not_be_written(dra_cpu: DraCpu, arguments: tuple[str, ...]) -> None:
    def called(*what: str) -> tuple[int, str]:
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "dra", *what, *arguments],
                env=environment(dra_cpu.host),
                stdout=subprocess.PIPE,
                stderr=full,
                text=True,
                timeout=30,
                check=False,
            )
        return done.returncode, done.stdout

    make_odd(dra_cpu)
    assert called("allocate", "--cpus", "2") == (0, "0,8\n")
    assert called("allocate", "--cpus", "99") == (1, "")
    assert called("allocate", "--cpus", "no") == (2, "")
    code, out = called("gatherinfo", "--stdout")
    assert (code, read_report(out).topology) == (0, box())


def empty(dra_cpu: DraCpu) -> os.PathLike[str]:
    path = dra_cpu.config.with_name("empty.yaml")
    path.write_text("")
    return path


def test_who_only_looks_is_not_told_to_remove_a_file(dra_cpu: DraCpu) -> None:
    done = dra_cpu("gatherinfo", "--stdout", "--hostname-override", "node-1", "--checkpoint", "/dev/zero")
    assert "claims: /dev/zero is no regular file; check the path\n" in done.err


def test_other_words_for_removing_a_file_are_not_for_them_either() -> None:
    assert str(CheckpointUnreadable("x is odd", "throw it away")) == "x is odd; throw it away"
    assert why(CheckpointUnreadable("x is odd", "throw it away")) == "x is odd; check the path"
    assert why(CheckpointUnreadable("x is odd; remove it")) == "x is odd; remove it"


def test_what_is_odd_about_a_machine_without_cpus_is_told_too(dra_cpu: DraCpu) -> None:
    cpus = dra_cpu.host / "sys/devices/system/cpu"
    shutil.rmtree(cpus)
    cpus.mkdir()
    make_odd(dra_cpu, "online")
    done = dra_cpu("allocate", "--cpus", "2")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"{HINT}dra-cpu: {cpus / 'online'} tells of no CPU")
    done = dra_cpu("gatherinfo", "--stdout")
    assert (done.code, done.out) == (1, "")
    assert "dra-cpu: cpuDetails: not a list of CPUs, and passed over: online\n" in done.err

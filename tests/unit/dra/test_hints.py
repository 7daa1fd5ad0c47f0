"""Promises of dra-cpu about what people would not see: a machine whose files are odd, a host that can name no node."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dra import cli
from dra.commands import run
from nri_cpu.command import UsageError
from tests.unit.dra.command import DraCpu, environment

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


@pytest.mark.parametrize("host", ["Bad_Host", "(none)", "", "host.", "-a", "a\x1b", "x" * 254])
def test_a_host_that_can_name_no_node_is_exit_code_2_with_the_way_out(
    dra_cpu: DraCpu, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=host))
    for arguments in (("slices",), ("gatherinfo", "--stdout")):
        done = dra_cpu(*arguments)
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
        assert done.err.startswith("dra-cpu: the host is called '")
        assert ": name the node with --hostname-override, or hostnameOverride in the configuration" in done.err
        assert dra_cpu(*arguments, "--hostname-override", "node-1").code == 0
    with pytest.raises(UsageError, match="--hostname-override, or hostnameOverride"):
        run.settings_of(cli._parser().parse_args(["run", "--config", str(empty(dra_cpu))]), {})
    dra_cpu.config.write_text("hostnameOverride: node-1\n")
    assert dra_cpu("slices").code == 0
    assert dra_cpu("allocate", "--cpus", "2").code == 0


def empty(dra_cpu: DraCpu) -> os.PathLike[str]:
    path = dra_cpu.config.with_name("empty.yaml")
    path.write_text("")
    return path


def test_who_only_looks_is_not_told_to_remove_a_file(dra_cpu: DraCpu) -> None:
    done = dra_cpu("gatherinfo", "--stdout", "--hostname-override", "node-1", "--checkpoint", "/dev/zero")
    assert "claims: /dev/zero is no regular file; check the path\n" in done.err

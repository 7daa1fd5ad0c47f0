"""Promises of hack/hwloc: it installs what is missing where it can, and says in one line what to do where it can't."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.captures import hwloc


class Apt:
    """In the place of subprocess.run: each step ends with the code given for it, 0 at last."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.commands: list[str] = []

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(" ".join(command))
        return subprocess.CompletedProcess(command, self.codes.pop(0) if self.codes else 0, "", "one\nE: the reason\n")


def here(monkeypatch: pytest.MonkeyPatch, *programs: str, root: bool = True) -> None:
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}" if program in programs else None)
    monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)


def test_what_is_there_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", apt := Apt())
    here(monkeypatch, hwloc.PROGRAM, root=False)
    assert (hwloc.main(), apt.commands) == (0, [])


def test_root_installs_it_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", apt := Apt())
    here(monkeypatch, "apt-get")
    assert hwloc.main() == 0
    assert [command.split()[1] for command in apt.commands] == ["update", "install"]
    assert apt.commands[-1].endswith(" hwloc-nox")


@pytest.mark.parametrize(("programs", "root"), [((), True), (("apt-get",), False)])
def test_whoever_can_not_install_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], programs: tuple[str, ...], root: bool
) -> None:
    here(monkeypatch, *programs, root=root)
    assert hwloc.main() == 1
    assert capsys.readouterr().err == (
        "hwloc: lstopo-no-graphics is not here: as root, apt-get install hwloc-nox, or hwloc's own package\n"
    )


@pytest.mark.parametrize("codes", [(100,), (0, 100)])
def test_an_installation_that_fails_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], codes: tuple[int, ...]
) -> None:
    monkeypatch.setattr("subprocess.run", Apt(*codes))
    here(monkeypatch, "apt-get")
    assert hwloc.main() == 1
    assert capsys.readouterr().err.splitlines()[1].endswith(" failed (E: the reason): install hwloc-nox by hand")


def test_a_capture_without_hwloc_is_an_error_that_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(hwloc.HwlocMissingError, match="hack/hwloc installs it"):
        hwloc.see(Path("/nowhere"))

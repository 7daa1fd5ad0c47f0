"""What the pages show of commands is what these print, on the machine of the examples."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from dra import cli as dra_cli
from hack.faults import ROOT
from nri_cpu import cli as nri_cli
from nri_cpu import command
from nri_cpu.checkpoint.codec import checkpoint_to_bytes
from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord
from nri_cpu.cpuset import CPUSet
from tests.unit.topology.machines import box, write_sysfs

PAGE = "docs/commands.md"
PAGES = (PAGE, "docs/choosing-cpus.md", "README.md")
OURS = {"nri-cpu": nri_cli.main, "dra-cpu": dra_cli.main}


def shown(page: str) -> Iterator[tuple[str, str]]:
    """Each command of ours on the page with what stands below it; without those whose output tells of time and place,
    and lines of a shell."""
    for block in re.findall(r"^```console\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.M | re.S):
        for entry in re.split(r"^\$ ", block, flags=re.M)[1:]:
            called, _, printed = entry.partition("\n")
            if called.split()[0] in OURS and "gatherinfo" not in called and "|" not in called:
                yield called, printed


def the_claims() -> Checkpoint:
    def claim(number: int, name: str, cpus: str) -> ClaimRecord:
        uid = f"{number:08x}-0000-4000-8000-000000000000"
        return ClaimRecord(uid, "default", name, (), CPUSet.parse(cpus), f"{number:032x}", "2026-11-30T10:24:00Z", ())

    claims = (claim(1, "web", "0,8"), claim(2, "db", "4-5,12-13"))
    return Checkpoint(CPUSet.parse("7,15"), {one.uid: one for one in claims})


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine of the examples, with its checkpoint and the file of requests."""
    monkeypatch.setenv("HOST_ROOT", str(write_sysfs(tmp_path / "host", box())))
    monkeypatch.setattr(command, "CONFIG", tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text(f"checkpoint: {tmp_path / 'checkpoint.json'}\n")
    (tmp_path / "checkpoint.json").write_bytes(checkpoint_to_bytes(the_claims(), "boot"))
    (requests,) = re.findall(r"^\$ cat requests\n(.*?)^\$", (ROOT / PAGE).read_text("utf-8"), re.M | re.S)
    (tmp_path / "requests").write_text(requests)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    yield
    logger.remove()
    logger.add(sys.__stderr__)  # type: ignore[arg-type]  # it is there


def test_the_page_has_an_example_of_each_command() -> None:
    assert {" ".join(called.split()[:2]) for called, _ in shown(PAGE)} == {
        "nri-cpu topology",
        "dra-cpu slices",
        "dra-cpu allocate",
    }


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize(
    ("called", "printed"), [pytest.param(*one, id=f"{page}: {one[0]}") for page in PAGES for one in shown(page)]
)
def test_a_command_prints_what_the_page_shows(called: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *arguments = shlex.split(called)
    OURS[name](arguments)
    out, err = capsys.readouterr()
    time = r'"ns": \d+'
    assert re.sub(time, "", err + out) == re.sub(time, "", printed)

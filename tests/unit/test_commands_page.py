"""What the pages show of commands is what these print, on the machine of the examples."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from dra import cli as dra_cli
from hack.faults import ROOT
from nri_cpu import cli as nri_cli
from nri_cpu import command
from nri_cpu.checkpoint.codec import checkpoint_to_bytes, owners_to_bytes
from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord, Owner, Owners
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Topology, read_topology
from tests.unit.topology.machines import box, hybrid, t1, t2, write_sysfs

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


def the_owners() -> Owners:
    """A container has the first claim; that of the second one is yet to come."""
    web = next(iter(the_claims().claims.values()))
    return Owners(
        {web.uid: Owner(web.preparation, "8d1c", "default", "web-0", "main", "3f9c0de1", "/kubepods/3f9c0de1")}
    )


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine of the examples, with its checkpoint and the file of requests."""
    monkeypatch.setenv("HOST_ROOT", str(write_sysfs(tmp_path / "host", box())))
    (tmp_path / "host/proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "host/proc/sys/kernel/random/boot_id").write_text("boot\n")
    (tmp_path / "owners.json").write_bytes(owners_to_bytes(the_owners(), "boot"))
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
    name, *arguments = shlex.split(called.replace("/var/lib/dra-cpu/", ""))
    OURS[name](arguments)
    out, err = capsys.readouterr()
    time = r'"ns": \d+'
    assert re.sub(time, "", err + out) == re.sub(time, "", printed)


def test_a_machine_that_is_copied_as_the_page_says_is_the_same_one(tmp_path: Path) -> None:
    (script,) = re.findall(r"^```bash\n(.*?)^```$", (ROOT / PAGE).read_text("utf-8"), re.M | re.S)
    for number, topology in enumerate((box(), hybrid(), t1([15]), with_everything())):
        home, copy = (tmp_path / f"{name}{number}" for name in ("home", "copy"))
        write_sysfs(home, topology)
        changed = script.replace("/sys/devices &&", f"{home}/sys/devices &&").replace("/tmp/node", str(copy))
        done = subprocess.run(["bash", "-c", changed], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert read_topology(copy) == topology
        with tarfile.open(f"{copy}.tgz") as archive:
            archive.extractall(tmp_path / f"unpacked{number}", filter="data")
        assert read_topology(tmp_path / f"unpacked{number}") == topology


def with_everything() -> Topology:
    """Two sockets with memory without CPUs and PCIe roots."""
    return Topology.of(
        t2().cpus.values(),
        isolated=CPUSet([3]),
        memory_nodes=[2],
        pcie_roots={"pci0000:00": CPUSet.parse("0-3"), "pci10000:80": t2().online},
    )


def test_what_the_page_takes_out_of_json_is_there(example: None, capsys: pytest.CaptureFixture[str]) -> None:
    nri_cli.main(["topology", "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert {"claims", "cpus"} <= set(found)
    assert {"cpu", "claim", "state"} <= set(found["cpus"][0])
    assert {"uid", "namespace", "name", "cpus", "owner"} <= set(found["claims"][0])
    assert {"podNamespace", "podName", "container"} <= set(found["claims"][0]["owner"])
    free = [str(cpu["cpu"]) for cpu in found["cpus"] if cpu["state"] == "shared"]
    assert f"\n{','.join(free)}\n" in (ROOT / PAGE).read_text("utf-8")

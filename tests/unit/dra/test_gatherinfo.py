"""Promises of dra-cpu gatherinfo: everything that may be read, nothing secret, no file of anybody's overwritten."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra.commands import gatherinfo
from dra.report import read_report
from nri_cpu import __version__
from nri_cpu.checkpoint.codec import checkpoint_to_bytes, owners_to_bytes
from nri_cpu.cpuset import CPUSet
from nri_cpu.plain_yaml import parse
from nri_cpu.topology import Cpu, Topology
from tests.unit.checkpoint.samples import BOOT, CHECKPOINT, OWNERS, SECRET_A, SECRET_B, UID_A, UID_B
from tests.unit.dra.command import DraCpu
from tests.unit.ordinary import as_ordinary_user, out_of_reach
from tests.unit.topology.machines import box, t1, write_sysfs


@pytest.fixture
def state(dra_cpu: DraCpu, tmp_path: Path) -> Path:
    """A checkpoint and owners of this boot; the path of the checkpoint."""
    random = dra_cpu.host / "proc/sys/kernel/random"
    random.mkdir(parents=True)
    (random / "boot_id").write_text(f"{BOOT}\n")
    path = tmp_path / "state/checkpoint.json"
    path.parent.mkdir()
    path.write_bytes(checkpoint_to_bytes(CHECKPOINT, BOOT))
    path.with_name("owners.json").write_bytes(owners_to_bytes(OWNERS, BOOT))
    return path


def report(text: str) -> Any:
    (document,) = parse(text, 100_000)
    return document


@pytest.mark.fault("F-16")
def test_the_report_is_this_machine(dra_cpu: DraCpu) -> None:
    dra_cpu.config.write_text("checkpoint: /nowhere/checkpoint.json\n")
    done = dra_cpu("gatherinfo", "--stdout")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("---\n")
    assert read_report(done.out).topology == box()
    found = report(done.out)
    assert found["toolVersion"]["version"] == __version__
    assert (found["claims"], found["containers"], "notes" in found) == ([], [], False)


def test_a_checkpoint_that_is_named_and_not_there_is_a_note(dra_cpu: DraCpu) -> None:
    done = dra_cpu("gatherinfo", "--stdout", "--checkpoint", "/nowhere/checkpoint.json")
    assert (done.code, report(done.out)["claims"]) == (0, [])
    assert report(done.out)["notes"][0].startswith("claims: /nowhere/checkpoint.json does not exist")


@pytest.mark.fault("A26")
def test_what_is_odd_about_the_machine_is_a_note(dra_cpu: DraCpu, tmp_path: Path) -> None:
    dra_cpu.host = write_sysfs(tmp_path / "other", Topology.of([Cpu(n, 0, 0, -1, n, 0, None) for n in range(2)]))
    done = dra_cpu("gatherinfo", "--stdout", "--checkpoint", "/nowhere/checkpoint.json")
    notes = report(done.out)["notes"]
    assert any("L3" in note and "0-1" in note for note in notes)
    assert done.err == "".join(f"dra-cpu: {note}\n" for note in notes)


def test_the_configuration_is_what_counts(dra_cpu: DraCpu) -> None:
    dra_cpu.config.write_text("groupBy: socket\nreservedCPUs: 08\nstrategy: spread\nkubeconfig: /k\nalignL3: false\n")
    arguments = ("--stdout", "--checkpoint", "/nowhere/checkpoint.json", "--hostname-override", "node-7")
    assert report(dra_cpu("gatherinfo", *arguments, "--reserved-cpus", "1").out)["driverConfig"] == {
        "cpuDeviceMode": "grouped",
        "groupBy": "socket",
        "reservedCPUs": "1",
        "hostnameOverride": "node-7",
        "kubeconfig": "/k",
        "exposePCIeRoots": False,
        "publishNodeAllocatableResourceMapping": False,
        "strategy": "spread",
        "alignL3": False,
        "checkpoint": "/nowhere/checkpoint.json",
        "cdiDir": "/var/run/cdi",
        "requirePlugin": True,
        "kubeletCPUManagerConflict": "refuse",
    }


def test_a_report_gives_the_same_cpus_as_the_machine_that_wrote_it(dra_cpu: DraCpu, tmp_path: Path) -> None:
    dra_cpu.config.write_text("reservedCPUs: 0\nstrategy: distributed\nnumaNodes: all\n")
    here = dra_cpu("allocate", "--cpus", "4").out
    path = dra_cpu("gatherinfo", "--output-dir", str(tmp_path / "out")).out.strip()
    dra_cpu.config.unlink()
    dra_cpu.host = write_sysfs(tmp_path / "other", t1())
    assert dra_cpu("allocate", "--cpus", "4", "--report", path).out == here


def test_claims_and_containers_are_told_without_their_secrets(dra_cpu: DraCpu, state: Path) -> None:
    done = dra_cpu("gatherinfo", "--stdout", "--checkpoint", str(state), "--reserved-cpus", "7")
    assert done.err == ""
    found = report(done.out)
    assert [(claim["uid"], claim["cpus"]) for claim in found["claims"]] == [(UID_A, "0,8"), (UID_B, "1,9")]
    assert [(owner["claimUID"], owner["podName"]) for owner in found["containers"]] == [(UID_A, "pod-1")]
    assert not {"preparation", SECRET_A, SECRET_B} & set(done.out.split())
    assert SECRET_A not in done.out
    assert SECRET_B not in done.out


def test_other_reserved_cpus_in_the_checkpoint_are_noted(dra_cpu: DraCpu, state: Path) -> None:
    done = dra_cpu("gatherinfo", "--stdout", "--checkpoint", str(state))
    note = f"driverConfig: reserved CPUs are 7 in {state}, none here"
    assert report(done.out)["notes"] == [note]
    assert done.err == f"dra-cpu: {note}\n"


def test_owners_of_another_boot_are_none(dra_cpu: DraCpu, state: Path) -> None:
    state.with_name("owners.json").write_bytes(owners_to_bytes(OWNERS, "another"))
    found = report(dra_cpu("gatherinfo", "--stdout", "--checkpoint", str(state), "--reserved-cpus", "7").out)
    assert found["containers"] == []
    assert "owners.json is of another boot" in found["notes"][0]


@pytest.mark.parametrize("name", ["checkpoint.json", "owners.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"{}", b"[" * 100_000])
def test_a_file_that_is_damaged_is_a_note(dra_cpu: DraCpu, state: Path, name: str, content: bytes) -> None:
    state.with_name(name).write_bytes(content)
    done = dra_cpu("gatherinfo", "--stdout", "--checkpoint", str(state), "--reserved-cpus", "7")
    assert done.code == 0
    what = {"checkpoint.json": "claims", "owners.json": "containers"}[name]
    found = report(done.out)
    assert found[what] == []
    (note,) = found["notes"]
    assert note.startswith(f"{what}: {state.with_name(name)}")
    assert done.err == f"dra-cpu: {note}\n"
    assert read_report(done.out).topology == box()


def test_an_ordinary_user_gets_the_machine_and_reads_what_is_missing(dra_cpu: DraCpu, state: Path) -> None:
    out_of_reach(state.parent)
    arguments = ("-m", "dra", "gatherinfo", "--stdout", "--hostname-override", "node-1", "--checkpoint", str(state))
    done = as_ordinary_user(*arguments, host=dra_cpu.host)
    state.parent.chmod(0o700)
    assert done.returncode == 0
    found = report(done.stdout)
    assert [note.partition(":")[0] for note in found["notes"]] == ["claims", "containers"]
    assert f"{state} can't be read: Permission denied" in found["notes"][0]
    assert f"dra-cpu: claims: {state} can't be read: Permission denied" in done.stderr
    assert [line.endswith("; only root may read it") for line in done.stderr.splitlines()] == [True, True]
    assert read_report(done.stdout).topology == box()


def test_a_default_configuration_that_is_wrong_is_a_note(dra_cpu: DraCpu) -> None:
    dra_cpu.config.write_text("groupby: socket\n")
    done = dra_cpu("gatherinfo", "--stdout")
    assert done.code == 0
    assert "groupby: unknown key; did you mean groupBy?; these are the defaults" in report(done.out)["notes"][0]
    named = dra_cpu("gatherinfo", "--stdout", "--config", str(dra_cpu.config))
    assert (named.code, named.out) == (2, "")


def test_reserved_cpus_and_an_overlay_that_are_wrong_are_notes(dra_cpu: DraCpu) -> None:
    dra_cpu.config.write_text("reservedCPUs: 99\nsysfsOverlay: /nowhere\n")
    notes = report(dra_cpu("gatherinfo", "--stdout").out)["notes"]
    assert "cpuDetails: sysfs overlay /nowhere: can't be read: No such file or directory" in notes[0]
    assert notes[1] == "driverConfig: reserved CPUs 99 do not exist: this machine has 0-15"
    done = dra_cpu("gatherinfo", "--stdout", "--sysfs-overlay", "/nowhere")
    assert done.code == 2


def test_a_machine_without_cpus_is_exit_code_1(dra_cpu: DraCpu, tmp_path: Path) -> None:
    dra_cpu.host = tmp_path / "nowhere"
    assert dra_cpu("gatherinfo", "--stdout").code == 1


def test_the_file_is_its_owners_only_and_its_path_is_printed(dra_cpu: DraCpu, tmp_path: Path) -> None:
    out = tmp_path / "a/b"
    done = dra_cpu("gatherinfo", "--output-dir", str(out))
    (path,) = out.iterdir()
    assert done.out == f"{path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.name.startswith("dra-cpu-gatherinfo-2")
    assert path.name.endswith(f"-{os.getpid()}.yaml")
    assert read_report(path.read_text()).topology == box()


def test_without_a_directory_it_goes_where_temporary_files_do(
    dra_cpu: DraCpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "t"))
    assert Path(dra_cpu("gatherinfo").out.strip()).parent == tmp_path / "t"


def test_no_file_is_overwritten_and_no_link_followed(
    dra_cpu: DraCpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2026, 1, 2, 3, 4, 5, 0, 2, 0)))
    name = f"dra-cpu-gatherinfo-20260102T030405Z-{os.getpid()}"
    out = tmp_path / "out"
    out.mkdir()
    (out / f"{name}.yaml").symlink_to(tmp_path / "elsewhere")
    (out / f"{name}-2.yaml").write_text("theirs")
    assert dra_cpu("gatherinfo", "--output-dir", str(out)).out == f"{out / f'{name}-3.yaml'}\n"
    assert not (tmp_path / "elsewhere").exists()
    assert (out / f"{name}-2.yaml").read_text() == "theirs"
    monkeypatch.setattr(gatherinfo, "_NAMES", 3)
    done = dra_cpu("gatherinfo", "--output-dir", str(out))
    assert done.code == 1
    assert f"{out} has 2 files named {name}: remove them" in done.err


def test_a_directory_that_can_not_be_is_exit_code_1_with_the_way_out(dra_cpu: DraCpu, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = dra_cpu("gatherinfo", "--output-dir", str(tmp_path / "file"))
    assert done.code == 1
    assert f"the report can't be written to {tmp_path / 'file'}: " in done.err
    assert "or print it with --stdout" in done.err


def test_a_file_that_can_not_be_filled_is_not_left(
    dra_cpu: DraCpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **more: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(OSError, match="No space"):
        gatherinfo._fill(os.open(tmp_path / "x", os.O_CREAT | os.O_WRONLY), tmp_path / "x", "")
    assert list(tmp_path.glob("x")) == []


def test_stdout_and_a_directory_exclude_each_other(dra_cpu: DraCpu, tmp_path: Path) -> None:
    done = dra_cpu("gatherinfo", "--stdout", "--output-dir", str(tmp_path))
    assert done.code == 2
    assert "not allowed with argument" in done.err


def test_claims_of_a_shrunken_machine_are_told_as_they_are(dra_cpu: DraCpu, state: Path) -> None:
    claim = replace(CHECKPOINT.claims[UID_A], cpus=CPUSet.parse("100"), devices=())
    state.write_bytes(checkpoint_to_bytes(replace(CHECKPOINT, claims={UID_A: claim}), BOOT))
    found = report(dra_cpu("gatherinfo", "--stdout", "--checkpoint", str(state), "--reserved-cpus", "7").out)
    assert [claim["cpus"] for claim in found["claims"]] == ["100"]

"""Promise: a kill at any instruction leaves a state from which the next start goes on right."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from nri_cpu.checkpoint.model import ClaimRecord
from nri_cpu.cpuset import EMPTY
from tests.unit.dra import crasher
from tests.unit.dra.rig import Rig


def killed_everywhere(tmp_path: Path, scenario: str) -> list[Path]:
    """Worlds in which claim 1 was prepared and then a scenario was killed, at each system call in turn."""
    copies = tmp_path / "copies"
    copies.mkdir()
    command = [sys.executable, "-m", "tests.unit.dra.crasher", str(tmp_path / "world"), str(copies), scenario]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    worlds = list(copies.iterdir())
    assert len(worlds) > 5
    return worlds


def prepared_world(tmp_path: Path) -> ClaimRecord:
    rig = Rig(tmp_path / "world")
    ref = rig.claim(1)
    rig.prepare(ref)
    return rig.on_disk().claims[ref.uid]


def assert_goes_on_right(world: Path, before: ClaimRecord, may_be_gone: bool) -> None:
    rig = Rig(world)
    claims = rig.on_disk().claims
    assert rig.cdi.read() == claims
    assert_metadata_is_of(rig, claims)
    if before.uid in claims or not may_be_gone:
        assert claims[before.uid] == before
    taken = EMPTY
    for record in claims.values():
        assert record.cpus.isdisjoint(taken)
        taken |= record.cpus
    refs = [rig.claim(number) for number in (1, 2, 3)]
    for ref in refs:
        cpus = rig.prepare(ref)
        assert len(cpus) == 2
        assert cpus == (claims[ref.uid].cpus if ref.uid in claims else cpus - taken)
    assert_metadata_is_of(rig, rig.on_disk().claims)
    for ref in refs:
        assert rig.unprepare(ref) == ""
    assert rig.recorded == {}
    assert list(rig.cdi.path.iterdir()) == []
    assert list(rig.metadata.iterdir()) == []
    assert [path.name for path in rig.checkpoint.parent.iterdir() if path.name.endswith(".tmp")] == []


def assert_metadata_is_of(rig: Rig, claims: Mapping[str, ClaimRecord]) -> None:
    """Each claim has its metadata, whole; nothing else is there."""
    for number in (1, 2, 3):
        ref = rig.claim(number)
        assert rig.has_metadata(ref) == (ref.uid in claims)
        if ref.uid in claims:
            device = rig.metadata_of(ref)["requests"][0]["devices"][0]
            assert device["attributes"]["dra.cpu/cpuset"] == {"string": str(claims[ref.uid].cpus)}
    files = [*rig.cdi.path.iterdir(), *rig.metadata.iterdir()] if claims else []
    assert len(files) == 3 * len(claims), files


@pytest.mark.fault("S1", "K11", "A14")
@pytest.mark.parametrize("scenario", ["prepare", "prepare_two", "prepare_again", "prepare_in_vain", "unprepare"])
def test_a_kill_at_any_system_call_is_survived(tmp_path: Path, scenario: str) -> None:
    before = prepared_world(tmp_path)
    for world in killed_everywhere(tmp_path, scenario):
        # Killed while it is without a CDI directory, which a file of the scenario stands for.
        if (world / "cdi").is_file():
            (world / "cdi").unlink()
        assert_goes_on_right(world, before, may_be_gone=scenario == "unprepare")


@pytest.mark.fault("S1", "S2")
@pytest.mark.parametrize("lost", ["corrupt", "missing"])
def test_a_kill_while_a_lost_checkpoint_is_rebuilt_is_survived(tmp_path: Path, lost: str) -> None:
    before = prepared_world(tmp_path)
    checkpoint = tmp_path / "world/state/checkpoint.json"
    if lost == "corrupt":
        checkpoint.write_bytes(b"\0" * 100)
    else:
        checkpoint.unlink()
    for world in killed_everywhere(tmp_path, crasher.start.__name__):
        assert_goes_on_right(world, before, may_be_gone=False)

"""Promises of a start: no prepared claim loses its CPUs, whatever is missing or damaged; nothing is read as empty."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dra.allocation import Strategy
from dra.cpu_config import CpuConfig
from dra.devices import DeviceMode, GroupBy
from nri_cpu.checkpoint.errors import CheckpointError, TooNew
from nri_cpu.checkpoint.files import read_checkpoint
from nri_cpu.checkpoint.locks import FileLock
from nri_cpu.checkpoint.model import Checkpoint
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.manifests import config, configured, result
from tests.unit.dra.rig import BOOT, Rig
from tests.unit.topology.machines import machine, t1

NEXT_BOOT = BOOT.replace("b007", "b008")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    rig.prepare(rig.claim(1))
    rig.prepare(rig.claim(2))
    return rig


def test_the_first_start_leaves_an_empty_checkpoint_for_nri_cpu(tmp_path: Path) -> None:
    rig = Rig(tmp_path, reserved="0,8")
    assert rig.on_disk() == Checkpoint(CPUSet.parse("0,8"), {})
    assert rig.checkpoint.parent.stat().st_mode & 0o777 == 0o700
    assert rig.checkpoint.stat().st_mode & 0o777 == 0o600


@pytest.mark.fault("B2")
def test_a_start_changes_nothing_that_is_right(rig: Rig) -> None:
    before, inode = rig.snapshot(), rig.checkpoint.stat().st_ino
    rig.start()
    assert rig.snapshot() == before
    assert rig.checkpoint.stat().st_ino == inode


@pytest.mark.fault("S2")
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-40]),
        lambda path: path.write_bytes(path.read_bytes() + b"}"),
        lambda path: path.write_bytes(path.read_bytes().replace(b"0,8", b"0,9")),
        lambda path: path.write_bytes(b"\0" * 4096),
        lambda path: path.write_bytes(b'{"format": "x"}'),
    ],
    ids=["empty", "truncated", "trailing", "checksum", "zeros", "foreign"],
)
def test_a_corrupt_checkpoint_is_moved_aside_and_made_from_the_specs(rig: Rig, damage: Callable[[Path], int]) -> None:
    before = rig.on_disk()
    damage(rig.checkpoint)
    corrupt = rig.checkpoint.read_bytes()
    rig.start()
    assert rig.on_disk() == before
    (aside,) = rig.checkpoint.parent.glob("checkpoint.json.corrupt-*")
    assert aside.read_bytes() == corrupt


@pytest.mark.fault("B2")
def test_a_missing_checkpoint_is_made_from_the_specs(rig: Rig) -> None:
    before = rig.on_disk()
    shutil.rmtree(rig.checkpoint.parent)
    rig.start()
    assert rig.on_disk() == before


@pytest.mark.fault("K1")
def test_missing_and_damaged_specs_are_written_again(rig: Rig) -> None:
    before = rig.snapshot()
    first, second = (rig.spec(rig.claim(number)) for number in (1, 2))
    first.unlink()
    second.write_text("{}")
    rig.start()
    assert rig.snapshot() == before


@pytest.mark.fault("K1", "K12", "A14")
@pytest.mark.parametrize("left", [b"", b"\0" * 500, b'{"cdiVersion"', None], ids=["empty", "zeros", "half", "old"])
def test_what_a_crash_of_the_machine_leaves_of_specs_on_a_disk_does_no_harm(rig: Rig, left: bytes | None) -> None:
    """None of them is synced: the last one may be torn or missing, and one that was removed may be back."""
    written, removed = rig.claim(1), rig.claim(2)
    before = rig.snapshot()
    old = rig.spec(removed).read_bytes()
    rig.unprepare(removed)
    rig.unprepare(written)
    rig.prepare(written)
    wanted = rig.on_disk(), rig.snapshot()[1]
    rig.spec(written).write_bytes(before[1][rig.spec(written).name] if left is None else left)
    rig.spec(removed).write_bytes(old)
    rig.start(boot=NEXT_BOOT)
    assert (rig.on_disk(), rig.snapshot()[1]) == wanted


@pytest.mark.fault("K12")
def test_a_spec_without_a_record_goes_and_foreign_files_stay(rig: Rig) -> None:
    ref = rig.claim(2)
    spec = rig.spec(ref).read_bytes()
    rig.unprepare(ref)
    rig.spec(ref).write_bytes(spec)
    foreign = [
        rig.cdi.path / "nvidia.json",
        rig.cdi.path / "dra.k8s.io-cpu_claim-of-another-driver.json",
        rig.spec(rig.claim(77)),  # by name ours, by content not: another driver of that name may have made it
    ]
    for path in foreign:
        path.write_text('{"cdiVersion": "0.3.0", "kind": "dra.k8s.io/cpu", "devices": []}')
    leftover = rig.cdi.path / f".{rig.spec(ref).name}.0123456789abcdef.tmp"
    leftover.write_text("half")
    rig.start()
    assert not rig.spec(ref).exists()
    assert not leftover.exists()
    assert all(path.exists() for path in foreign)
    assert rig.spec(rig.claim(1)).exists()


@pytest.mark.fault("K1", "B2")
def test_after_a_reboot_claims_keep_their_cpus_and_get_their_specs(rig: Rig) -> None:
    before = rig.on_disk()
    shutil.rmtree(rig.cdi.path)
    rig.start(boot=NEXT_BOOT)
    assert rig.on_disk() == before
    assert read_checkpoint(rig.checkpoint)[1] == NEXT_BOOT
    ref = rig.claim(1)
    rig.spec(ref).unlink()
    assert rig.prepare(ref) == before.claims[ref.uid].cpus
    assert rig.cdi.read() == before.claims


@pytest.mark.fault("H1")
def test_after_a_reboot_a_claim_whose_cpus_are_gone_is_chosen_anew(rig: Rig) -> None:
    before = rig.on_disk()
    ref, other = rig.claim(1), rig.claim(2)
    rig.topology = t1(offline=[8])
    rig.online = rig.topology.online
    rig.start(boot=NEXT_BOOT)
    assert set(rig.recorded) == {other.uid}
    cpus = rig.prepare(ref)
    assert len(cpus) == 2
    assert cpus <= rig.topology.online - before.claims[other.uid].cpus
    assert rig.on_disk().claims[ref.uid].preparation != before.claims[ref.uid].preparation


@pytest.mark.fault("R4", "H5", "S3")
@pytest.mark.parametrize("boot", [BOOT, ""])
def test_within_a_boot_a_claim_keeps_cpus_that_are_reserved_or_offline_now(rig: Rig, boot: str) -> None:
    before = rig.on_disk()
    rig.topology = t1(offline=[8])
    rig.online = rig.topology.online
    rig.start(reserved="0-1", boot=boot)
    assert rig.on_disk() == Checkpoint(CPUSet.parse("0-1"), before.claims)
    assert rig.prepare(rig.claim(1)) == before.claims[rig.claim(1).uid].cpus
    assert rig.prepare(rig.claim(3)).isdisjoint(CPUSet.parse("0-1,8-9"))


@pytest.mark.fault("R17")
@pytest.mark.parametrize("boot", [BOOT, NEXT_BOOT])
def test_claims_of_the_other_mode_keep_their_cpus(rig: Rig, boot: str) -> None:
    before = rig.on_disk()
    rig.start(mode=DeviceMode.INDIVIDUAL, boot=boot)
    assert rig.on_disk() == before
    ref = rig.claim(1)
    assert rig.prepare(ref) == CPUSet.parse("0,8")
    assert rig.unprepare(ref) == ""
    assert "belongs to cpuDeviceMode grouped" in rig.refusal(ref)


@pytest.mark.fault("R17")
@pytest.mark.parametrize("boot", [BOOT, NEXT_BOOT])
@pytest.mark.parametrize("group_by", [GroupBy.SOCKET, GroupBy.MACHINE])
def test_claims_of_another_grouping_keep_their_cpus(rig: Rig, boot: str, group_by: GroupBy) -> None:
    before = rig.on_disk()
    rig.start(group_by=group_by, default=CpuConfig(Strategy.PACKED), boot=boot)
    assert rig.on_disk() == before
    assert rig.prepare(rig.claim(1)) == CPUSet.parse("0,8")
    device = next(iter(rig.node.devices))
    assert rig.prepare(rig.claim(3, result(device))) == CPUSet.parse("2,10")
    assert rig.unprepare(rig.claim(1)) == ""
    assert "belongs to cpuDeviceMode grouped, groupBy numanode" in rig.refusal(rig.claim(1))
    rig.start(boot=boot)
    assert rig.prepare(rig.claim(3, result(device))) == CPUSet.parse("2,10")


@pytest.mark.fault("A13", "R17")
def test_cpus_that_a_claim_names_are_kept_over_a_reboot_unless_they_are_gone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, group_by=GroupBy.MACHINE)
    entry = config({"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "3,5"}})
    ref = rig.claims.put(configured(entry, results=[result("cpudevmachine")]))
    assert rig.prepare(ref) == CPUSet.parse("3,5")
    rig.start(group_by=GroupBy.MACHINE, boot=NEXT_BOOT)
    assert rig.recorded == {ref.uid: CPUSet.parse("3,5")}
    rig.start(group_by=GroupBy.MACHINE, reserved="5", boot=BOOT)
    assert rig.recorded == {}
    assert "the claim's cpuset 3,5: CPUs 5 are reserved" in rig.refusal(ref)


@pytest.mark.fault("R8")
def test_a_device_name_is_the_same_cpu_after_the_configuration_changed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, mode=DeviceMode.INDIVIDUAL)
    ref, reserved = rig.claim(1, result("cpudev003", None)), rig.claim(2, result("cpudev008", None))
    rig.start(mode=DeviceMode.INDIVIDUAL, reserved="0,8")
    assert rig.prepare(ref) == CPUSet([3])
    assert "cpudev008 does not exist on this node: all its CPUs (8) are reserved" in rig.refusal(reserved)


def test_a_checkpoint_of_a_newer_version_ends_the_start(rig: Rig) -> None:
    newer = rig.checkpoint.read_text().replace('"format":1,"readableBy":1', '"format":9,"readableBy":9')
    rig.checkpoint.write_text(newer)
    with pytest.raises(TooNew, match="run the version that wrote it"):
        rig.start()
    assert rig.checkpoint.read_text() == newer


@pytest.mark.fault("B2")
def test_an_unreadable_checkpoint_is_never_taken_for_an_empty_one(rig: Rig) -> None:
    rig.checkpoint.unlink()
    rig.checkpoint.mkdir()
    with pytest.raises(CheckpointError, match="is no regular file; remove it"):
        rig.start()


@pytest.mark.fault("B2")
def test_without_checkpoint_an_unreadable_cdi_directory_ends_the_start(rig: Rig) -> None:
    shutil.rmtree(rig.cdi.path)
    rig.cdi.path.write_text("no directory")
    rig.start()  # the checkpoint tells enough
    rig.checkpoint.unlink()
    with pytest.raises(CheckpointError, match="Not a directory"):
        rig.start()


def test_a_state_directory_that_can_not_be_made_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    with pytest.raises(CheckpointError, match="state"):
        Rig(tmp_path)


def test_an_instance_in_the_middle_of_a_transaction_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    other = FileLock(rig.checkpoint.with_name("serialize.lock"))
    assert other.acquire()
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        other.release()

    monkeypatch.setattr("time.sleep", sleep)
    rig.start()
    assert len(waits) == 1


def test_unknown_fields_of_a_newer_version_survive_a_transaction(tmp_path: Path) -> None:
    rig = Rig(tmp_path, machine(cores=4))
    rig.ledger._state = Checkpoint(CPUSet(), {}, unknown={"future": [1]}, envelope={"more": "x"})
    rig.ledger._write(rig.ledger._state)
    rig.prepare(rig.claim(1))
    rig.start()
    rig.prepare(rig.claim(2))
    assert (rig.on_disk().unknown, rig.on_disk().envelope) == ({"future": [1]}, {"more": "x"})

"""Promises of the ledger: what is on disk of a claim, and that callers, instances and versions may share the file."""

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from loguru import logger

from dra.cdi import CdiDirectory
from dra.prepare import ledger
from dra.prepare.preparer import PreparedDevice
from nri_cpu.checkpoint import codec, files
from nri_cpu.checkpoint.errors import CheckpointUnwritable
from nri_cpu.checkpoint.files import write_durably
from nri_cpu.checkpoint.locks import FileLock
from nri_cpu.checkpoint.model import ClaimRecord
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.manifests import NODE, result, uid
from tests.unit.dra.rig import Rig
from tests.unit.topology.machines import machine


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def parse(text: str) -> CPUSet:
    return CPUSet.parse(text)


@pytest.mark.fault("F-4")
def test_a_prepared_claim_is_on_disk_has_its_spec_and_its_answer(rig: Rig) -> None:
    ref = rig.claim(1, result(shareID=uid(9)), pod=uid(7))
    answer = rig.outcome(ref)[ref.uid]
    assert answer == (
        PreparedDevice(
            request="cpus",
            pool=NODE,
            device="cpudevnuma000",
            cdi_ids=(
                f"dra.k8s.io/cpu=claim-{ref.uid}-cpudevnuma000",
                f"dra.k8s.io/cpu=claim-{ref.uid}",
                f"dra.cpu/metadata={ref.uid}_cpus",
            ),
            share_id=uid(9),
        ),
    )
    record = rig.on_disk().claims[ref.uid]
    assert (record.cpus, record.namespace, record.name, record.pod_uids) == (parse("0,8"), "default", "c1", (uid(7),))
    assert rig.env(ref) == {
        f"DRA_CPUSET_{ref.uid}": "0,8",
        f"NRI_CPU_PREPARATION_{ref.uid}": record.preparation,
    }
    assert rig.spec(ref).stat().st_mode & 0o777 == 0o600


def test_an_unprepared_claim_leaves_nothing(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    assert rig.unprepare(ref) == ""
    assert rig.recorded == {}
    assert not rig.spec(ref).exists()


def test_every_preparation_is_a_new_one(rig: Rig) -> None:
    ref = rig.claim()
    seen = set()
    for _ in range(3):
        rig.prepare(ref)
        seen.add(rig.on_disk().claims[ref.uid].preparation)
        rig.unprepare(ref)
    assert len(seen) == 3


def test_concurrent_calls_share_a_write(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    go, writing = threading.Event(), threading.Event()

    def slow(path: Path, raw: bytes) -> None:
        writes.append(len(raw))
        writing.set()
        assert go.wait(30)
        write_durably(path, raw)

    monkeypatch.setattr(ledger, "write_durably", slow)
    refs = [rig.claim(number) for number in range(8)]
    threads = [threading.Thread(target=rig.outcome, args=(ref,)) for ref in refs]
    threads[0].start()
    assert writing.wait(30)
    for thread in threads[1:]:
        thread.start()
    limit = time.monotonic() + 30
    while len(rig.ledger._waiting) < 7 and time.monotonic() < limit:
        time.sleep(0.001)
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(rig.recorded) == 8
    assert len(writes) == 2


def test_the_work_for_a_claim_does_not_grow_with_those_that_are_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, machine(cores=32))
    for number in range(20):
        rig.prepare(rig.claim(number, cpus="1"))
    read: list[str] = []
    whole = codec.record_from_data

    def counting(uid: str, value: object, within: str = "claims.") -> ClaimRecord:
        read.append(uid)
        return whole(uid, value, within)

    monkeypatch.setattr(codec, "record_from_data", counting)
    ref = rig.claim(20, cpus="1")
    rig.outcome(ref)
    assert read == [ref.uid] * 2  # once for the checkpoint, once for its CDI spec
    read.clear()
    rig.unprepare(ref)
    assert read == []


def test_changes_are_told_after_each_transaction_that_made_one_and_no_other(rig: Rig) -> None:
    ref, other = rig.claim(1), rig.claim(2, cpus="0")
    rig.prepare(ref)
    assert (rig.changes, set(rig.ledger.claims)) == (1, {ref.uid})
    rig.prepare(ref)
    rig.refusal(other)
    rig.unprepare(other)
    assert rig.changes == 1
    rig.unprepare(ref)
    assert (rig.changes, set(rig.ledger.claims)) == (2, set())


def test_changes_are_told_with_no_lock_held(rig: Rig) -> None:
    seen: list[set[str]] = []
    second = rig.claim(2)

    def changed() -> None:
        seen.append(set(rig.ledger.claims))
        if len(seen) == 1:  # a transaction within, and one of another thread
            thread = threading.Thread(target=rig.prepare, args=(second,))
            thread.start()
            thread.join(30)
            assert rig.unprepare(second) == ""

    rig.ledger._changed = changed
    ref = rig.claim(1)
    rig.prepare(ref)
    assert seen == [{ref.uid}, {ref.uid, second.uid}, {ref.uid}]


def test_a_fault_in_what_follows_from_a_change_fails_no_claim(rig: Rig) -> None:
    def changed() -> None:
        raise RuntimeError("a fault of ours")

    rig.ledger._changed = changed
    ref = rig.claim()
    rig.prepare(ref)
    assert rig.unprepare(ref) == ""


@pytest.mark.fault("S2")
@pytest.mark.parametrize(
    ("damage", "aside"),
    [(Path.unlink, 0), (lambda path: path.write_bytes(b"{"), 2), (lambda path: path.write_bytes(b""), 2)],
    ids=["removed", "truncated", "emptied"],
)
def test_a_checkpoint_damaged_while_running_is_made_anew_from_memory(
    rig: Rig, damage: Callable[[Path], object], aside: int
) -> None:
    first, second = rig.claim(1), rig.claim(2)
    rig.prepare(first)
    damage(rig.checkpoint)
    assert rig.prepare(second) == parse("1,9")
    assert set(rig.recorded) == {first.uid, second.uid}
    damage(rig.checkpoint)
    assert rig.unprepare(second) == ""
    assert set(rig.recorded) == {first.uid}
    assert len(list(rig.checkpoint.parent.glob("*.corrupt-*"))) == aside


LOSSES = pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"{")], ids=["removed", "corrupt"])


@LOSSES
@pytest.mark.fault("S2", "A7")
def test_a_lost_checkpoint_takes_no_cpus_from_claims_of_another_instance(
    rig: Rig, lose: Callable[[Path], object]
) -> None:
    second = rig.another()
    a, b, c = (rig.claim(number) for number in (1, 2, 3))
    rig.prepare(a)
    second.prepare(b)
    before = rig.on_disk().claims
    lose(rig.checkpoint)
    assert rig.prepare(c) == parse("2,10")
    assert {uid_: record for uid_, record in rig.on_disk().claims.items() if uid_ != c.uid} == before
    assert rig.cdi.read() == rig.on_disk().claims


@LOSSES
@pytest.mark.fault("S2")
def test_a_lost_checkpoint_also_says_what_another_instance_unprepared_and_gave_anew(
    rig: Rig, lose: Callable[[Path], object]
) -> None:
    second = rig.another()
    gone, anew, other, more = (rig.claim(number) for number in (1, 2, 3, 4))
    rig.prepare(gone)
    rig.prepare(anew)
    second.unprepare(gone)
    second.unprepare(anew)
    second.prepare(other)
    second.prepare(anew)
    before = rig.on_disk().claims
    lose(rig.checkpoint)
    assert rig.prepare(more) == parse("2,10")
    assert {uid_: record for uid_, record in rig.on_disk().claims.items() if uid_ != more.uid} == before


@LOSSES
@pytest.mark.fault("S2")
def test_a_stray_spec_takes_no_cpu_from_a_claim_when_the_checkpoint_is_lost(
    rig: Rig, lose: Callable[[Path], object]
) -> None:
    stray, ref, other = (rig.claim(number) for number in (1, 2, 3))
    rig.prepare(stray)
    spec = rig.spec(stray).read_bytes()
    rig.unprepare(stray)
    rig.prepare(ref)
    before = rig.on_disk().claims
    rig.spec(stray).write_bytes(spec)
    lose(rig.checkpoint)
    assert rig.prepare(other) == parse("1,9")
    assert set(rig.recorded) == {ref.uid, other.uid}
    assert rig.on_disk().claims[ref.uid] == before[ref.uid]


@LOSSES
@pytest.mark.fault("S2", "B2")
def test_a_checkpoint_and_a_cdi_directory_that_are_both_lost_are_no_empty_ones(
    rig: Rig, tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    second = rig.another()
    first, other = rig.claim(1), rig.claim(2)
    second.prepare(first)
    lose(rig.checkpoint)
    rig.cdi.path.rename(tmp_path / "aside")
    rig.cdi.path.write_text("no directory")
    for _ in range(2):
        assert f"{rig.cdi.path} can't be listed" in rig.refusal(other)
        assert f"{rig.cdi.path} can't be listed" in rig.unprepare(first)
    rig.cdi.path.unlink()
    (tmp_path / "aside").rename(rig.cdi.path)
    assert rig.prepare(other) == parse("1,9")
    assert set(rig.recorded) == {first.uid, other.uid}


def test_a_stuck_instance_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "LOCK_WAIT", 0.02)
    stuck = FileLock(rig.checkpoint.with_name("serialize.lock"))
    assert stuck.acquire()
    ref = rig.claim()
    assert "another dra-cpu has held" in rig.refusal(ref)
    assert "another dra-cpu has held" in rig.unprepare(ref)
    stuck.release()
    rig.prepare(ref)


def test_a_checkpoint_of_a_newer_version_is_not_written_over(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    newer = rig.checkpoint.read_text().replace('"format":1,"readableBy":1', '"format":9,"readableBy":9')
    rig.checkpoint.write_text(newer)
    for _ in range(2):
        assert "run the version that wrote it" in rig.refusal(rig.claim(2))
        assert "run the version that wrote it" in rig.unprepare(ref)
    assert rig.checkpoint.read_text() == newer


@pytest.mark.parametrize("end", [Path.unlink, lambda path: path.write_bytes(b"{")], ids=["removed", "corrupt"])
def test_a_checkpoint_of_a_newer_version_that_is_gone_stands_in_no_ones_way(
    rig: Rig, end: Callable[[Path], object]
) -> None:
    first, second = rig.claim(1), rig.claim(2)
    rig.prepare(first)
    rig.checkpoint.write_text(
        rig.checkpoint.read_text().replace('"format":1,"readableBy":1', '"format":9,"readableBy":9')
    )
    assert "run the version that wrote it" in rig.refusal(second)
    end(rig.checkpoint)
    assert rig.prepare(second) == parse("1,9")
    assert set(rig.recorded) == {first.uid, second.uid}


@pytest.mark.fault("A1", "K11")
def test_a_write_that_may_yet_be_lost_leaves_nothing_for_the_next_transaction(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, refused, after = (rig.claim(number) for number in (1, 2, 3))
    rig.prepare(kept)

    def unsure(path: Path, raw: bytes) -> None:
        write_durably(path, raw)
        raise CheckpointUnwritable("the directory can't be synced")

    with monkeypatch.context() as broken:
        broken.setattr(ledger, "write_durably", unsure)
        assert "can't be synced" in rig.refusal(refused)
        assert "can't be synced" in rig.unprepare(kept)
    assert rig.prepare(after) == parse("1,9")
    assert set(rig.recorded) == {kept.uid, after.uid}
    assert rig.cdi.read() == rig.on_disk().claims


@pytest.mark.fault("A1", "A3", "K5")
def test_a_read_only_cdi_directory_costs_nobody_what_he_has(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, refused, unknown = (rig.claim(number) for number in (1, 2, 3))
    answer = rig.outcome(kept)
    before, unlink, whole = rig.snapshot(), os.unlink, files.replace

    def replace(path: Path, raw: bytes, mode: int = 0o600) -> None:
        if path.parent == rig.cdi.path:
            raise CheckpointUnwritable(f"{path} can't be written: Read-only file system")
        whole(path, raw, mode)

    def refuse(path: Path, *, dir_fd: int | None = None) -> None:
        if Path(path).parent == rig.cdi.path:  # the kernel does not look whether it is there
            raise OSError(errno.EROFS, "Read-only file system")
        unlink(path, dir_fd=dir_fd)

    with monkeypatch.context() as mounted:
        mounted.setattr(files, "replace", replace)
        mounted.setattr(os, "unlink", refuse)
        assert "Read-only file system" in rig.refusal(refused)
        assert set(rig.recorded) == {kept.uid}
        assert rig.unprepare(unknown) == ""
        assert rig.outcome(kept) == answer
        assert "Read-only file system" in rig.unprepare(kept)
    assert rig.snapshot() == before
    assert rig.prepare(refused) == parse("1,9")
    assert rig.unprepare(kept) == ""


@LOSSES
@pytest.mark.fault("S1")
def test_nothing_is_answered_while_a_lost_checkpoint_can_not_be_written(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], object]
) -> None:
    """Neither a claim that keeps what it has nor one that never had anything: both answers rely on the file."""
    kept, unknown, asked = rig.claim(1), rig.claim(2), rig.claim(3, cpus="17")
    cpus = rig.prepare(kept)
    lose(rig.checkpoint)

    def fail(path: Path, raw: bytes) -> None:
        raise CheckpointUnwritable("disk full")

    lines: list[str] = []
    sink = logger.add(lines.append, level="ERROR", format="{message}")
    with monkeypatch.context() as broken:
        broken.setattr(ledger, "write_durably", fail)
        assert rig.refusal(kept) == f"claim {kept}: disk full"
        assert rig.unprepare(unknown) == f"claim {unknown}: disk full"
        assert rig.unprepare(kept) == f"claim {kept}: disk full"
        lines.clear()
        assert "disk full" not in rig.refusal(asked)
    logger.remove(sink)
    assert not rig.checkpoint.exists()
    assert "disk full. The next claim to be prepared or unprepared tries again" in "".join(lines)
    assert rig.prepare(kept) == cpus
    assert rig.unprepare(unknown) == ""


@pytest.mark.fault("A1")
def test_a_claim_that_is_taken_back_has_no_spec_of_before_either(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = rig.claim()
    rig.cdi.write(ref.uid, b"{}")

    def fail(self: CdiDirectory, uid: str, spec: bytes) -> None:
        raise CheckpointUnwritable("no space")

    monkeypatch.setattr(CdiDirectory, "write", fail)
    assert rig.refusal(ref) == f"claim {ref}: no space"
    assert not rig.spec(ref).exists()
    assert rig.recorded == {}

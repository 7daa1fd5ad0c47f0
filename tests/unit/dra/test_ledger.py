"""Promises of the ledger: what is on disk of a claim, and that callers, instances and versions may share the file."""

import threading
import time
from pathlib import Path

import pytest

from dra.prepare import ledger
from dra.prepare.preparer import PreparedDevice
from nri_cpu.checkpoint.files import write_durably
from nri_cpu.checkpoint.locks import FileLock
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.manifests import NODE, result, uid
from tests.unit.dra.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def parse(text: str) -> CPUSet:
    return CPUSet.parse(text)


def test_a_prepared_claim_is_on_disk_has_its_spec_and_its_answer(rig: Rig) -> None:
    ref = rig.claim(1, result(shareID=uid(9)), pod=uid(7))
    answer = rig.outcome(ref)[ref.uid]
    assert answer == (
        PreparedDevice(
            request="cpus",
            pool=NODE,
            device="cpudevnuma000",
            cdi_ids=(f"dra.k8s.io/cpu=claim-{ref.uid}-cpudevnuma000", f"dra.k8s.io/cpu=claim-{ref.uid}"),
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


def test_what_another_instance_wrote_counts(rig: Rig, tmp_path: Path) -> None:
    second = Rig.__new__(Rig)
    second.checkpoint, second.cdi, second.claims = rig.checkpoint, rig.cdi, rig.claims
    second.topology, second.online = rig.topology, rig.online
    second.start()
    a, b, c = (rig.claim(number) for number in (1, 2, 3))
    assert (rig.prepare(a), second.prepare(b), rig.prepare(c)) == (parse("0,8"), parse("1,9"), parse("2,10"))
    second.unprepare(a)
    assert set(rig.recorded) == {b.uid, c.uid}
    assert rig.unprepare(a) == ""
    assert rig.prepare(a) == parse("0,8")


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

"""Promises to two instances on one node, as there are during an upgrade: each sees what the other has done."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from loguru import logger

from dra.claims import ClaimRef
from dra.devices import DeviceMode
from dra.health import health_of
from dra.offer import offered
from nri_cpu.checkpoint.locks import FileLock
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.rig import Rig
from tests.unit.topology.machines import machine


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def parse(text: str) -> CPUSet:
    return CPUSet.parse(text)


def test_what_another_instance_wrote_counts(rig: Rig) -> None:
    second = rig.another()
    a, b, c = (rig.claim(number) for number in (1, 2, 3))
    assert (rig.prepare(a), second.prepare(b), rig.prepare(c)) == (parse("0,8"), parse("1,9"), parse("2,10"))
    second.unprepare(a)
    assert set(rig.recorded) == {b.uid, c.uid}
    assert rig.unprepare(a) == ""
    assert rig.prepare(a) == parse("0,8")


def test_what_another_instance_changed_is_told_when_it_is_seen(rig: Rig) -> None:
    ref = rig.claim()
    rig.another().prepare(ref)
    assert rig.changes == 0
    rig.unprepare(rig.claim(2))
    assert (rig.changes, set(rig.ledger.claims)) == (1, {ref.uid})


@pytest.mark.fault("K9", "A7")
def test_two_instances_at_work_at_the_same_time_lose_no_claim_and_share_no_cpu(tmp_path: Path) -> None:
    rig = Rig(tmp_path, machine(cores=32))
    instances = [rig, rig.another()]
    refs = [rig.claim(number, cpus="1") for number in range(24)]
    wrong: list[str] = []

    def work(share: list[ClaimRef]) -> None:
        for at, ref in enumerate(share):
            prepared = instances[at % 2].outcome(ref)[ref.uid]
            wrong.extend([prepared] if isinstance(prepared, str) else [])
            if at % 3 == 0:
                wrong.append(instances[(at + 1) % 2].unprepare(ref))

    threads = [threading.Thread(target=work, args=(refs[at::4],)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert "".join(wrong) == ""
    kept = {ref.uid for at in range(4) for number, ref in enumerate(refs[at::4]) if number % 3}
    assert set(rig.recorded) == kept
    assert len(CPUSet.union(rig.recorded.values())) == len(kept)
    assert rig.cdi.read() == rig.on_disk().claims
    assert {ref.uid for ref in refs if rig.has_metadata(ref)} == kept


@pytest.mark.fault("R4", "S1")
def test_reserved_cpus_stay_those_of_the_instance_that_started_last(rig: Rig) -> None:
    newer = rig.another(reserved="3,11")
    ref = rig.claim(1)
    rig.prepare(ref)
    rig.unprepare(ref)
    rig.prepare(ref)
    assert rig.on_disk().reserved == parse("3,11")
    rig.checkpoint.unlink()
    rig.prepare(rig.claim(2))
    assert rig.on_disk().reserved == parse("3,11")
    newer.prepare(rig.claim(3))
    assert rig.on_disk().reserved == parse("3,11")


def test_an_instance_that_starts_with_other_reserved_cpus_is_told_of_once(rig: Rig) -> None:
    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING", format="{message}")
    rig.another(reserved="3,11")
    for _ in range(3):
        rig.ledger.look()
    rig.prepare(rig.claim(1))
    logger.remove(sink)
    assert lines == ["another dra-cpu has started with reservedCPUs 3,11, not none: the last start counts\n"]


@pytest.mark.fault("K9", "R17", "B10")
def test_what_another_instance_prepares_and_unprepares_is_seen_at_the_next_look(rig: Rig) -> None:
    newer = rig.another(mode=DeviceMode.INDIVIDUAL)
    ref = rig.claim(1)
    cpus = rig.prepare(ref)
    newer.ledger.look()
    assert (newer.changes, set(newer.ledger.claims)) == (1, {ref.uid})
    assert not any(device.cpus & cpus for device in offered(newer.node, newer.ledger.claims))
    health = health_of(newer.node, newer.ledger.claims, newer.online - cpus)
    assert {report.device for report in health if not report.healthy} == {"cpudevnuma000"}
    rig.unprepare(ref)
    newer.ledger.look()
    assert (newer.changes, dict(newer.ledger.claims)) == (2, {})
    assert len(offered(newer.node, newer.ledger.claims)) == len(newer.online)


def test_a_look_tells_nothing_when_nothing_is_new(rig: Rig) -> None:
    rig.prepare(rig.claim(1))
    rig.another(reserved="3,11")
    for _ in range(3):
        rig.ledger.look()
    assert rig.changes == 1


def test_a_look_waits_for_no_transaction(rig: Rig) -> None:
    other = FileLock(rig.checkpoint.with_name("serialize.lock"))
    assert other.acquire()
    thread = threading.Thread(target=rig.prepare, args=(rig.claim(1),))
    thread.start()
    try:
        while not rig.ledger._turn.locked():
            assert thread.is_alive()
        rig.ledger.look()
        assert rig.changes == 0
    finally:
        other.release()
        thread.join(30)
    assert rig.changes == 1


@pytest.mark.fault("S2", "B2")
@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"{")], ids=["removed", "corrupt"])
def test_a_look_at_a_lost_checkpoint_is_told_once_and_the_next_transaction_mends_it(
    rig: Rig, lose: Callable[[Path], object]
) -> None:
    first, second = rig.claim(1), rig.claim(2)
    rig.prepare(first)
    lines: list[str] = []
    sink = logger.add(lines.append, level="ERROR")
    for _ in range(2):
        lose(rig.checkpoint)
        lines.clear()
        for _ in range(3):
            rig.ledger.look()
        assert len(lines) == 1
        assert set(rig.ledger.claims) >= {first.uid}
        assert rig.prepare(second) == parse("1,9")
        assert set(rig.recorded) == {first.uid, second.uid}
        assert rig.unprepare(second) == ""
    logger.remove(sink)


def test_a_checkpoint_that_another_instance_has_mended_is_good_again(rig: Rig) -> None:
    other = rig.another()
    first, second = rig.claim(1), rig.claim(2)
    rig.prepare(first)
    rig.checkpoint.write_bytes(b"{")
    rig.ledger.look()
    other.prepare(second)
    rig.ledger.look()
    assert set(rig.ledger.claims) == {first.uid, second.uid}
    assert rig.unprepare(first) == ""
    assert set(rig.recorded) == {second.uid}


@pytest.mark.fault("K3")
def test_a_closed_ledger_carries_out_nothing(rig: Rig) -> None:
    """A call whose caller has gone may come late, after another instance has unprepared its claim."""
    kept, late = rig.claim(1), rig.claim(2)
    rig.prepare(kept)
    other = rig.another()
    rig.ledger.close()
    before = rig.snapshot()
    assert "dra-cpu is ending" in rig.refusal(late)
    assert "dra-cpu is ending" in rig.unprepare(kept)
    assert rig.snapshot() == before
    other.unprepare(kept)
    rig.ledger.look()
    assert rig.changes == 1

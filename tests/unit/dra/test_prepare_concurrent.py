"""Promises of Prepare and Unprepare at the same time: one claim's calls follow one another, others don't wait."""

import threading
import time
from pathlib import Path

import pytest

from dra.claims import ClaimRef
from tests.unit.dra.rig import Rig
from tests.unit.topology.machines import machine


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.fault("K4")
def test_a_slow_read_of_one_claim_holds_up_no_other(rig: Rig) -> None:
    slow, quick, done = rig.claim(1), rig.claim(2), rig.claim(3)
    rig.prepare(done)
    go, reading = threading.Event(), threading.Event()

    def wait(ref: ClaimRef) -> None:
        if ref == slow:
            reading.set()
            assert go.wait(30)

    rig.claims.before = wait
    thread = threading.Thread(target=rig.outcome, args=(slow,))
    thread.start()
    assert reading.wait(30)
    assert len(rig.prepare(quick)) == 2
    assert rig.unprepare(done) == ""
    assert slow.uid not in rig.recorded
    go.set()
    thread.join(30)
    assert set(rig.recorded) == {slow.uid, quick.uid}


@pytest.mark.fault("K3")
def test_calls_for_one_claim_follow_one_another(rig: Rig) -> None:
    ref = rig.claim()
    go, reading = threading.Event(), threading.Event()

    def wait(ref: ClaimRef) -> None:
        reading.set()
        assert go.wait(30)

    rig.claims.before = wait
    prepare = threading.Thread(target=rig.outcome, args=(ref,))
    prepare.start()
    assert reading.wait(30)
    assert "an earlier call for it is still at work" in rig.outcome(ref, seconds=0.05)[ref.uid]
    assert "an earlier call for it is still at work" in rig.preparer.unprepare([ref], time.monotonic())[ref.uid]
    unprepare = threading.Thread(target=rig.unprepare, args=(ref,))
    unprepare.start()
    go.set()
    prepare.join(30)
    unprepare.join(30)
    assert rig.recorded == {}
    assert not rig.spec(ref).exists()


@pytest.mark.fault("A15")
def test_fifty_concurrent_claims_leave_fifty_intact_specs(tmp_path: Path) -> None:
    rig = Rig(tmp_path, machine(cores=64, threads=2))
    refs = [rig.claim(number) for number in range(50)]
    threads = [threading.Thread(target=rig.outcome, args=(ref,)) for ref in refs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(rig.cdi.read()) == set(rig.recorded) == {ref.uid for ref in refs}
    rig.unprepare(refs[7])
    assert set(rig.cdi.read()) == set(rig.recorded) == {ref.uid for ref in refs if ref != refs[7]}

"""Promises of Prepare and Unprepare at the same time: one claim's calls follow one another, others don't wait."""

import threading
import time
from pathlib import Path

import pytest

from dra.claims import ClaimError, ClaimRef
from dra.prepare.reads import HELPERS
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


@pytest.mark.fault("K4")
def test_claims_of_one_call_are_read_at_the_same_time_and_not_too_many(tmp_path: Path) -> None:
    rig = Rig(tmp_path, machine(cores=64, threads=2))
    most = HELPERS + 1
    together = threading.Barrier(most)
    counting = threading.Lock()
    now = at_most = 0

    def meet(ref: ClaimRef) -> None:
        nonlocal now, at_most
        with counting:
            now += 1
            at_most = max(at_most, now)
        together.wait(30)
        with counting:
            now -= 1

    rig.claims.before = meet
    refs = [rig.claim(number) for number in range(3 * most)]
    answer = rig.outcome(*refs)
    assert [len(answer[ref.uid]) for ref in refs] == [1] * len(refs)
    assert at_most == most


@pytest.mark.fault("K4")
def test_a_call_is_not_kept_by_the_reads_of_another(tmp_path: Path) -> None:
    rig = Rig(tmp_path, machine(cores=64, threads=2))
    slow = [rig.claim(number) for number in range(HELPERS + 1)]
    quick = [rig.claim(number) for number in range(20, 24)]
    go = threading.Event()
    reading = threading.Semaphore(0)

    def wait(ref: ClaimRef) -> None:
        if ref in slow:
            reading.release()
            assert go.wait(30)

    rig.claims.before = wait
    thread = threading.Thread(target=rig.outcome, args=slow)
    thread.start()
    for _ in slow:
        assert reading.acquire(timeout=30)
    assert [len(devices) for devices in rig.outcome(*quick).values()] == [1] * len(quick)
    assert set(rig.recorded) == {ref.uid for ref in quick}
    go.set()
    thread.join(30)
    assert set(rig.recorded) == {ref.uid for ref in (*slow, *quick)}


@pytest.mark.fault("K4")
def test_answers_come_in_the_order_of_the_request_whatever_was_read_first(rig: Rig) -> None:
    refs = [rig.claim(number, cpus="1") for number in range(6)]
    later = threading.Event()

    def wait(ref: ClaimRef) -> None:
        if ref == refs[-1]:
            later.set()
        elif ref == refs[0]:
            assert later.wait(30)
        elif ref == refs[3]:
            raise ClaimError("it can't be read")

    rig.claims.before = wait
    answer = rig.outcome(*refs)
    assert answer[refs[3].uid] == f"claim {refs[3]}: it can't be read"
    # CPUs too: which one a claim gets is not left to the network.
    assert [str(rig.recorded[ref.uid]) for ref in refs if ref != refs[3]] == ["0", "8", "1", "9", "2"]


@pytest.mark.fault("K3")
def test_a_caller_that_has_gone_has_nothing_done(rig: Rig) -> None:
    gone, kept = rig.claim(1), rig.claim(2)
    rig.prepare(kept)
    before = rig.snapshot()
    answer = rig.preparer.prepare([gone], time.monotonic() + 30, lambda: False)
    assert str(answer[gone.uid]).endswith(
        "the kubelet has given the call up, and nothing is done for it; it tries again"
    )
    refused = rig.preparer.unprepare([kept], time.monotonic() + 30, lambda: False)
    assert "the kubelet has given the call up" in refused[kept.uid]
    assert rig.snapshot() == before


@pytest.mark.fault("A25")
def test_at_the_end_no_more_claims_are_read_and_what_was_read_is_prepared(rig: Rig) -> None:
    refs = [rig.claim(number, cpus="1") for number in range(3 * (HELPERS + 1))]
    reading, go = threading.Semaphore(0), threading.Event()

    def wait(ref: ClaimRef) -> None:
        reading.release()
        assert go.wait(30)

    rig.claims.before = wait
    answers: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: answers.append(rig.outcome(*refs)))
    thread.start()
    for _ in range(HELPERS + 1):
        assert reading.acquire(timeout=30)
    rig.preparer.stop()
    go.set()
    thread.join(30)
    (answer,) = answers
    assert [isinstance(answer[ref.uid], tuple) for ref in refs] == [ref in rig.claims.reads for ref in refs]
    assert len(rig.claims.reads) == HELPERS + 1
    assert answer[refs[-1].uid] == f"claim {refs[-1]}: dra-cpu stops; the kubelet tries again"
    assert rig.unprepare(refs[0]) == ""

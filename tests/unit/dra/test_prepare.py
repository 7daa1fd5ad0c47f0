"""Promises of Prepare and Unprepare: whole or not at all, the same CPUs until Unprepare, one answer for each claim."""

import time
from pathlib import Path

import pytest
from loguru import logger

from dra.cdi import CdiDirectory
from dra.claims import ClaimRef
from dra.devices import DeviceMode
from dra.prepare import ledger
from nri_cpu.checkpoint.errors import CheckpointUnwritable
from nri_cpu.checkpoint.files import write_durably
from nri_cpu.cpuset import CPUSet
from nri_cpu.policy.claiming import Use, wish
from nri_cpu.policy.events import follow
from nri_cpu.policy.state import Facts, State
from nri_cpu.topology import read_online
from tests.unit.dra.manifests import config, configured, manifest, result, uid
from tests.unit.dra.rig import Rig
from tests.unit.topology.machines import machine


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def parse(text: str) -> CPUSet:
    return CPUSet.parse(text)


@pytest.mark.fault("A1")
def test_a_spec_that_can_not_be_written_undoes_everything(rig: Rig) -> None:
    rig.cdi.path.rmdir() if rig.cdi.path.exists() else None
    rig.cdi.path.write_text("no directory")
    ref = rig.claim()
    assert f"claim {ref}: the directory {rig.cdi.path} can't be made" in rig.refusal(ref)
    assert rig.recorded == {}
    rig.cdi.path.unlink()
    assert rig.prepare(ref) == parse("0,8")


@pytest.mark.fault("A1")
def test_a_failed_spec_takes_nothing_from_the_others_of_its_transaction(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = rig.claim(1), rig.claim(2)
    whole = CdiDirectory.write

    def write(self: CdiDirectory, uid: str, spec: bytes) -> None:
        if uid == bad.uid:
            raise CheckpointUnwritable("no space")
        whole(self, uid, spec)

    monkeypatch.setattr(CdiDirectory, "write", write)
    answer = rig.outcome(bad, good)
    assert answer[bad.uid] == f"claim {bad}: no space"
    assert set(rig.recorded) == {good.uid}
    assert not rig.spec(bad).exists()


@pytest.mark.fault("A1", "A3")
def test_a_spec_that_can_not_be_made_anew_takes_no_cpus_from_a_claim_prepared_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = rig.claim()
    before = rig.prepare(ref)
    rig.spec(ref).unlink()

    def fail(self: CdiDirectory, uid: str, spec: bytes) -> None:
        raise CheckpointUnwritable("no space")

    with monkeypatch.context() as broken:
        broken.setattr(CdiDirectory, "write", fail)
        assert rig.refusal(ref) == f"claim {ref}: no space"
    assert rig.recorded == {ref.uid: before}
    assert rig.prepare(ref) == before


@pytest.mark.fault("A1", "S1")
def test_a_checkpoint_that_can_not_be_written_undoes_everything(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, ref = rig.claim(1), rig.claim(2)
    rig.prepare(kept)
    before = rig.snapshot()

    def fail(path: Path, raw: bytes) -> None:
        raise CheckpointUnwritable("disk full")

    monkeypatch.setattr(ledger, "write_durably", fail)
    assert rig.refusal(ref) == f"claim {ref}: disk full"
    assert rig.unprepare(kept) == f"claim {kept}: disk full"
    assert rig.snapshot() == before
    monkeypatch.setattr(ledger, "write_durably", write_durably)
    assert rig.prepare(ref) == parse("1,9")
    assert rig.unprepare(kept) == ""


@pytest.mark.fault("A1", "A3")
def test_a_record_that_can_not_be_taken_back_serves_the_next_prepare(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    ref, other = rig.claim(1), rig.claim(2)
    writes: list[Path] = []

    def once(path: Path, raw: bytes) -> None:
        writes.append(path)
        if len(writes) > 1:
            raise CheckpointUnwritable("disk full")
        write_durably(path, raw)

    rig.cdi.path.write_text("no directory")
    with monkeypatch.context() as broken:
        broken.setattr(ledger, "write_durably", once)
        assert "can't be made" in rig.refusal(ref)
    before = rig.on_disk().claims[ref.uid]
    rig.cdi.path.unlink()
    assert rig.prepare(other).isdisjoint(before.cpus)
    assert rig.prepare(ref) == before.cpus
    assert rig.cdi.read() == rig.on_disk().claims


@pytest.mark.fault("A2")
def test_a_spec_that_can_not_be_removed_keeps_the_claim(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    ref, other = rig.claim(1), rig.claim(2)
    rig.prepare(ref)
    before = rig.snapshot()

    def fail(self: CdiDirectory, uid: str) -> None:
        raise CheckpointUnwritable("input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(CdiDirectory, "remove", fail)
        assert rig.unprepare(ref) == f"claim {ref}: input/output error"
    assert rig.snapshot() == before
    assert rig.prepare(other) == parse("1,9")
    assert rig.unprepare(ref) == ""
    assert ref.uid not in rig.recorded


@pytest.mark.fault("A2")
def test_a_spec_that_is_gone_is_no_failure(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    rig.spec(ref).unlink()
    assert rig.unprepare(ref) == ""
    rig.cdi.path.rmdir()
    assert rig.unprepare(ref) == ""


@pytest.mark.fault("A3", "A6", "K1", "K10")
def test_a_prepared_claim_keeps_cpus_and_preparation_and_gets_its_spec_anew(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    before, answer = rig.snapshot(), rig.outcome(ref)
    rig.spec(ref).unlink()
    assert rig.outcome(ref) == answer
    assert rig.snapshot() == before
    rig.spec(ref).write_text("{")
    assert rig.outcome(ref) == answer
    assert rig.snapshot() == before
    rig.unprepare(ref)
    assert rig.recorded == {}


@pytest.mark.fault("A4")
def test_results_of_one_claim_are_disjoint_and_have_their_own_cdi_device(rig: Rig) -> None:
    ref = rig.claim(1, result(request="r1"), result(request="r2"))
    answer = rig.outcome(ref)[ref.uid]
    assert [device.cdi_ids[0] for device in answer] == [
        f"dra.k8s.io/cpu=claim-{ref.uid}-cpudevnuma000",
        f"dra.k8s.io/cpu=claim-{ref.uid}-cpudevnuma000-2",
    ]
    record = rig.on_disk().claims[ref.uid]
    assert record.cpus == parse("0-1,8-9")
    assert record.devices[0].cpus.isdisjoint(record.devices[1].cpus)


@pytest.mark.fault("A5")
def test_a_claim_without_our_devices_is_prepared_with_none(rig: Rig) -> None:
    gpu = {"request": "gpu", "driver": "gpu.example", "pool": "p", "device": "gpu0"}
    mixed, foreign = rig.claim(1, result(), gpu), rig.claim(2, gpu)
    answer = rig.outcome(mixed, foreign)
    assert [device.device for device in answer[mixed.uid]] == ["cpudevnuma000"]
    assert answer[foreign.uid] == ()
    assert set(rig.recorded) == {mixed.uid}
    assert not rig.spec(foreign).exists()


@pytest.mark.fault("A7")
def test_a_device_goes_to_one_claim_at_a_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path, mode=DeviceMode.INDIVIDUAL)
    first, second = rig.claim(1, result("cpudev002", None)), rig.claim(2, result("cpudev002", None))
    rig.prepare(first)
    assert f"CPU 2 of device cpudev002 is prepared for claim default/c1 ({first.uid})" in rig.refusal(second)
    rig.unprepare(first)
    assert rig.prepare(second) == parse("2")


@pytest.mark.fault("A8", "A9", "B9")
@pytest.mark.parametrize("wrong", [result(cpus="500m"), result(cpus="0"), result(cpus=None), result(adminAccess=True)])
def test_a_refused_claim_changes_nothing(rig: Rig, wrong: dict[str, object]) -> None:
    before = rig.snapshot()
    ref = rig.claim(1, wrong)
    assert rig.refusal(ref).startswith(f"claim default/c1 ({ref.uid}): ")
    assert rig.snapshot() == before


@pytest.mark.fault("B3")
def test_minimum_of_shared_cpus_counts_all_prepared_claims(tmp_path: Path) -> None:
    rig = Rig(tmp_path, machine(cores=4), min_shared=1)
    rig.prepare(rig.claim(1, cpus="2"))
    assert "its 2 CPUs would leave 0 shared CPUs, minimum 1" in rig.refusal(rig.claim(2, cpus="2"))
    rig.prepare(rig.claim(3, cpus="1"))


@pytest.mark.fault("A10")
def test_the_first_thing_that_happens_may_be_a_prepare(rig: Rig) -> None:
    assert rig.prepare(rig.claim()) == parse("0,8")


@pytest.mark.fault("B14", "N9")
def test_without_nri_cpu_in_the_runtime_nothing_is_prepared(rig: Rig) -> None:
    ref = rig.claim()
    rig.plugin.release()
    assert "nri-cpu is not in the container runtime" in rig.refusal(ref)
    assert rig.claims.reads == []
    assert rig.recorded == {}
    assert rig.plugin.acquire()
    rig.prepare(ref)
    rig.plugin.release()
    assert "nri-cpu is not in the container runtime" in rig.refusal(ref)
    assert rig.unprepare(ref) == ""


def test_a_node_may_do_without_nri_cpu(rig: Rig) -> None:
    rig.plugin.release()
    rig.start(require_plugin=False)
    assert rig.prepare(rig.claim()) == parse("0,8")


@pytest.mark.fault("K3")
def test_a_claim_that_was_replaced_or_is_not_allocated_leaves_no_state(rig: Rig) -> None:
    before = rig.snapshot()
    ref = rig.claim(1)
    rig.claims.put(manifest(claim_uid=uid(2), name="c1"))
    assert "replaced" in rig.refusal(ref)
    rig.claims.put(manifest(claim_uid=uid(1), name="c1") | {"status": {}})
    assert "is not allocated" in rig.refusal(ref)
    assert rig.snapshot() == before


@pytest.mark.fault("A6")
def test_a_claim_allocated_anew_while_it_is_prepared_is_refused(rig: Rig) -> None:
    ref = rig.claim(1, cpus="2")
    rig.prepare(ref)
    rig.claim(1, cpus="4")
    assert "prepared here with 2 CPUs" in rig.refusal(ref)
    rig.unprepare(ref)
    assert len(rig.prepare(ref)) == 4


@pytest.mark.fault("K5")
def test_unprepare_reads_no_claim_and_an_unknown_one_is_a_success(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    rig.claims.manifests.clear()
    rig.claims.reads.clear()
    assert rig.unprepare(ref) == ""
    assert rig.unprepare(ref) == ""
    for strange in ("", "../../../etc/passwd", "x" * 5000):
        assert rig.unprepare(ClaimRef(strange, "", "")) == ""
    assert rig.claims.reads == []


@pytest.mark.fault("K5", "K12")
def test_unprepare_of_an_unknown_claim_removes_a_stray_spec(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    spec = rig.spec(ref).read_bytes()
    rig.unprepare(ref)
    rig.spec(ref).write_bytes(spec)
    assert rig.unprepare(ref) == ""
    assert not rig.spec(ref).exists()


def test_each_claim_has_exactly_one_answer(rig: Rig) -> None:
    good, twice, missing = rig.claim(1), rig.claim(2), ClaimRef(uid(3), "default", "c3")
    nameless = ClaimRef("", "", "")
    answer = rig.outcome(good, twice, twice, missing, nameless)
    assert set(answer) == {good.uid, twice.uid, missing.uid, ""}
    assert answer[missing.uid] == f"claim default/c3 ({missing.uid}): there is no claim c3"
    assert "does not name a claim" in answer[""]
    assert rig.outcome() == {}
    assert rig.preparer.unprepare([], time.monotonic() + 30) == {}


@pytest.mark.fault("K4")
def test_a_fault_of_one_claim_is_that_claims_error(rig: Rig) -> None:
    bad, good = rig.claim(1), rig.claim(2)

    def fail(ref: ClaimRef) -> None:
        if ref == bad:
            raise RuntimeError("a fault of ours")

    rig.claims.before = fail
    answer = rig.outcome(bad, good)
    assert answer[bad.uid] == f"claim {bad}: dra-cpu failed, its log says where: RuntimeError"
    assert len(answer[good.uid]) == 1


def test_without_a_list_of_cpus_on_line_nothing_is_prepared_and_the_reason_is_told(rig: Rig, tmp_path: Path) -> None:
    kept, ref = rig.claim(1), rig.claim(2)
    rig.prepare(kept)
    before = rig.snapshot()
    rig.start(online=lambda: read_online(tmp_path))
    assert rig.refusal(ref).startswith(f"claim {ref}: {tmp_path}/sys/devices/system/cpu/online tells of no CPU")
    assert rig.snapshot() == before
    assert rig.unprepare(kept) == ""


@pytest.mark.fault("K4")
def test_a_claim_that_no_file_can_hold_is_that_claims_error(rig: Rig) -> None:
    bad, good = rig.claim(1), rig.claim(2)
    rig.claims.manifests["c1"]["metadata"]["namespace"] = "\ud800"
    answer = rig.outcome(bad, good)
    assert answer[bad.uid].startswith(f"claim {bad}: ")
    assert len(answer[good.uid]) == 1
    assert set(rig.recorded) == {good.uid}


def test_decisions_are_logged_and_no_preparation_ever_is(rig: Rig) -> None:
    lines: list[str] = []
    sink = logger.add(lines.append, level=0, diagnose=True)
    ref = rig.claim()
    rig.prepare(ref)
    secret = rig.on_disk().claims[ref.uid].preparation
    rig.claims.manifests.clear()
    rig.refusal(ref)
    rig.unprepare(ref)
    logger.remove(sink)
    assert [line.split(" - ", 1)[1].rstrip() for line in lines] == [
        f"claim {ref} is prepared: CPUs 0,8 (cpudevnuma000)",
        f"claim {ref} is not prepared: there is no claim c1",
        f"claim {ref} is unprepared: its CPUs 0,8 are free",
    ]
    assert secret not in "".join(lines)


@pytest.mark.fault("B5")
def test_how_cpus_were_chosen_is_on_disk_and_counts_until_unprepare(rig: Rig) -> None:
    def claim(**cpu_config: object) -> ClaimRef:
        return rig.claims.put(configured(config({"apiVersion": "v1alpha1", "cpuConfig": cpu_config})))

    ref = claim(fullPhysicalCores=True)
    before = rig.prepare(ref)
    assert rig.on_disk().claims[ref.uid].options == {"cpus": {"strategy": "packed", "fullPhysicalCores": True}}
    # A version that does not know a parameter keeps what another one has prepared with it.
    assert rig.prepare(claim(fullPhysicalCores=True, tomorrow=1)) == before
    assert rig.unprepare(ref) == ""
    assert "cpuConfig has the unknown key 'tomorrow' (1)" in rig.refusal(ref)
    assert rig.recorded == {}


@pytest.mark.fault("A40")
@pytest.mark.parametrize("mode", DeviceMode)
def test_a_claim_that_the_scheduler_made_for_an_extended_resource_is_one_like_others(
    tmp_path: Path, mode: DeviceMode
) -> None:
    rig = Rig(tmp_path, mode=mode)
    individual = [result(f"cpudev{cpu:03}", None, "container-0-request-0") for cpu in (2, 10)]
    results = individual if mode is DeviceMode.INDIVIDUAL else [result(request="container-0-request-0")]
    claim = manifest(*results, name="pod-extended-resources-8dkl2")
    claim["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    ref = rig.claims.put(claim)
    assert len(rig.prepare(ref)) == 2
    told = rig.metadata_of(ref, "container-0-request-0")
    assert told["metadata"]["name"] == ref.name
    assert rig.unprepare(ref) == ""
    assert rig.recorded == {}


@pytest.mark.fault("B7")
def test_two_claims_of_the_most_devices_that_a_claim_can_have_are_64_cpus_for_one_container(tmp_path: Path) -> None:
    rig = Rig(tmp_path, machine(cores=40, threads=2), mode=DeviceMode.INDIVIDUAL)
    refs = [
        rig.claim(number, *(result(f"cpudev{32 * number + at:03}", None, f"r{at}") for at in range(32)))
        for number in range(2)
    ]
    answer = rig.outcome(*refs)
    assert [len(answer[ref.uid]) for ref in refs] == [32, 32]
    env = tuple(f"{name}={value}" for ref in refs for name, value in rig.env(ref).items())
    asked = tuple(name for ref in refs for device in answer[ref.uid] for name in device.cdi_ids)
    facts = Facts("c1", "main", "pod", env=env, cdi_devices=asked)
    online = rig.topology.online
    use = wish(follow(State(online=online, reserved=CPUSet()), online, rig.on_disk()), facts)
    assert isinstance(use, Use)
    assert use.cpus == CPUSet(range(64))

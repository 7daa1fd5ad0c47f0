"""Promises of metadata's files: there with each prepared claim, gone with it, and never in the way of one."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from loguru import logger

from dra.claims import ClaimRef
from dra.devices import AttributeValue, DeviceMode
from dra.prepare.choice import Node
from nri_cpu.checkpoint import codec, files
from nri_cpu.checkpoint.errors import CheckpointUnwritable
from tests.unit.dra.manifests import manifest, result, uid
from tests.unit.dra.rig import BOOT, Rig
from tests.unit.topology.machines import t1

NEXT_BOOT = BOOT.replace("b007", "b008")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def host_file(rig: Rig, ref: ClaimRef, request: str = "cpus") -> Path:
    return rig.metadata / f"{ref.uid}_{request}.json"


def spec_file(rig: Rig, ref: ClaimRef, request: str = "cpus") -> Path:
    return rig.cdi.path / f"dra.cpu_metadata_{ref.uid}_{request}.json"


def ids(rig: Rig, ref: ClaimRef) -> list[list[str]]:
    """The metadata among the CDI IDs of each device."""
    return [[name for name in device.cdi_ids if "metadata" in name] for device in rig.outcome(ref)[ref.uid]]


@pytest.mark.fault("F-5")
def test_a_prepared_claim_has_its_metadata_and_an_unprepared_one_none(rig: Rig) -> None:
    ref, other = rig.claim(1), rig.claim(2)
    rig.prepare(ref)
    rig.prepare(other)
    told = rig.metadata_of(ref)
    assert told["metadata"]["uid"] == ref.uid
    assert told["requests"][0]["devices"][0]["attributes"]["dra.cpu/cpuset"] == {"string": "0,8"}
    assert rig.unprepare(ref) == ""
    assert not rig.has_metadata(ref)
    assert rig.metadata_of(other)["metadata"]["uid"] == other.uid


def test_programs_of_any_user_can_read_it(rig: Rig) -> None:
    before = os.umask(0o077)
    try:
        ref = rig.claim()
        rig.prepare(ref)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path(rig, ref).stat().st_mode) for path in (host_file, spec_file)] == [0o644, 0o644]


@pytest.mark.fault("A3", "K10")
def test_the_first_device_of_each_request_brings_it_in_every_answer(tmp_path: Path) -> None:
    rig = Rig(tmp_path, mode=DeviceMode.INDIVIDUAL)
    asked = [("a", 3), ("b/big", 5), ("a", 1), ("b/big", 2)]
    ref = rig.claim(1, *(result(f"cpudev{cpu:03}", None, request) for request, cpu in asked))
    expected = [[f"dra.cpu/metadata={ref.uid}_a"], [f"dra.cpu/metadata={ref.uid}_b"], [], []]
    answer = rig.outcome(ref)
    assert ids(rig, ref) == expected
    rig.start(mode=DeviceMode.INDIVIDUAL)
    assert rig.outcome(ref) == answer
    assert rig.metadata_of(ref, "b")["requests"][0]["name"] == "b/big"
    assert [device.cdi_ids[-1].rpartition("=")[0] for device in answer[ref.uid]][:2] == ["dra.cpu/metadata"] * 2


@pytest.mark.fault("S1")
def test_of_all_that_a_prepare_writes_only_the_checkpoint_waits_for_the_disk(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    whole = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        whole(descriptor)

    ref = rig.claim()
    monkeypatch.setattr(os, "fsync", fsync)
    rig.prepare(ref)
    assert [name.strip(".").partition(".")[0] for name in synced] == ["checkpoint", "state"]  # and its directory


@pytest.mark.fault("A3", "K1")
def test_each_prepare_mends_it(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    before = rig.snapshot()
    host_file(rig, ref).write_text("{")
    spec_file(rig, ref).unlink()
    rig.prepare(ref)
    assert rig.snapshot() == before
    shutil.rmtree(rig.metadata)
    shutil.rmtree(rig.cdi.path)
    rig.prepare(ref)
    assert rig.snapshot() == before


@pytest.mark.fault("K3")
def test_a_claim_made_anew_under_the_same_name_keeps_its_metadata(rig: Rig) -> None:
    old = rig.claims.put(manifest(claim_uid=uid(1), name="same"))
    rig.prepare(old)
    new = rig.claims.put(manifest(claim_uid=uid(2), name="same"))
    rig.prepare(new)
    told = rig.metadata_of(new)
    assert rig.metadata_of(old)["metadata"]["uid"] == old.uid
    assert rig.unprepare(old) == ""
    assert rig.metadata_of(new) == told
    assert told["metadata"]["uid"] == new.uid


def test_names_of_any_length_have_it(rig: Rig) -> None:
    claim = manifest(result(request="r" * 63), claim_uid=uid(1), name="n" * 253)
    claim["metadata"]["namespace"] = "s" * 63
    ref = rig.claims.put(claim)
    rig.prepare(ref)
    assert rig.metadata_of(ref, "r" * 63)["metadata"]["name"] == "n" * 253


@pytest.mark.parametrize("broken", [host_file, spec_file])
def test_a_claim_does_without_what_can_not_be_written(rig: Rig, broken: Callable[[Rig, ClaimRef], Path]) -> None:
    lines: list[str] = []
    sink = logger.add(lines.append, level="ERROR")
    ref, other = rig.claim(1), rig.claim(2)
    broken(rig, ref).mkdir(parents=True)
    assert ids(rig, ref) == [[]]
    logger.remove(sink)
    assert f"claim {ref.uid} has no metadata for request cpus: {broken(rig, ref)} can't be written" in "".join(lines)
    assert set(rig.recorded) == {ref.uid}
    assert ids(rig, other) == [[f"dra.cpu/metadata={other.uid}_cpus"]]
    broken(rig, ref).rmdir()
    assert ids(rig, ref) == [[f"dra.cpu/metadata={ref.uid}_cpus"]]


@pytest.mark.fault("A2")
def test_metadata_that_can_not_be_removed_keeps_the_claim_as_it_is(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    before = rig.snapshot()
    host_file(rig, ref).unlink()
    (host_file(rig, ref) / "in the way").mkdir(parents=True)
    assert f"the metadata {host_file(rig, ref)} can't be removed" in rig.unprepare(ref)
    assert rig.recorded != {}
    shutil.rmtree(host_file(rig, ref))

    def fail(path: Path, what: str) -> None:
        if what == "the metadata":
            raise CheckpointUnwritable("input/output error")
        path.unlink()

    rig.prepare(ref)
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", fail)
        assert rig.unprepare(ref) == f"claim {ref}: input/output error"
    assert rig.snapshot() == before
    assert rig.unprepare(ref) == ""
    assert not rig.has_metadata(ref)


@pytest.mark.fault("A2")
def test_a_claim_that_stays_prepared_gets_its_metadata_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    before = rig.snapshot()

    def fail(path: Path, raw: bytes) -> None:
        raise CheckpointUnwritable("disk full")

    monkeypatch.setattr("dra.prepare.ledger.write_durably", fail)
    assert rig.unprepare(ref) == f"claim {ref}: disk full"
    assert rig.snapshot() == before


@pytest.mark.fault("A2")
def test_what_is_gone_already_is_no_failure(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    host_file(rig, ref).unlink()
    assert rig.unprepare(ref) == ""
    rig.prepare(ref)
    shutil.rmtree(rig.metadata)
    rig.metadata.write_text("no directory")
    assert rig.unprepare(ref) == ""
    assert not spec_file(rig, ref).exists()


@pytest.mark.fault("K1", "K12")
def test_a_start_writes_what_is_missing_and_changes_nothing_that_is_right(rig: Rig) -> None:
    refs = [rig.claim(number) for number in range(1, 5)]
    for ref in refs:
        rig.prepare(ref)
    before = rig.snapshot()
    host_file(rig, refs[0]).unlink()
    spec_file(rig, refs[1]).write_text("")
    host_file(rig, refs[2]).write_text("{}")
    inode = host_file(rig, refs[3]).stat().st_ino
    rig.start()
    assert rig.snapshot() == before
    assert host_file(rig, refs[3]).stat().st_ino == inode


@pytest.mark.fault("K1")
def test_after_a_reboot_it_is_there_again(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    told = rig.metadata_of(ref)
    shutil.rmtree(rig.cdi.path)
    rig.start(boot=NEXT_BOOT)
    assert rig.metadata_of(ref) == told


@pytest.mark.fault("K12")
def test_a_start_removes_what_belongs_to_no_claim_and_nothing_of_others(rig: Rig) -> None:
    ref, kept = rig.claim(1), rig.claim(2)
    rig.prepare(ref)
    rig.prepare(kept)
    host, spec = host_file(rig, ref).read_bytes(), spec_file(rig, ref).read_bytes()
    rig.unprepare(ref)
    host_file(rig, ref).write_bytes(host)
    spec_file(rig, ref).write_bytes(spec)
    spec_file(rig, ref, "broken").write_text("")
    for place, name in ((rig.metadata, host_file(rig, ref).name), (rig.cdi.path, spec_file(rig, ref).name)):
        (place / f".{name}.0123456789abcdef.tmp").touch()
    foreign = json.loads(spec)
    foreign["devices"][0]["containerEdits"]["mounts"][0]["hostPath"] = str(
        rig.metadata / "default_c1/cpus/metadata.json"
    )
    others = [
        rig.cdi.path / "dra.cpu_metadata_x_cpus.json",
        rig.metadata / "default_c1",
        spec_file(rig, ref, "directory"),
    ]
    spec_file(rig, rig.claim(3)).write_text(json.dumps(foreign))  # as dra-driver-cpu has them
    others[0].touch()
    others[1].mkdir()
    others[2].mkdir()
    before = {path.name for path in (spec_file(rig, rig.claim(3)), *others)}
    rig.start()
    assert rig.metadata_of(kept)["metadata"]["uid"] == kept.uid
    there = {path.name for place in (rig.cdi.path, rig.metadata) for path in place.iterdir()}
    assert {name for name in there if kept.uid not in name} == before


def test_a_start_goes_on_where_it_can_neither_look_nor_write(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    shutil.rmtree(rig.metadata)
    rig.metadata.write_text("no directory")
    lines: list[str] = []
    sink = logger.add(lines.append, level="ERROR")
    rig.start()
    logger.remove(sink)
    assert set(rig.recorded) == {ref.uid}
    assert f"claim {ref.uid} has no metadata for request cpus" in "".join(lines)
    assert ids(rig, ref) == [[]]


def test_a_start_tells_of_a_machine_that_has_changed(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    rig.topology = t1(offline=[7])
    rig.start()
    device = rig.metadata_of(ref)["requests"][0]["devices"][0]
    assert device["attributes"]["dra.cpu/numCPUs"] == {"int": 15}
    assert device["attributes"]["dra.cpu/cpuset"] == {"string": "0,8"}


def test_its_generation_grows_with_each_change_whoever_makes_it_and_with_no_other_write(rig: Rig) -> None:
    ref = rig.claim()

    def generation() -> object:
        return rig.metadata_of(ref)["metadata"]["generation"]

    rig.prepare(ref)
    assert generation() == 1
    rig.topology = t1(offline=[7])
    rig.start()
    assert generation() == 2
    rig.start()
    spec_file(rig, ref).unlink()
    rig.prepare(ref)
    assert generation() == 2
    rig.topology = t1()
    rig.node = Node.of(rig.node.pool, rig.node.mode, rig.topology, rig.node.reserved, 0)
    rig.prepare(ref)
    assert generation() == 3
    rig.unprepare(ref)
    rig.prepare(ref)
    assert generation() == 1


@pytest.mark.parametrize("mounts", [0, 2])
def test_a_start_leaves_specs_of_others_in_a_form_of_their_own_alone(rig: Rig, mounts: int) -> None:
    ref = rig.claim()
    mount = {"hostPath": "/elsewhere/metadata.json", "containerPath": "/x"}
    forms: list[object] = [
        {"devices": [{"containerEdits": {"mounts": [mount] * mounts}}]},
        {"devices": [{"containerEdits": {"mounts": [mount]}}] * mounts},
        {"devices": [{"containerEdits": {"env": ["A=b"]}}]},
        {"devices": [{"containerEdits": {"mounts": [mount | {"hostPath": 5}]}}]},
        {"containerEdits": {}},
        [],
        "devices",
    ]
    paths = [spec_file(rig, ref, f"r{number}") for number in range(len(forms))]
    for path, form in zip(paths, forms, strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(form))
    ours = {"devices": [{"containerEdits": {"mounts": [mount | {"hostPath": str(rig.metadata / "x")}]}}] * 2}
    spec_file(rig, ref, "ours").write_text(json.dumps(ours))
    for request, torn in (("empty", b""), ("zeros", bytes(100)), ("half", b'{"devices": [')):
        spec_file(rig, ref, request).write_bytes(torn)
    rig.start()
    assert sorted(rig.cdi.path.iterdir()) == paths


@pytest.mark.fault("S2")
def test_the_name_that_a_pod_has_for_its_claim_outlives_checkpoint_and_claim(rig: Rig) -> None:
    claim = manifest(claim_uid=uid(1), name="pod-cpus-x7k2p")
    claim["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "in-pod"}
    ref = rig.claims.put(claim)
    rig.prepare(ref)
    before = rig.snapshot()[1]
    rig.claims.manifests.clear()
    rig.checkpoint.unlink()
    shutil.rmtree(rig.metadata)
    rig.start()
    assert rig.snapshot()[1] == before
    assert rig.on_disk().claims[ref.uid].pod_claim_name == "in-pod"
    assert b"resourceclaimtemplates/in-pod/cpus/" in spec_file(rig, ref).read_bytes()


def test_a_record_from_before_there_was_metadata_gets_it(rig: Rig) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    before = rig.snapshot()
    assert "podClaimName" not in codec.record_to_data(rig.on_disk().claims[ref.uid])
    shutil.rmtree(rig.metadata)
    spec_file(rig, ref).unlink()
    rig.start()
    assert rig.snapshot() == before


def test_a_fault_of_ours_in_it_stops_neither_claim_nor_start(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> dict[str, AttributeValue]:
        raise RuntimeError("a fault of ours")

    ref = rig.claim()
    with monkeypatch.context() as patch:
        patch.setattr(Node, "attributes", lambda node, name: fail(name))
        assert ids(rig, ref) == [[]]
        rig.start()
    assert set(rig.recorded) == {ref.uid}
    assert ids(rig, ref) == [[f"dra.cpu/metadata={ref.uid}_cpus"]]


@pytest.mark.fault("A2")
def test_a_kill_in_the_middle_of_a_removal_leaves_no_spec_without_the_file_that_it_mounts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = rig.claim()
    rig.prepare(ref)
    whole = files.remove

    class Killed(BaseException):
        pass

    def once(path: Path, what: str) -> None:
        whole(path, what)
        if "_cpus" in path.name:
            raise Killed

    monkeypatch.setattr(files, "remove", once)
    with pytest.raises(Killed):
        rig.ledger._metadata.remove(rig.on_disk().claims[ref.uid])
    assert not spec_file(rig, ref).exists()
    assert host_file(rig, ref).exists()

"""The two files' bytes: what is written is read back, and no bytes get anything but our errors out of the reader."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_cpu.checkpoint import codec, envelope, strictjson
from nri_cpu.checkpoint.errors import CheckpointUnwritable, Corrupt
from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord, Owner, Owners
from nri_cpu.cpuset import EMPTY, CPUSet
from tests.unit.checkpoint.samples import (
    BOOT,
    CHECKPOINT,
    CLAIM_A,
    CLAIM_B,
    OWNERS,
    SECRET_A,
    SECRET_B,
    UID_A,
    UID_B,
    checkpoints,
    data_of,
    file_with,
    owners_values,
)

FILE = codec.checkpoint_to_bytes(CHECKPOINT, BOOT)
OWNERS_FILE = codec.owners_to_bytes(OWNERS, BOOT)


def test_the_checkpoint_has_the_documented_shape_to_the_letter() -> None:
    assert list(json.loads(FILE)) == ["format", "readableBy", "bootID", "sha256", "data"]
    assert data_of(FILE) == {
        "reservedCPUs": "7",
        "claims": {
            UID_A: {
                "namespace": "default",
                "name": "two-cpus",
                "podUIDs": ["33333333-cccc-4ccc-8ccc-333333333333"],
                "cpus": "0,8",
                "preparation": SECRET_A,
                "preparedAt": "2026-11-30T10:24:00Z",
                "devices": [
                    {
                        "request": "cpus",
                        "pool": "node-1",
                        "device": "cpudevnuma000",
                        "cpus": "0,8",
                        "shareID": "5f6a1b2c",
                    }
                ],
                "options": {"strategy": "packed", "numaNodes": 1},
            },
            UID_B: data_of(FILE)["claims"][UID_B],
        },
    }


def test_the_owners_have_the_documented_shape_to_the_letter() -> None:
    assert data_of(OWNERS_FILE) == {
        "owners": {
            UID_A: {
                "preparation": SECRET_A,
                "podUID": "33333333-cccc-4ccc-8ccc-333333333333",
                "podNamespace": "default",
                "podName": "pod-1",
                "container": "main",
                "containerID": "c0ffee",
                "cgroup": "/kubepods.slice/kubepods-pod1.slice/cri-c0ffee.scope",
            }
        }
    }


def test_only_a_claim_of_a_template_has_the_name_that_its_pod_has_for_it() -> None:
    named = replace(CLAIM_A, pod_claim_name="mine")
    raw = codec.checkpoint_to_bytes(Checkpoint(CPUSet(), {UID_A: named}), BOOT)
    assert data_of(raw)["claims"][UID_A]["podClaimName"] == "mine"
    assert codec.checkpoint_from_bytes(raw)[0].claims == {UID_A: named}
    for wrong in (7, True, [1], "a\nb"):
        with pytest.raises(Corrupt, match="podClaimName"):
            codec.checkpoint_from_bytes(file_with(changed(data_of(raw), ("claims", UID_A, "podClaimName"), wrong)))


def test_a_file_made_by_other_means_is_read() -> None:
    assert codec.checkpoint_from_bytes(file_with(data_of(FILE))) == (CHECKPOINT, BOOT)
    assert codec.owners_from_bytes(file_with(data_of(OWNERS_FILE))) == (OWNERS, BOOT)


@given(checkpoints())
@pytest.mark.fault("S1")
def test_every_checkpoint_is_read_back_as_it_was_unknown_fields_included(checkpoint: Checkpoint) -> None:
    assert codec.checkpoint_from_bytes(codec.checkpoint_to_bytes(checkpoint, BOOT)) == (checkpoint, BOOT)


@given(owners_values)
def test_every_set_of_owners_is_read_back_as_it_was_unknown_fields_included(owners: Owners) -> None:
    assert codec.owners_from_bytes(codec.owners_to_bytes(owners, BOOT)) == (owners, BOOT)


@pytest.mark.fault("S1")
def test_the_pool_is_derived_and_never_stored() -> None:
    assert set(data_of(FILE)) == {"reservedCPUs", "claims"}
    assert CHECKPOINT.prepared == CPUSet.parse("0-1,8-9")


def test_a_rewrite_keeps_what_a_newer_version_put_at_every_level() -> None:
    data = data_of(FILE)
    for place in (data, data["claims"][UID_A], data["claims"][UID_A]["devices"][0], data["claims"][UID_A]["options"]):
        place["new"] = {"deep": [1, None, 2.5, "ü"]}
    raw = file_with(data, format=2, seal=[1])
    rewritten = codec.checkpoint_to_bytes(*codec.checkpoint_from_bytes(raw))
    assert data_of(rewritten) == data
    assert json.loads(rewritten)["seal"] == [1]
    assert json.loads(rewritten)["format"] == 1, "the writer's own format, whatever it read"


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value in JSON `value`, itself included."""
    found = [at]
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        found += paths(inner, (*at, step))
    return found


WRONG: list[object] = [
    None,
    True,
    7,
    1.5,
    "text",
    "",
    "\ud800",
    "a\nb",
    [],
    [[]],
    [1],
    {},
    {"x": 1},
    "5-3",
    "9999",
    "4,",
]
CHECKPOINT_PATHS = paths(data_of(FILE))
OWNERS_PATHS = paths(data_of(OWNERS_FILE))


def changed(data: Any, path: tuple[Any, ...], value: object) -> Any:
    if not path:
        return value
    data = copy.deepcopy(data)
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return data


@given(st.sampled_from(CHECKPOINT_PATHS), st.sampled_from(WRONG))
@settings(max_examples=400)
def test_a_wrong_type_anywhere_is_corrupt_or_read_and_written_again(path: tuple[Any, ...], wrong: object) -> None:
    try:
        checkpoint, boot = codec.checkpoint_from_bytes(file_with(changed(data_of(FILE), path, wrong)))
    except Corrupt as error:
        refused = str(error)
    else:
        refused = ""
        assert codec.checkpoint_from_bytes(codec.checkpoint_to_bytes(checkpoint, boot)) == (checkpoint, boot)
    assert SECRET_A not in refused


@given(st.sampled_from(OWNERS_PATHS), st.sampled_from(WRONG))
def test_a_wrong_type_anywhere_among_owners_is_corrupt_or_read_and_written_again(
    path: tuple[Any, ...], wrong: object
) -> None:
    try:
        owners, boot = codec.owners_from_bytes(file_with(changed(data_of(OWNERS_FILE), path, wrong)))
    except Corrupt as error:
        refused = str(error)
    else:
        refused = ""
        assert codec.owners_from_bytes(codec.owners_to_bytes(owners, boot)) == (owners, boot)
    assert SECRET_A not in refused


@pytest.mark.parametrize("path", [path for path in CHECKPOINT_PATHS if path and "options" not in path], ids=str)
def test_each_field_is_required_and_has_one_type(path: tuple[Any, ...]) -> None:
    if path[-1] == "shareID" or (len(path) == 2 and path[0] == "claims"):
        assert codec.checkpoint_from_bytes(
            file_with(changed(data_of(FILE), ("claims", UID_A, "devices", 0, "shareID"), None))
        )
        return
    for wrong in (7, True, None):
        with pytest.raises(Corrupt, match=r"belongs$"):
            codec.checkpoint_from_bytes(file_with(changed(data_of(FILE), path, wrong)))


@pytest.mark.parametrize(
    "uid", ["", "x", UID_A.upper(), UID_A + "\n", "../" + UID_A[3:], UID_A.replace("-", ""), "/etc/passwd"]
)
def test_a_key_that_is_no_claim_uid_is_corrupt_since_it_becomes_a_file_name(uid: str) -> None:
    data = data_of(FILE)
    data["claims"] = {uid: data["claims"][UID_A]}
    with pytest.raises(Corrupt, match="no claim UID"):
        codec.checkpoint_from_bytes(file_with(data))
    with pytest.raises(Corrupt, match="no claim UID"):
        codec.owners_from_bytes(file_with({"owners": {uid: data_of(OWNERS_FILE)["owners"][UID_A]}}))


@pytest.mark.parametrize("wrong", ["", SECRET_A[:-1], SECRET_A + "0", SECRET_A.upper(), SECRET_A[:-1] + "\n", "g" * 32])
def test_a_preparation_of_another_form_is_corrupt_and_not_shown(wrong: str) -> None:
    for file, decode, key in (
        (FILE, codec.checkpoint_from_bytes, "claims"),
        (OWNERS_FILE, codec.owners_from_bytes, "owners"),
    ):
        with pytest.raises(Corrupt, match=f"{key}.{UID_A}.preparation is not 32") as error:
            decode(file_with(changed(data_of(file), (key, UID_A, "preparation"), wrong)))
        assert not wrong or wrong not in str(error.value)
        assert error.value.__cause__ is None
        assert error.value.__suppress_context__ or error.value.__context__ is None


def test_no_repr_and_no_message_holds_a_preparation() -> None:
    shown = [repr(CHECKPOINT), str(CLAIM_A), repr(OWNERS), repr(envelope.decode(FILE)), f"{OWNERS.owners}"]
    for spoilt in (FILE[:-10] + FILE[-9:], FILE[:-1], FILE.replace(b"preparedAt", b"preparedIn")):
        with pytest.raises(Corrupt) as error:
            codec.checkpoint_from_bytes(spoilt)
        shown += [str(error.value), repr(error.value), repr(error.value.__cause__)]
    assert not any(secret in text for text in shown for secret in (SECRET_A, SECRET_B))


@pytest.mark.parametrize(
    "at", ["", "now", "2026-11-30", "2026-11-30T10:24:00", "2026-11-30T10:24:00+01:00", "2026-11-30T10:24:00Zx"]
)
def test_a_time_that_is_not_utc_is_corrupt(at: str) -> None:
    with pytest.raises(Corrupt, match=r"preparedAt"):
        codec.checkpoint_from_bytes(file_with(changed(data_of(FILE), ("claims", UID_A, "preparedAt"), at)))


def test_utc_may_be_spelt_either_way() -> None:
    record = replace(CLAIM_A, prepared_at="2026-11-30T10:24:00.123456+00:00")
    checkpoint = Checkpoint(EMPTY, {UID_A: record})
    assert codec.checkpoint_from_bytes(codec.checkpoint_to_bytes(checkpoint, BOOT)) == (checkpoint, BOOT)


def test_claims_that_overlap_are_corrupt_and_both_are_named() -> None:
    overlapping = replace(CLAIM_B, cpus=CPUSet.parse("8-9"))
    with pytest.raises(Corrupt, match=f"CPUs 8 to two claims, {UID_A} and {UID_B}"):
        codec.checkpoint_from_bytes(file_with(changed(data_of(FILE), ("claims", UID_B, "cpus"), "8-9")))
    with pytest.raises(CheckpointUnwritable, match="CPUs 8 to two claims"):
        codec.checkpoint_to_bytes(Checkpoint(EMPTY, {UID_A: CLAIM_A, UID_B: overlapping}), BOOT)


def test_only_records_that_were_neither_read_nor_written_before_are_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sound, equal = {UID_A: CLAIM_A}, replace(CLAIM_A)
    read: list[str] = []
    whole = codec.record_from_data

    def counting(uid: str, value: object) -> ClaimRecord:
        read.append(uid)
        return whole(uid, value)

    monkeypatch.setattr(codec, "record_from_data", counting)
    for claims, expected in (
        ({UID_A: CLAIM_A, UID_B: CLAIM_B}, [UID_B]),
        ({UID_A: equal, UID_B: CLAIM_B}, [UID_A, UID_B]),
        ({UID_A: CLAIM_A}, []),
    ):
        checkpoint = Checkpoint(EMPTY, claims)
        raw = codec.checkpoint_to_bytes(checkpoint, BOOT, sound)
        assert read == expected
        assert codec.checkpoint_from_bytes(raw) == (checkpoint, BOOT)
        read.clear()


def test_a_record_that_was_read_before_excuses_no_other_and_nothing_around_it() -> None:
    sound = {UID_A: CLAIM_A}
    for checkpoint, reason in (
        (Checkpoint(EMPTY, {UID_A: CLAIM_A, UID_B: replace(CLAIM_B, cpus=CPUSet.parse("8-9"))}), "8 to two claims"),
        (Checkpoint(EMPTY, {UID_A: CLAIM_A, UID_B: replace(CLAIM_B, name="a\nb")}), "can't be shown"),
        (Checkpoint(EMPTY, {UID_B: CLAIM_A}), "something else"),
        (Checkpoint(EMPTY, {UID_A: CLAIM_A}, {"reservedCPUs": "6"}), "something else"),
        (Checkpoint(EMPTY, {UID_A: CLAIM_A}, {}, {"data": "{}"}), "something else"),
    ):
        with pytest.raises(CheckpointUnwritable, match=reason):
            codec.checkpoint_to_bytes(checkpoint, BOOT, sound)
    with pytest.raises(CheckpointUnwritable):
        codec.checkpoint_to_bytes(Checkpoint(EMPTY, sound), "a\nb", sound)


def test_an_empty_cpuset_is_corrupt() -> None:
    for path in (("claims", UID_A, "cpus"), ("claims", UID_A, "devices", 0, "cpus")):
        for empty in ("", " ", "\n"):
            with pytest.raises(Corrupt, match=r"cpus"):
                codec.checkpoint_from_bytes(file_with(changed(data_of(FILE), path, empty)))
    with pytest.raises(CheckpointUnwritable, match="cpus is empty"):
        codec.checkpoint_to_bytes(Checkpoint(EMPTY, {UID_A: replace(CLAIM_A, cpus=EMPTY)}), BOOT)


@pytest.mark.fault("S3")
def test_reserved_cpus_of_another_configuration_do_not_make_the_file_unreadable() -> None:
    checkpoint = Checkpoint(CPUSet.parse("0-3"), CHECKPOINT.claims)
    assert codec.checkpoint_from_bytes(codec.checkpoint_to_bytes(checkpoint, BOOT)) == (checkpoint, BOOT)


@pytest.mark.fault("P-4")
def test_cpus_above_1024_keep_their_numbers() -> None:
    record = replace(CLAIM_A, cpus=CPUSet.parse("0-2,511,1024,4095"))
    raw = codec.checkpoint_to_bytes(Checkpoint(EMPTY, {UID_A: record}), BOOT)
    assert data_of(raw)["claims"][UID_A]["cpus"] == "0-2,511,1024,4095"
    assert codec.checkpoint_from_bytes(raw)[0].claims[UID_A].cpus == record.cpus


@pytest.mark.parametrize(
    "record",
    [
        replace(CLAIM_A, uid=UID_B),
        replace(CLAIM_A, name="a\nb"),
        replace(CLAIM_A, name="\ud800"),
        replace(CLAIM_A, preparation="short"),
        replace(CLAIM_A, prepared_at="yesterday"),
        replace(CLAIM_A, options={"x": float("nan")}),
        replace(CLAIM_A, options={"x": object()}),
        replace(CLAIM_A, options={"x": (1, 2)}),
        replace(CLAIM_A, unknown={"x": float("inf")}),
        replace(CLAIM_A, pod_uids=("\0",)),
    ],
)
def test_what_could_not_be_read_back_is_never_written(record: Any) -> None:
    with pytest.raises(CheckpointUnwritable) as error:
        codec.checkpoint_to_bytes(Checkpoint(EMPTY, {UID_A: record}), BOOT)
    assert SECRET_A not in str(error.value)


def test_values_without_a_form_in_json_are_refused_as_that() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    for value in (float("nan"), float("-inf"), object(), {(1, 2): 3}, b"x", nested):
        with pytest.raises(CheckpointUnwritable, match="has no form in JSON"):
            strictjson.dumps({"x": value})


def test_owners_that_could_not_be_read_back_are_never_written() -> None:
    good = OWNERS.owners[UID_A]
    for owners in (
        Owners({"x": good}),
        Owners({UID_A: replace(good, container="a\tb")}),
        Owners({UID_A: replace(good, unknown={"x": (1,)})}),
    ):
        with pytest.raises(CheckpointUnwritable):
            codec.owners_to_bytes(owners, BOOT)


def test_an_unknown_field_never_replaces_a_known_one() -> None:
    sly = replace(CLAIM_A, unknown={"cpus": "5", "preparation": SECRET_B})
    checkpoint = Checkpoint(EMPTY, {UID_A: sly}, {"reservedCPUs": "6"}, {"format": 9, "data": "{}"})
    with pytest.raises(CheckpointUnwritable, match="something else"):
        codec.checkpoint_to_bytes(checkpoint, BOOT)


def test_a_boot_that_could_not_be_told_is_written_as_none() -> None:
    assert codec.owners_from_bytes(codec.owners_to_bytes(Owners({}), "")) == (Owners({}), "")


def test_values_are_immutable() -> None:
    for value, name in ((CHECKPOINT, "reserved"), (CLAIM_A, "cpus"), (CLAIM_A.devices[0], "pool"), (OWNERS, "owners")):
        with pytest.raises(AttributeError):
            setattr(value, name, None)
    with pytest.raises(AttributeError):
        Owner.__setattr__(OWNERS.owners[UID_A], "container", "x")

"""The CDI spec of a claim: what the runtime reads, and what a claim is taken from when the checkpoint is lost."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from nri_cpu.checkpoint import cdi, files
from nri_cpu.checkpoint.errors import CheckpointError, CheckpointUnreadable, CheckpointUnwritable, Corrupt, TooNew
from nri_cpu.checkpoint.model import ClaimRecord, DeviceAllocation
from nri_cpu.cpuset import EMPTY, CPUSet
from tests.unit.checkpoint.samples import CLAIM_A, CLAIM_B, SECRET_A, SECRET_B, UID_A, UID_B, file_with, records

SPEC = cdi.spec_bytes(CLAIM_A)
DEVICE = CLAIM_A.devices[0]

cdi_names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)


@st.composite
def any_record(draw: st.DrawFn) -> ClaimRecord:
    record = draw(records(UID_A, CPUSet(draw(st.frozensets(st.integers(0, 8191), min_size=1, max_size=8)))))
    return replace(record, devices=tuple(replace(device, device=draw(cdi_names)) for device in record.devices))


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line)), level="DEBUG", format="{level} {message}")
    yield lines
    logger.remove(sink)


def spec() -> Any:
    return json.loads(SPEC)


def raw(spec: Any) -> bytes:
    return json.dumps(spec).encode()


def test_the_spec_has_the_documented_shape() -> None:
    edits = {"env": [f"DRA_CPUSET_{UID_A}=0,8", f"NRI_CPU_PREPARATION_{UID_A}={SECRET_A}"]}
    made = spec()
    assert made.pop("annotations").keys() == {"dra.cpu/claim"}
    assert made == {
        "cdiVersion": "0.6.0",
        "kind": "dra.k8s.io/cpu",
        "devices": [
            {"name": f"claim-{UID_A}-cpudevnuma000", "containerEdits": edits},
            {"name": f"claim-{UID_A}", "containerEdits": edits},
        ],
    }
    assert cdi.file_name(UID_A) == f"dra.k8s.io-cpu_claim-{UID_A}.json"
    assert cdi.qualified(cdi.claim_device_name(UID_A)) == f"dra.k8s.io/cpu=claim-{UID_A}"


@given(any_record())
@pytest.mark.fault("S2")
def test_the_spec_gives_back_the_whole_record(record: ClaimRecord) -> None:
    assert cdi.record_from_spec(cdi.spec_bytes(record)) == record


@given(any_record())
def test_the_spec_keeps_the_rules_of_the_runtimes_library(record: ClaimRecord) -> None:
    """container-device-interface pkg/cdi: unknown keys, double and odd names, empty edits spoil the whole file."""
    made = json.loads(cdi.spec_bytes(record))
    assert made.keys() == {"cdiVersion", "kind", "annotations", "devices"}
    names = [device["name"] for device in made["devices"]]
    assert len(set(names)) == len(names) == len(record.devices) + 1
    assert all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", name) for name in names)
    for device in made["devices"]:
        assert device.keys() == {"name", "containerEdits"}
        assert device["containerEdits"].keys() == {"env"}
        assert all(setting.split("=")[0] for setting in device["containerEdits"]["env"])
    assert all(isinstance(value, str) for value in made["annotations"].values())


def test_each_result_has_a_device_of_its_own_also_when_two_name_the_same() -> None:
    named = [replace(DEVICE, device=name) for name in ("a", "a", "a-2", "a", "b", "a-2")]
    names = cdi.device_names(replace(CLAIM_A, devices=tuple(named)))
    assert len(set(names)) == len(names) == 6
    prefix = f"claim-{UID_A}-"
    assert (names[0], names[2], names[4]) == (f"{prefix}a", f"{prefix}a-2", f"{prefix}b")
    assert all(name.startswith(f"{prefix}{device.device}") for name, device in zip(names, named, strict=True))


@given(st.lists(st.sampled_from(["a", "a-2", "a-2-2", "a-3", "b"]), max_size=12))
def test_device_names_never_meet(named: list[str]) -> None:
    record = replace(CLAIM_A, devices=tuple(replace(DEVICE, device=name) for name in named))
    names = cdi.device_names(record)
    assert len({*names, cdi.claim_device_name(UID_A)}) == len(named) + 1
    for name in set(named):
        assert names[named.index(name)] == f"claim-{UID_A}-{name}", "the first use has the device's own name"


@pytest.mark.parametrize(
    "record",
    [
        replace(CLAIM_A, uid="../../etc/cron.d/x"),
        replace(CLAIM_A, preparation="x"),
        replace(CLAIM_A, cpus=EMPTY),
        replace(CLAIM_A, devices=(replace(DEVICE, device="a/b"),)),
        replace(CLAIM_A, devices=(replace(DEVICE, device=""),)),
        replace(CLAIM_A, devices=(replace(DEVICE, device="a" + "\n"),)),
        replace(CLAIM_A, options={"x": "y" * (257 << 10)}),
        replace(CLAIM_A, options={"x": (1,)}),
    ],
    ids=lambda record: str(record.uid),
)
def test_a_record_that_would_make_a_spec_nobody_can_use_is_refused(record: ClaimRecord) -> None:
    with pytest.raises(CheckpointUnwritable) as error:
        cdi.spec_bytes(record)
    assert SECRET_A not in str(error.value)


# What is changed, where, and into what; None takes it away.
SPOILT: list[tuple[str, tuple[str | int, ...], object]] = [
    ("other kind", ("kind",), "nvidia.com/gpu"),
    ("kind missing", ("kind",), None),
    ("kind no text", ("kind",), 5),
    ("version missing", ("cdiVersion",), None),
    ("no annotations", ("annotations",), None),
    ("annotations a list", ("annotations",), []),
    ("record missing", ("annotations", "dra.cpu/claim"), None),
    ("record no text", ("annotations", "dra.cpu/claim"), {}),
    ("record a surrogate", ("annotations", "dra.cpu/claim"), "\ud800"),
    ("record not ours", ("annotations", "dra.cpu/claim"), file_with({"uid": UID_A}).decode()),
    ("record without uid", ("annotations", "dra.cpu/claim"), file_with({}).decode()),
    (
        "record of another",
        ("annotations", "dra.cpu/claim"),
        json.loads(cdi.spec_bytes(CLAIM_B))["annotations"]["dra.cpu/claim"],
    ),
    ("devices missing", ("devices",), None),
    ("devices empty", ("devices",), []),
    ("a device lacking", ("devices",), spec()["devices"][:1]),
    ("the result's device lacking", ("devices",), spec()["devices"][1:]),
    ("a device twice", ("devices",), spec()["devices"] * 2),
    ("a device no object", ("devices", 0), "x"),
    ("a device nameless", ("devices", 0, "name"), None),
    ("a device with another name", ("devices", 0, "name"), f"claim-{UID_B}"),
    ("a device with an odd name", ("devices", 0, "name"), "a b"),
    ("no edits", ("devices", 0, "containerEdits"), None),
    ("edits a list", ("devices", 0, "containerEdits"), []),
    ("no env", ("devices", 0, "containerEdits", "env"), None),
    ("env no list", ("devices", 1, "containerEdits", "env"), "x"),
    ("env empty", ("devices", 1, "containerEdits", "env"), []),
    ("env with a number", ("devices", 1, "containerEdits", "env", 0), 7),
    ("other CPUs", ("devices", 1, "containerEdits", "env", 0), f"DRA_CPUSET_{UID_A}=0,9"),
    ("CPUs of another claim", ("devices", 1, "containerEdits", "env", 0), f"DRA_CPUSET_{UID_B}=0,8"),
    ("other preparation", ("devices", 0, "containerEdits", "env", 1), f"NRI_CPU_PREPARATION_{UID_A}={SECRET_B}"),
    ("edits for all", ("containerEdits",), {"env": [f"DRA_CPUSET_{UID_B}=3"]}),
    ("edits for all a list", ("containerEdits",), []),
]


def spoilt() -> Iterator[tuple[str, Any]]:
    for name, path, value in SPOILT:
        made = spec()
        place = made
        for step in path[:-1]:
            place = place[step]
        if value is None:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        yield name, made
    third = spec()
    third["devices"][0]["containerEdits"]["env"].append(f"DRA_CPUSET_{UID_B}=3")
    yield "env of two claims", third
    double = spec()
    double["devices"][0]["containerEdits"]["env"] *= 2
    yield "env twice", double


@pytest.mark.parametrize("made", [pytest.param(made, id=name) for name, made in spoilt()])
def test_a_spec_that_disagrees_with_its_record_is_corrupt(made: Any) -> None:
    with pytest.raises(Corrupt) as error:
        cdi.record_from_spec(raw(made))
    assert SECRET_A not in str(error.value)
    assert SECRET_B not in str(error.value)


def test_what_a_newer_version_adds_to_the_spec_does_no_harm() -> None:
    made = spec()
    made["annotations"]["other"] = "x"
    made["containerEdits"] = {"env": ["OTHER=1"], "mounts": []}
    made["devices"].append({**made["devices"][0], "name": "one-more", "annotations": {}})
    made["devices"][0]["containerEdits"]["env"].append("DRA_CPU_COUNT=2")
    made["new"] = 1
    assert cdi.record_from_spec(raw(made)) == CLAIM_A


def test_a_record_of_a_newer_format_is_told_from_a_broken_one() -> None:
    made = spec()
    made["annotations"]["dra.cpu/claim"] = file_with({}, format=2, readableBy=2).decode()
    with pytest.raises(TooNew):
        cdi.record_from_spec(raw(made))


@given(st.binary(max_size=200))
def test_random_bytes_get_our_error_only(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        cdi.record_from_spec(data)


@pytest.mark.fault("A14")
def test_a_spec_cut_off_anywhere_is_corrupt() -> None:
    for end in range(len(SPEC)):
        with pytest.raises(Corrupt):
            cdi.record_from_spec(SPEC[:end])


def test_a_flipped_bit_never_changes_the_claim() -> None:
    for at in range(len(SPEC) * 8):
        damaged = bytearray(SPEC)
        damaged[at // 8] ^= 1 << at % 8
        try:
            record = cdi.record_from_spec(bytes(damaged))
        except CheckpointError:
            continue
        assert record == CLAIM_A, f"bit {at}"


def test_a_huge_spec_is_refused() -> None:
    with pytest.raises(Corrupt, match="larger than"):
        cdi.record_from_spec(b" " * (cdi.MAX_SPEC_BYTES + 1))


@pytest.mark.fault("P-4")
def test_cpus_above_1024_keep_their_numbers() -> None:
    record = replace(CLAIM_A, cpus=CPUSet.parse("0-2,511,4095"))
    assert f'"DRA_CPUSET_{UID_A}=0-2,511,4095"' in cdi.spec_bytes(record).decode()
    assert cdi.record_from_spec(cdi.spec_bytes(record)) == record


def write(directory: Path, record: ClaimRecord) -> Path:
    path = directory / cdi.file_name(record.uid)
    files.write_durably(path, cdi.spec_bytes(record))
    return path


@pytest.mark.fault("B2", "S2")
def test_the_claims_of_a_directory_are_found(tmp_path: Path, log: list[str]) -> None:
    write(tmp_path, CLAIM_A)
    write(tmp_path, CLAIM_B)
    assert cdi.read_specs(tmp_path) == {UID_A: CLAIM_A, UID_B: CLAIM_B}
    assert log == []


def test_a_directory_that_is_not_there_holds_no_claims_and_one_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    assert cdi.read_specs(tmp_path / "none") == {}
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointUnreadable, match="can't be listed"):
        cdi.read_specs(tmp_path / "file")


@pytest.mark.fault("A15")
def test_foreign_and_broken_files_are_skipped_and_named_once_each(tmp_path: Path, log: list[str]) -> None:
    write(tmp_path, CLAIM_A)
    foreign = [
        "nvidia.yaml",
        "dra.k8s.io-cpu_claim-x.json",
        f"dra.k8s.io-cpu_claim-{UID_B.upper()}.json",
        f"x{UID_B}.json",
    ]
    foreign.append(f".dra.k8s.io-cpu_claim-{UID_B}.json.0123456789abcdef.tmp")
    for name in foreign:
        (tmp_path / name).write_bytes(cdi.spec_bytes(CLAIM_B))
    broken = [cdi.file_name(UID_A.replace("1", digit)) for digit in "3456"]
    (tmp_path / broken[0]).write_bytes(SPEC[:50])
    (tmp_path / broken[1]).mkdir()
    (tmp_path / broken[2]).write_bytes(cdi.spec_bytes(CLAIM_B))  # another claim's
    (tmp_path / broken[3]).symlink_to(tmp_path / "nowhere")
    assert cdi.read_specs(tmp_path) == {UID_A: CLAIM_A}
    for name in foreign:
        assert sum(str(tmp_path / name) in line for line in log if line.startswith("DEBUG")) == 1
    for name in broken:
        assert sum(str(tmp_path / name) in line for line in log if line.startswith("WARNING")) == 1
    assert len(log) == len(foreign) + len(broken)
    assert not any(secret in line for line in log for secret in (SECRET_A, SECRET_B))


def test_of_two_claims_with_a_cpu_in_common_the_first_prepared_counts(tmp_path: Path, log: list[str]) -> None:
    earlier = replace(CLAIM_B, cpus=CPUSet.parse("8-9"), prepared_at="2026-11-29T00:00:00Z")
    write(tmp_path, CLAIM_A)
    write(tmp_path, earlier)
    assert cdi.read_specs(tmp_path) == {UID_B: earlier}
    assert len(log) == 1
    assert str(tmp_path / cdi.file_name(UID_A)) in log[0]
    assert "CPUs 8 to two claims" in log[0]


@pytest.mark.fault("A15", "A14")
def test_fifty_claims_written_at_once_are_fifty_whole_specs_and_removing_one_touches_no_other(tmp_path: Path) -> None:
    claims = [
        replace(CLAIM_A, uid=f"{number:08x}-0000-4000-8000-000000000000", cpus=CPUSet([number]), devices=())
        for number in range(50)
    ]
    writers = [threading.Thread(target=write, args=(tmp_path, claim)) for claim in claims]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert cdi.read_specs(tmp_path) == {claim.uid: claim for claim in claims}
    assert {entry.name for entry in tmp_path.iterdir()} == {cdi.file_name(claim.uid) for claim in claims}
    (tmp_path / cdi.file_name(claims[7].uid)).unlink()
    assert cdi.read_specs(tmp_path) == {claim.uid: claim for claim in claims if claim is not claims[7]}


def test_devices_of_a_share_are_kept(tmp_path: Path) -> None:
    shares = tuple(DeviceAllocation(f"r{n}", "node", "cpudevmachine", CPUSet([n]), f"share-{n}") for n in (0, 8))
    record = replace(CLAIM_A, devices=shares)
    write(tmp_path, record)
    assert cdi.read_specs(tmp_path)[UID_A].devices == shares

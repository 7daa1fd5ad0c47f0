"""Checkpoints, owners and their files for tests: one plain example of each, and strategies for any."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any

from hypothesis import strategies as st

from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord, DeviceAllocation, Owner, Owners
from nri_cpu.cpuset import MAX_CPUS, CPUSet

BOOT = "0b3f7a4e-5d1c-4d4b-9a43-0c5a1e3f7b21"
UID_A = "11111111-aaaa-4aaa-8aaa-111111111111"
UID_B = "22222222-bbbb-4bbb-8bbb-222222222222"
POD = "33333333-cccc-4ccc-8ccc-333333333333"
SECRET_A = "00112233445566778899aabbccddeeff"
SECRET_B = "ffeeddccbbaa99887766554433221100"

CLAIM_A = ClaimRecord(
    uid=UID_A,
    namespace="default",
    name="two-cpus",
    pod_uids=(POD,),
    cpus=CPUSet.parse("0,8"),
    preparation=SECRET_A,
    prepared_at="2026-11-30T10:24:00Z",
    devices=(DeviceAllocation("cpus", "node-1", "cpudevnuma000", CPUSet.parse("0,8"), "5f6a1b2c"),),
    options={"strategy": "packed", "numaNodes": 1},
)
CLAIM_B = replace(
    CLAIM_A, uid=UID_B, name="other", cpus=CPUSet.parse("1,9"), preparation=SECRET_B, devices=(), options={}
)
CHECKPOINT = Checkpoint(CPUSet.parse("7"), {UID_A: CLAIM_A, UID_B: CLAIM_B})
OWNERS = Owners(
    {
        UID_A: Owner(
            SECRET_A, POD, "default", "pod-1", "main", "c0ffee", "/kubepods.slice/kubepods-pod1.slice/cri-c0ffee.scope"
        )
    }
)


def file_with(data: object, /, **changes: object) -> bytes:
    """A file whose checksum fits `data`; `changes` replace fields of the envelope, None removes one."""
    text = json.dumps(data)
    fields: dict[str, object] = {
        "format": 1,
        "readableBy": 1,
        "bootID": BOOT,
        "sha256": sha256(text.encode()).hexdigest(),
        "data": text,
    }
    fields.update(changes)
    return json.dumps({key: value for key, value in fields.items() if value is not None}).encode()


def data_of(raw: bytes) -> Any:
    """The parsed data of a file, with no regard to its envelope."""
    return json.loads(json.loads(raw)["data"])


json_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
# Keys that no version knows: those of ours are camelCase words.
unknown_fields = st.dictionaries(st.text(max_size=8).map("x-".__add__), json_values, max_size=2)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.", max_size=20) | st.text(max_size=12).filter(str.isprintable)
uids = st.uuids().map(str)
preparations = st.text("0123456789abcdef", min_size=32, max_size=32)
cpusets = st.frozensets(st.integers(0, MAX_CPUS - 1), min_size=1, max_size=6).map(CPUSet)
devices = st.builds(DeviceAllocation, names, names, names, cpusets, st.none() | names, unknown_fields)
times = st.datetimes().map(lambda at: at.isoformat() + "Z")


def records(uid: str, cpus: CPUSet) -> st.SearchStrategy[ClaimRecord]:
    return st.builds(
        ClaimRecord,
        st.just(uid),
        names,
        names,
        st.lists(names, max_size=3).map(tuple),
        st.just(cpus),
        preparations,
        times,
        st.lists(devices, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=8), json_values, max_size=2),
        unknown_fields,
        st.none() | names,
    )


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    """Any checkpoint: claims are disjoint, reserved CPUs may overlap them."""
    claims = {}
    for at, uid in enumerate(draw(st.lists(uids, unique=True, max_size=3))):
        own = draw(st.frozensets(st.integers(0, MAX_CPUS // 4 - 1), min_size=1, max_size=5))
        claims[uid] = draw(records(uid, CPUSet(cpu * 4 + at for cpu in own)))
    reserved = CPUSet(draw(st.frozensets(st.integers(0, MAX_CPUS - 1), max_size=4)))
    return Checkpoint(reserved, claims, draw(unknown_fields), draw(unknown_fields))


owner_values = st.builds(Owner, preparations, names, names, names, names, names, names, unknown_fields)
owners_values = st.builds(Owners, st.dictionaries(uids, owner_values, max_size=3), unknown_fields, unknown_fields)

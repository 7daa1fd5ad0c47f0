"""Promises of Prepare to whatever a claim may be: one answer, all of it or nothing, and no loss to other claims."""

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra.claims import ClaimRef
from dra.devices import DeviceMode
from tests.unit.dra.manifests import NODE, config, manifest, result, uid
from tests.unit.dra.rig import Rig
from tests.unit.dra.test_claims import JSON, paths


def whole() -> dict[str, Any]:
    """A claim with every field of the API that a driver may meet (resource.k8s.io/v1 of 1.34 to 1.37)."""
    tolerations = [{"key": "k", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}]
    of_ours: dict[str, Any] = {
        "shareID": uid(9),
        "adminAccess": False,
        "tolerations": tolerations,
        "bindingConditions": ["a.example/ready"],
        "bindingFailureConditions": ["a.example/failed"],
        "skipNodeOperations": [],
    }
    claim = manifest(
        result(request="cpus/big", **of_ours), result(request="more", cpus="1"), claim_uid=uid(1), pod=uid(7)
    )
    other = {"request": "gpu", "driver": "gpu.example", "pool": "p", "device": "gpu0"}
    cpu_config = {"apiVersion": "v1alpha1", "cpuConfig": {"strategy": "packed", "fullPhysicalCores": False}}
    claim["metadata"] |= {
        "name": "c1",
        "annotations": {"resource.kubernetes.io/pod-claim-name": "mine"},
        "labels": {"a": "b"},
        "finalizers": ["resource.kubernetes.io/delete-protection"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid(7), "controller": True}],
        "resourceVersion": "17",
    }
    claim["status"]["allocation"] |= {
        "nodeSelector": {"nodeSelectorTerms": []},
        "allocationTimestamp": "2026-11-30T10:24:00Z",
    }
    claim["status"]["allocation"]["devices"]["results"].append(other)
    claim["status"]["allocation"]["devices"]["config"] = [
        config(cpu_config, source="FromClass", requests=["cpus"]),
        config(cpu_config, requests=["cpus/big", "more"]),
        {"source": "FromClaim", "requests": [], "opaque": {"driver": "gpu.example", "parameters": {}}},
    ]
    claim["status"]["devices"] = [{"driver": "gpu.example", "pool": "p", "device": "gpu0", "conditions": []}]
    return claim


WHOLE = whole()
MODES = [DeviceMode.GROUPED, DeviceMode.INDIVIDUAL]
TEXTS = st.sampled_from(
    ["", "cpudev003", "cpudevnuma000", "cpudevsocket000", "../x", "a/b/c", "x" * 300, "\ud800", "a\nb", "0-3"]
)
NUMBERS = st.sampled_from([0, -1, 1, 2, 10**400, 1.5, float("nan"), "1e308", "2Ki", "16", "17"])


@pytest.fixture(scope="module", params=MODES)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory() as directory:
        yield Rig(Path(directory), mode=request.param)


def changed(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    claim = copy.deepcopy(WHOLE)
    inner: Any = claim
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return claim


def assert_whole_or_nothing(rig: Rig, claim: object) -> None:
    """Prepare and Unprepare it beside a claim that is right."""
    free = result("cpudev005", None) if rig.node.mode is DeviceMode.INDIVIDUAL else result()
    good, ref = rig.claim(2, free), ClaimRef(uid(1), "default", "c1")
    rig.claims.manifests["c1"] = claim  # type: ignore[assignment]  # which is the point
    before = rig.snapshot()
    answer = rig.outcome(good, ref)
    assert set(answer) == {good.uid, ref.uid}
    assert len(answer[good.uid]) == 1
    told = answer[ref.uid]
    if isinstance(told, str):
        assert told.startswith(f"claim {ref}: ")
        assert "dra-cpu failed" not in told
        assert told.isprintable()
        assert len(told.encode()) <= 1024
    prepared = {good.uid} | ({ref.uid} if told and not isinstance(told, str) else set())
    assert set(rig.recorded) == set(rig.cdi.read()) == prepared
    assert {each.uid for each in (good, ref) if rig.has_metadata(each)} == prepared
    rig.start(mode=rig.node.mode)
    assert set(rig.recorded) == prepared
    assert [rig.unprepare(each) for each in (good, ref)] == ["", ""]
    assert rig.snapshot() == before


def test_a_claim_with_every_field_is_prepared(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    ref = rig.claims.put(whole())
    answer = rig.outcome(ref)[ref.uid]
    assert [(device.request, device.share_id) for device in answer] == [("cpus/big", uid(9)), ("more", None)]
    assert [len(device.cdi_ids) for device in answer] == [3, 3]
    assert rig.metadata_of(ref)["podClaimName"] == "mine"


@given(st.sampled_from([path for path in paths(WHOLE) if path]), JSON | TEXTS | NUMBERS)
@settings(max_examples=150, deadline=None)
def test_any_value_in_any_place_prepares_the_claim_or_refuses_it(
    rig: Rig, path: tuple[Any, ...], value: object
) -> None:
    assert_whole_or_nothing(rig, changed(path, value))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "driver": st.just("dra.cpu"),
                "pool": st.sampled_from(["node-a", "other"]),
                "request": st.sampled_from(["a", "a/b", "c", "a/b/c", ""]),
                "device": TEXTS,
            },
            optional={
                "consumedCapacity": st.dictionaries(st.sampled_from(["dra.cpu/cpu", "x"]), NUMBERS, max_size=2),
                "shareID": st.sampled_from([uid(9), "x", None]),
                "adminAccess": st.sampled_from([True, False, None]),
            },
        ),
        max_size=4,
    ),
    st.lists(st.builds(config, JSON, st.sampled_from(["FromClass", "FromClaim", "x"])), max_size=2),
)
@settings(max_examples=150, deadline=None)
def test_any_allocation_is_prepared_or_refused(rig: Rig, results: list[dict[str, Any]], configs: list[Any]) -> None:
    claim = manifest(claim_uid=uid(1), name="c1")
    claim["status"]["allocation"]["devices"] = {"results": results, "config": configs}
    assert_whole_or_nothing(rig, claim)


@pytest.mark.fault("A5", "A6")
@pytest.mark.parametrize("others", [[], [{"request": "gpu", "driver": "gpu.example", "pool": "p", "device": "gpu0"}]])
def test_a_claim_allocated_none_of_our_devices_any_more_is_refused_until_it_is_unprepared(
    tmp_path: Path, others: list[dict[str, Any]]
) -> None:
    rig = Rig(tmp_path)
    ref, foreign = rig.claim(1), rig.claim(2, {"request": "gpu", "driver": "x", "pool": "p", "device": "d"})
    rig.prepare(ref)
    before = rig.snapshot()
    rig.claims.manifests[ref.name]["status"]["allocation"]["devices"]["results"] = others
    answer = rig.outcome(ref, foreign)
    assert answer[foreign.uid] == ()
    assert answer[ref.uid] == (
        f"claim {ref}: it was prepared here with 2 CPUs of {NODE}/cpudevnuma000 for cpus and is allocated nothing now: "
        "it can be prepared anew once the kubelet has unprepared it"
    )
    assert rig.snapshot() == before
    assert rig.unprepare(ref) == ""
    assert rig.outcome(ref) == {ref.uid: ()}
    assert rig.recorded == {}

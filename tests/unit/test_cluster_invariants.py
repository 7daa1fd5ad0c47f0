"""Promise: whichever invariant is broken on a node, the one function that checks them says which, and of whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord, DeviceAllocation, Owner
from nri_cpu.cpuset import CPUSet
from tests.cluster.facts import Allocated, Facts, Running
from tests.cluster.invariants import Known, overlaps, problems

ALL = CPUSet.parse("0-15")
POOL = CPUSet.parse("2-7,10-15")
A, B = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"


def record(uid: str, cpus: str, device: str = "cpudevnuma000") -> ClaimRecord:
    allocation = DeviceAllocation("cpus", "node", device, CPUSet.parse(cpus), "share")
    at = "2026-01-01T00:00:00Z"
    return ClaimRecord(uid, "default", uid[0], (), allocation.cpus, uid[0] * 32, at, (allocation,))


def running(name: str, cpus: str, *records: ClaimRecord, **other: Any) -> Running:
    where = CPUSet.parse(cpus)
    facts = Running(
        id=name,
        pod_uid=f"pod-{name}",
        name=name,
        title=f"default/pod/{name}",
        written=where,
        cpus=where,
        allowed=frozenset([where]),
        book=where,
        given={one.uid: one.cpus for one in records},
        proofs={one.uid: one.preparation for one in records},
        wants=frozenset(one.uid for one in records),
    )
    return replace(facts, **other)


def facts(*records: ClaimRecord, containers: tuple[Running, ...] = (), reserved: str = "", **other: Any) -> Facts:
    """A node on which all is well: each claim has its container, and there is a shared one."""
    claims = {one.uid: one for one in records}
    mine = tuple(running(f"of-{one.uid[0]}", str(one.cpus), one) for one in records)
    owners = {
        one.uid: Owner(one.preparation, f"pod-of-{one.uid[0]}", "default", "pod", f"of-{one.uid[0]}", "", "")
        for one in records
    }
    found = Facts(
        online=ALL,
        checkpoint=Checkpoint(CPUSet.parse(reserved), claims),
        owners=owners,
        specs=claims,
        leftovers=(),
        containers=(*mine, *containers),
        allocated={one.uid: Allocated(one.uid, tuple((d.device, len(d.cpus)) for d in one.devices)) for one in records},
        kubelet=frozenset(claims),
        handed=frozenset(claims),
        offered={"cpudevnuma000": 4, "cpudevnuma001": 12},
        metadata=frozenset(claims),
        mounts=frozenset(claims),
        unseen=(),
    )
    if not containers:
        found = replace(found, containers=(*mine, running("shared", str(found.pool))))
    return replace(found, **other)


ONE = record(A, "0-1,8-9")


def test_a_node_on_which_all_is_well_has_no_problems() -> None:
    assert problems(facts()) == []
    assert problems(facts(ONE)) == []
    assert problems(facts(ONE, record(B, "2,10", "cpudevnuma001")), facts(ONE)) == []


def test_a_reserved_cpu_is_neither_shared_nor_lost() -> None:
    assert problems(facts(reserved="15", offered={"cpudevnuma000": 4, "cpudevnuma001": 11})) == []


def test_an_empty_pool_falls_back_to_reserved_cpus() -> None:
    full = facts(record(A, "1-15", "cpudevmachine"), reserved="0", offered={"cpudevmachine": 15})
    assert full.pool == CPUSet([0])
    assert problems(full) == []


def test_a_claim_whose_cpus_are_all_off_line_is_where_the_pool_is() -> None:
    pool = CPUSet.parse("0,2-7,10-15")
    claim = record(A, "8-9")
    alone = facts(claim, online=ALL - CPUSet.parse("1,8-9"), offered={"cpudevnuma000": 1, "cpudevnuma001": 12})
    assert problems(replace(alone, containers=(running("of-a", str(pool), claim), running("s", str(pool))))) == []


@pytest.mark.parametrize(
    ("number", "said", "broken"),
    [
        (1, "both have CPUs 1", facts(ONE, record(B, "1"))),
        (1, "reserved CPUs 8", facts(ONE, reserved="8")),
        (2, "the pool is 2-7,10-15", facts(ONE, containers=(running("s", "0-15"),))),
        (
            2,
            "a process that may run on CPUs 0",
            facts(ONE, containers=(running("s", "2-7,10-15", allowed=frozenset([CPUSet([0])])),)),
        ),
        (2, "the pool is 0-15", facts(containers=(running("s", "2-7,10-15"),))),
        (2, "no shared container", replace(facts(), containers=())),
        (2, "runs, and the kernel shows no cgroup", facts(unseen=("default/pod/main (by the API)",))),
        (3, "its claims have 0-1,8-9", facts(ONE, containers=(running("of-a", "0-15", ONE),))),
        (3, "is to have claims", facts(ONE, containers=(running("x", "2-7,10-15", wants=frozenset([A])),))),
        (
            3,
            "a process that may run on CPUs 2",
            facts(ONE, containers=(running("of-a", "0-1,8-9", ONE, allowed=frozenset([ONE.cpus, CPUSet([2])])),)),
        ),
        (4, "was made when claim", facts(ONE, containers=(running("of-a", "0-1,8-9", ONE, given={A: CPUSet([0])}),))),
        (5, "spec.json.tmp is left over", facts(leftovers=("spec.json.tmp",))),
        (5, "differ", facts(specs={A: ONE})),
        (5, "differ", facts(ONE, specs={})),
        (5, "claims with metadata files", facts(ONE, metadata=frozenset())),
        (5, "claims with mounts of metadata", facts(mounts=frozenset([A]))),
        (5, "nobody will unprepare it", facts(ONE, kubelet=frozenset())),
        (5, "allocated is", facts(ONE, allocated={A: Allocated("a", (("cpudevnuma000", 2),))})),
        (5, "which is not prepared", facts(containers=(running("of-a", "0-1,8-9", ONE),))),
        (5, "by the owners' file", facts(ONE, owners={})),
        (5, "has an owner, and is not prepared", facts(owners=facts(ONE).owners)),
        (5, "the kubelet has got its devices", facts(handed=frozenset([A]))),
        (5, "which is CPUs 2-3,10-11", facts(record(A, "0-1", "cpudevnuma001"))),
        (5, "its devices are", facts(replace(ONE, cpus=CPUSet.parse("0-1")))),
        (6, "an empty cpuset in its cgroup", facts(containers=(running("s", "0-15", written=CPUSet()),))),
        (6, "an empty cpuset in the runtime", facts(containers=(running("s", "0-15", book=CPUSet()),))),
        (7, "the runtime has noted 0-15", facts(ONE, containers=(running("s", "2-7,10-15", book=ALL),))),
        (8, "claimed, reserved and shared are", facts(ONE, containers=(running("s", "2-7,10-14"),))),
        (8, "17 CPUs are published", facts(offered={"cpudevnuma000": 5, "cpudevnuma001": 12})),
        (8, "0 CPUs are published", facts(offered={})),
        (8, "1 more than that are allocated", facts(ONE, allocated={B: Allocated("b", (("cpudevnuma000", 5),))})),
    ],
)
def test_what_breaks_an_invariant_is_named(number: int, said: str, broken: Facts) -> None:
    assert any(line.startswith(f"invariant {number}: ") and said in line for line in problems(broken)), problems(broken)


def test_a_claim_that_changed_its_cpus_since_the_last_look_is_named() -> None:
    moved = replace(ONE, cpus=CPUSet.parse("2-3,10-11"))
    assert any(line.startswith("invariant 4") for line in problems(facts(moved), facts(ONE)))
    again = replace(moved, preparation="f" * 32)  # unprepared and prepared anew
    assert not any(line.startswith("invariant 4") for line in problems(facts(again), facts(ONE)))


@pytest.mark.fault("R4")
def test_a_claim_of_before_its_cpus_were_reserved_may_keep_them() -> None:
    kept = facts(ONE, reserved="0", offered={"cpudevnuma000": 3, "cpudevnuma001": 12})
    assert problems(kept, known=Known(kept_on_reserved={A})) == []


def test_a_claim_that_was_prepared_by_hand_is_unknown_to_the_kubelet() -> None:
    mine = facts(ONE, kubelet=frozenset(), handed=frozenset())
    assert problems(mine, known=Known(by_hand={A})) == []
    assert problems(mine) != []


def test_a_container_may_outlive_its_claim_and_is_alone_on_its_cpus_even_then() -> None:
    left = facts(ONE)
    gone = replace(left, checkpoint=Checkpoint(CPUSet(), {}), owners={}, specs={}, metadata=frozenset())
    gone = replace(gone, mounts=frozenset(), kubelet=frozenset())
    assert problems(gone, known=Known(outlived={A})) == []
    assert problems(gone) != []
    moved = replace(gone, containers=(running("of-a", "0-15", ONE), *gone.shared))
    assert any(line.startswith("invariant 3") for line in problems(moved, known=Known(outlived={A})))


def test_a_container_on_cpus_of_another_ones_claim_is_named_whoever_it_is() -> None:
    assert list(overlaps(facts(ONE, record(B, "2,10", "cpudevnuma001")))) == []
    shared = facts(ONE, containers=(running("s", "8-15"),))
    assert [text.partition(",")[0] for text in overlaps(shared)] == ["default/pod/s may run on CPUs 8-9"]
    stray = facts(ONE, containers=(running("s", "2-7", allowed=frozenset([ALL])),))
    assert any("may run on CPUs 0-1,8-9" in text for text in overlaps(stray))
    both = facts(ONE, record(B, "1"))
    assert len(list(overlaps(both))) == 2


@pytest.mark.fault("R17")
def test_cpus_of_claims_of_another_configuration_are_not_published() -> None:
    other = record(A, "3", "cpudev003")
    assert problems(facts(other, offered={"cpudevnuma000": 3, "cpudevnuma001": 12})) == []
    assert any("16 CPUs are published" in line for line in problems(facts(other)))

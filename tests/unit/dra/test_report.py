"""Promises of the report: it reads back as the same machine, others' are read too, and no secret gets in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.report import MAX_REPORT_BYTES, ReportError, read_report, report_of
from nri_cpu.checkpoint.model import ClaimRecord, DeviceAllocation, Owner
from nri_cpu.cpuset import CPUSet
from nri_cpu.plain_yaml import PlainYamlError, dump, parse
from nri_cpu.topology import CoreType, Cpu, Topology
from tests.unit.topology.machines import box, hybrid, machine, t1, t2

UID = "6a2d5e0c-8f1b-4f57-9d0e-3b1c7a9e2f44"
SECRET = "0123456789abcdef0123456789abcdef"


def everything() -> Topology:
    """A machine that uses each field."""
    cpus = [Cpu(2 * n, n // 4, n // 2, n % 2, 7, n // 4 * 3, None if n < 4 else n, CoreType.E_CORE) for n in range(8)]
    return Topology.of(
        cpus,
        CPUSet.parse("0-15"),
        {1: 0, 3: 3},
        possible=CPUSet.parse("0-31"),
        isolated=CPUSet.parse("2,4"),
        memory_nodes=(5, 7),
        memoryless_nodes=(3,),
        pcie_roots={"pci0000:00": CPUSet.parse("0-7"), "pci0000:80": CPUSet.parse("")},
    )


def far_numbers() -> Topology:
    """Numbers as firmware makes them: 32 bits without a sign."""
    return Topology.of(
        Cpu(n, 3_000_000_000 + n // 2, -1, -1, 4_294_967_295 - n, n // 2, 3_000_000_000 + n // 2) for n in range(4)
    )


@pytest.mark.parametrize(
    "topology",
    [
        box(),
        t1(offline=[3, 15]),
        t2(),
        hybrid(),
        everything(),
        machine(sockets=2, dies=2, cores=4, threads=8, l3_per_node=2),
        machine(cores=1),
        far_numbers(),
    ],
    ids=["box", "offline", "t2", "hybrid", "everything", "smt8", "one", "far"],
)
def test_a_machine_reads_back_as_itself(topology: Topology) -> None:
    report = read_report(dump(report_of(topology, {"strategy": "spread"})))
    assert report.topology == topology
    assert report.driver_config == {"strategy": "spread"}


def test_names_are_those_that_others_know() -> None:
    report: Any = report_of(box(), {})
    assert list(report) == ["toolVersion", "layoutVersion", "cpuDetails", "driverConfig", "claims", "containers"]
    assert report["layoutVersion"] == "v1"
    assert report["cpuDetails"]["topology"] == {
        "numCPUs": 16,
        "numCores": 8,
        "numUncoreCache": 4,
        "numSockets": 2,
        "numNUMANodes": 4,
        "smtEnabled": True,
    }
    assert report["cpuDetails"]["cpus"][10] == {
        "cpuID": 10,
        "coreID": 2,
        "socketID": 0,
        "clusterID": -1,
        "dieID": 1,
        "numaNodeID": 1,
        "numaNodeCPUSet": "2-3,10-11",
        "sibling": 2,
        "siblings": "2,10",
        "coreType": "standard",
        "uncoreCacheID": 1,
        "online": True,
    }


def test_cpus_off_line_are_entries_too() -> None:
    entries: Any = report_of(t1(offline=[15]), {})["cpuDetails"]
    assert entries["cpus"][15] | {"cpuID": 15, "online": False, "numaNodeID": 0, "coreID": -1} == entries["cpus"][15]
    assert entries["cpus"][15].keys() == entries["cpus"][7].keys()
    assert entries["cpus"][7]["sibling"] == -1
    assert entries["cpus"][7]["siblings"] == "7"


def test_no_preparation_and_nothing_unknown_gets_into_a_report() -> None:
    device = DeviceAllocation("cpus", "node", "cpudevnuma000", CPUSet([0]), None, {"secret": SECRET})
    record = ClaimRecord(
        *(UID, "default", "one", ("pod",), CPUSet([0]), SECRET, "2026-01-01T00:00:00Z", (device,)),
        options={"cpus": {"strategy": "packed"}},
        unknown={"secret": SECRET},
    )
    owner = Owner(SECRET, "pod", "default", "web", "app", "containerd://1", "/kubepods", {"secret": SECRET})
    text = dump(report_of(box(), {}, [record], {UID: owner}, ["a note"]))
    assert SECRET not in text
    assert "preparation" not in text
    report: Any = parse(text, 10_000)[0]
    assert report["claims"] == [
        {
            "uid": UID,
            "namespace": "default",
            "name": "one",
            "cpus": "0",
            "podUIDs": ["pod"],
            "preparedAt": "2026-01-01T00:00:00Z",
            "devices": [{"request": "cpus", "pool": "node", "device": "cpudevnuma000", "cpus": "0", "shareID": None}],
            "options": {"cpus": {"strategy": "packed"}},
        }
    ]
    assert report["containers"][0]["podName"] == "web"
    assert report["notes"] == ["a note"]


def test_the_cpus_of_claims_read_back() -> None:
    claims = [
        ClaimRecord(
            UID.replace("6", str(n)), "default", f"c{n}", (), CPUSet.parse(cpus), SECRET, "2026-01-01T00:00:00Z", ()
        )
        for n, cpus in enumerate(("0,8", "5"))
    ]
    assert read_report(dump(report_of(box(), {}, claims))).claimed == CPUSet.parse("0,5,8")
    assert read_report(dump(report_of(box(), {}))).claimed == CPUSet()
    assert read_report(THEIRS).claimed == CPUSet()


THEIRS = """\
---
toolVersion:
  goVersion: go1.26.0
layoutVersion: v1
cpuDetails:
  topology:
    numCPUs: 4
  cpus:
  - {cpuID: 0, coreID: 0, socketID: 0, clusterID: -1, numaNodeID: 0, numaNodeCPUSet: 0-1, sibling: 1, coreType: standard, uncoreCacheID: 0}
  - {cpuID: 1, coreID: 0, socketID: 0, clusterID: -1, numaNodeID: 0, numaNodeCPUSet: 0-1, sibling: 0, coreType: standard, uncoreCacheID: 0}
  - {cpuID: 2, coreID: 0, socketID: 1, clusterID: -1, numaNodeID: 1, numaNodeCPUSet: "2", sibling: -1, uncoreCacheID: 0}
  - {cpuID: 3, coreID: 1, socketID: 1, clusterID: -1, numaNodeID: 1, numaNodeCPUSet: "2-3", sibling: -1, coreType: P-Core, uncoreCacheID: -1}
driverConfig:
  cpuDeviceMode: grouped
  reservedCPUs: "0"
"""  # noqa: E501


@pytest.mark.fault("A30", "R11", "R14")
def test_a_report_of_the_other_driver_is_a_machine() -> None:
    report = read_report(THEIRS)
    assert [str(core) for core in report.topology.cores] == ["0-1", "2", "3"]
    # The number 0 is that of a cache on each socket, and -1 is none.
    assert [str(group) for group in report.topology.l3_groups] == ["0-1", "2", "3"]
    assert report.topology.cpus[3].l3 is None
    assert report.topology.cpus[3].core_type is CoreType.P_CORE
    assert report.topology.online == report.topology.present == CPUSet.parse("0-3")
    assert report.driver_config["reservedCPUs"] == "0"


@pytest.mark.fault("R12")
def test_siblings_may_name_threads_that_are_off_line_and_leave_out_the_cpu_itself() -> None:
    details: Any = report_of(t1(offline=[15]), {})
    cpus = details["cpuDetails"]["cpus"]
    cpus[7]["siblings"], cpus[0]["siblings"] = "7,15", "8"
    assert read_report(dump(details)).topology == t1(offline=[15])


def test_numbers_of_caches_stay_where_they_are_one_caches_only() -> None:
    assert read_report(THEIRS.replace("sibling: -1, uncoreCacheID: 0", "uncoreCacheID: 9")).topology.cpus[2].l3 == 9


def test_unknown_keys_are_passed_over() -> None:
    text = THEIRS.replace("numCPUs: 4", "numCPUs: 4\n    news: [1]").replace("{cpuID: 0", "{news: {a: b}, cpuID: 0")
    assert read_report(f"{text}news: 1\n").topology == read_report(THEIRS).topology


def edited(**changes: object) -> str:
    """The report of a small machine with fields of its second CPU changed."""
    report: Any = report_of(machine(cores=2), {})
    report["cpuDetails"]["cpus"][1] |= changes
    return dump(report)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 YAML documents where one report belongs"),
        ("---\n---\n", "has 2 YAML documents"),
        ("[]", "the whole is a list where an object belongs"),
        ("a: [", "is no YAML in line"),
        ("a: &x 1\nb: *x\n", "has an alias in line 2, which is not supported"),
        ("a: !!python/object 1\n", "has a tag in line 1"),
        ("a: 1\na: 2\n", "has the key 'a' a second time in line 2: remove one"),
        ("a: \x07", "is no YAML"),
        ("? [1]\n: 2\n", "has a key that is no text in line 1"),
        ("a: " + "[" * 100 + "]" * 100, "is nested too deep in line 1"),
        ("\ud800", "is no YAML"),
        ("cpuDetails: {}\n", "layoutVersion is missing or null: it must be v1"),
        ("layoutVersion: 1\n", "layoutVersion is 1: it must be v1"),
        ("layoutVersion: v1\n", "cpuDetails is missing or null where an object belongs"),
        ("layoutVersion: v1\ncpuDetails: {}\n", "cpuDetails.cpus is missing or null where a list belongs"),
        ("layoutVersion: v1\ncpuDetails: {cpus: []}\n", "cpuDetails.cpus has no CPU that is on line"),
        ("layoutVersion: v1\ncpuDetails: {cpus: [1]}\n", "cpuDetails.cpus[0] is 1 where an object belongs"),
        (THEIRS.replace("driverConfig:", "driverConfig: [1]\nx:"), "driverConfig is a list where an object belongs"),
        (f"{THEIRS}claims: {{}}\n", "claims is an object where a list belongs"),
        (f"{THEIRS}claims: [x]\n", "claims[0] is 'x' where an object belongs"),
        (
            f"{THEIRS}claims: [{{cpus: 1}}, {{uid: x}}]\n",
            "claims[1].cpus is missing or null: it must be a list of CPUs",
        ),
        (f"{THEIRS}claims: [{{cpus: 3-1}}]\n", "claims[0].cpus: '3-1' has the reversed range 3-1"),
        (edited(cpuID=None), "cpuDetails.cpus[1].cpuID is missing or null: it must be a number from 0 to 8191"),
        (edited(cpuID="1"), "cpuDetails.cpus[1].cpuID is '1': it must be a number"),
        (edited(cpuID=True), "cpuDetails.cpus[1].cpuID is true: it must be a number"),
        (edited(cpuID=8192), "cpuDetails.cpus[1].cpuID is 8192: it must be a number from 0 to 8191"),
        (edited(cpuID=-1), "cpuDetails.cpus[1].cpuID is -1"),
        (edited(cpuID=0), "cpuDetails.cpus[1].cpuID is 0, as in an entry before it"),
        (edited(cpuID=1.5), "cpuDetails.cpus[1].cpuID is '1.5'"),
        (edited(coreID=-1), "cpuDetails.cpus[1].coreID is -1: it must be a number from 0 to 999999999999999999"),
        (edited(coreID=10**18), "cpuDetails.cpus[1].coreID is '1000000000000000000': it must be"),
        (edited(socketID=None), "cpuDetails.cpus[1].socketID is missing or null"),
        (edited(numaNodeID="x"), "cpuDetails.cpus[1].numaNodeID is 'x'"),
        (edited(uncoreCacheID=[1]), "cpuDetails.cpus[1].uncoreCacheID is a list"),
        (edited(sibling="none"), "cpuDetails.cpus[1].sibling is 'none'"),
        (edited(siblings="0-"), "cpuDetails.cpus[1].siblings: '0-' is not a list of CPUs"),
        (edited(siblings="0-1"), "siblings of CPU 1 is 0-1, but socketID, dieID, clusterID and coreID say 1"),
        (edited(numaNodeCPUSet={}), "cpuDetails.cpus[1].numaNodeCPUSet is an object: it must be a list of CPUs"),
        (edited(numaNodeCPUSet="0-9999"), "cpuDetails.cpus[1].numaNodeCPUSet: '0-9999' has CPU 9999"),
        (edited(coreType="fast"), "cpuDetails.cpus[1].coreType is 'fast': it must be standard, p-core, e-core"),
        (edited(online="yes"), "cpuDetails.cpus[1].online is 'yes': it must be true or false"),
        (
            dump({**report_of(box(), {}), "cpuDetails": {"cpus": [{"cpuID": 0, "online": False}]}}),
            "cpuDetails.cpus has no CPU that is on line",
        ),
    ],
)
def test_what_is_wrong_is_one_error_with_key_and_value(text: str, message: str) -> None:
    with pytest.raises(ReportError) as caught:
        read_report(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("possibleCPUs", "x", "cpuDetails.possibleCPUs: 'x' is not a list of CPUs"),
        ("isolatedCPUs", False, "cpuDetails.isolatedCPUs is false: it must be a list of CPUs"),
        ("memoryNodes", 1, "cpuDetails.memoryNodes is 1: it must be a list of numbers"),
        ("memorylessNodes", ["0"], "cpuDetails.memorylessNodes is a list: it must be a list of numbers"),
        ("memoryNodes", [-1], "cpuDetails.memoryNodes is a list: it must be a list of numbers"),
        ("pcieRoots", [], "cpuDetails.pcieRoots is a list where an object belongs"),
        ("pcieRoots", {"pci0000:00": "1-"}, "cpuDetails.pcieRoots.pci0000:00: '1-' is not a list of CPUs"),
    ],
)
def test_what_is_wrong_beside_the_cpus_is_one_error_too(key: str, value: object, message: str) -> None:
    report: Any = report_of(machine(cores=2), {})
    report["cpuDetails"][key] = value
    with pytest.raises(ReportError) as caught:
        read_report(dump(report))
    assert message in str(caught.value)


def test_sizes_are_limited() -> None:
    with pytest.raises(ReportError, match="is larger than"):
        read_report(" " * (MAX_REPORT_BYTES + 1))
    with pytest.raises(PlainYamlError, match="has more than 10 values: take it apart"):
        parse("[" + "1," * 20 + "]", 10)


@given(st.text(max_size=60))
def test_no_text_is_anything_but_a_report_error(text: str) -> None:
    with pytest.raises(ReportError):
        read_report(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from([*report_of(machine(cores=2), {})["cpuDetails"]["cpus"][1]]),  # type: ignore[index]  # plain values
    VALUES,
)
def test_no_value_of_any_key_is_anything_but_a_machine_or_a_report_error(key: str, value: object) -> None:
    try:
        assert 0 in read_report(edited(**{key: value})).topology.online
    except ReportError as error:
        assert str(error).isprintable()  # noqa: PT017  # either is right


def test_what_is_dumped_has_no_aliases_and_begins_with_its_mark() -> None:
    twice = [1]
    assert dump({"a": twice, "b": twice, "c": "0", "d": "0-1"}) == "---\na:\n- 1\nb:\n- 1\nc: '0'\nd: 0-1\n"

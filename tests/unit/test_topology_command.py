"""Promises of nri-cpu topology: a map that fits, JSON with stable names, and who has which CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nri_cpu.checkpoint.codec import owners_to_bytes
from nri_cpu.checkpoint.model import ClaimRecord
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Cpu, Topology
from tests.captures.machines import NAMES, capture
from tests.unit.checkpoint.samples import BOOT, CLAIM_A, CLAIM_B, OWNERS
from tests.unit.drawer import Done, Drawer, drawer, on_a_terminal
from tests.unit.topology.machines import machine, t1, write_sysfs


@pytest.fixture
def topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Drawer]:
    yield from drawer(tmp_path, capsys)


def test_without_a_checkpoint_it_is_the_machine_and_a_line_says_so(topology: Drawer) -> None:
    assert topology() == Done(
        0,
        "16 CPUs: 2 sockets, 4 NUMA nodes, 4 L3 caches, 8 cores of 2 threads.\n"
        "A column is a core, its threads below each other.\n"
        "\n"
        "socket 0\n"
        "  node 0      0   1\n"
        "              8   9\n"
        "  node 1      2   3\n"
        "             10  11\n"
        "socket 1\n"
        "  node 2      4   5\n"
        "             12  13\n"
        "  node 3      6   7\n"
        "             14  15\n",
        f"nri-cpu: {topology.checkpoint} does not exist: its writer has not run yet, or the path is wrong; "
        "who has which CPU is not shown\n",
    )


def test_a_checkpoint_that_is_named_must_be_there(topology: Drawer) -> None:
    done = topology("--checkpoint", "/nowhere/checkpoint.json")
    expected = "nri-cpu: --checkpoint /nowhere/checkpoint.json does not exist: check the path\n"
    assert done == Done(2, "", expected)
    topology.has(CLAIM_A)
    named = topology("--checkpoint", str(topology.checkpoint))
    assert (named, named.err) == (topology(), "")


def test_a_machine_whose_files_are_odd_is_told_in_one_line(topology: Drawer) -> None:
    topology.has()
    before = topology()
    assert (before.code, before.err) == (0, "")
    (topology.host / "sys/devices/system/cpu/isolated").write_text("nonsense\n")
    assert topology() == replace(before, err="nri-cpu: the machine's files are odd in 1 way; -v tells it\n")
    assert topology("-v").err.endswith(" topology: not a list of CPUs, and passed over: isolated\n")


def test_a_bar_is_explained_where_there_is_one(topology: Drawer, tmp_path: Path) -> None:
    topology.host = write_sysfs(tmp_path / "other", machine(cores=4, threads=2, l3_per_node=2))
    out = topology().out
    assert "A column is a core, its threads below each other; | is between L3 caches.\n" in out
    assert "  node 0     0  1  | 2  3\n" in out


def test_a_bar_is_not_explained_where_there_is_none(topology: Drawer, tmp_path: Path) -> None:
    """A node with an L3 for each type of cores: rows of their own part them already."""
    cpus = [Cpu(n, 0, 0, -1, n, 0, n // 2, CoreType.P_CORE if n < 2 else CoreType.E_CORE) for n in range(4)]
    topology.host = write_sysfs(tmp_path / "other", Topology.of(cpus))
    out = topology().out
    assert "    p-core    0 1\n    e-core    2 3\n" in out.replace("  1", " 1").replace("  3", " 3")
    assert "A column is a core.\n" in out
    assert "|" not in out


def test_nodes_that_share_an_l3_are_told(topology: Drawer, tmp_path: Path) -> None:
    cpus = [Cpu(n, 0, 0, -1, n, n // 2, n // 4) for n in range(8)]
    topology.host = write_sysfs(tmp_path / "other", Topology.of(cpus))
    assert "NUMA nodes that share an L3 cache: 0 and 1; 2 and 3.\n" in topology().out


def test_claims_and_reserved_cpus_are_drawn_and_told(topology: Drawer) -> None:
    topology.has(CLAIM_A, CLAIM_B, reserved="7")
    out = topology().out
    assert "  node 0      0A  1B\n              8A  9B\n" in out
    assert "  node 3      6   7R\n             14  15\n" in out
    assert out.endswith("A default/two-cpus: 0,8   B default/other: 1,9   a number alone: shared\nR reserved\n")


def test_without_a_checkpoint_reserved_cpus_are_those_of_the_configuration(topology: Drawer) -> None:
    topology.configured("reservedCPUs: 0,8\n")
    assert "  node 0      0R  1\n              8R  9\n" in topology().out


def test_cpus_off_line_and_isolated_are_marked(topology: Drawer, tmp_path: Path) -> None:
    topology.host = write_sysfs(tmp_path / "other", t1(offline=[15]))
    (topology.host / "sys/devices/system/cpu/isolated").write_text("2,10\n")
    topology.has()
    out = topology().out
    assert out.startswith("15 CPUs on line, 1 off line: 1 socket, 1 NUMA node, ")
    assert "0   1   2i  3   4   5   6   7  15x\n" in out
    assert "Isolated by the kernel (isolcpus): CPUs 2,10.\n" in out
    topology.host = write_sysfs(tmp_path / "wide", machine(cores=200))
    (topology.host / "sys/devices/system/cpu/isolated").write_text(",".join(map(str, range(0, 200, 2))))
    assert max(map(len, topology().out.splitlines())) <= 80
    assert "i isolated by the kernel" in out


def claims(number: int) -> list[ClaimRecord]:
    uid = "11111111-aaaa-4aaa-8aaa-{:012x}"
    return [
        ClaimRecord(uid.format(n), "default", f"c{n}", (), CPUSet([n]), f"{n:032x}", CLAIM_A.prepared_at, ())
        for n in range(number)
    ]


def test_more_claims_than_letters_are_counted(topology: Drawer, tmp_path: Path) -> None:
    topology.host = write_sysfs(tmp_path / "wide", machine(cores=64))
    topology.has(*claims(60))
    out = topology().out
    assert "+ 11 more claims; -o json has them all" in out
    assert len(topology.json()["claims"]) == 60
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_every_captured_machine_fits_in_80_columns_and_has_each_cpu_once(topology: Drawer, name: str) -> None:
    topology.host = capture(name)
    done = topology()
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    found = topology.json()
    assert [cpu["cpu"] for cpu in found["cpus"]] == list(CPUSet.parse(found["present"]))


def test_json_has_the_names_of_its_docstring(topology: Drawer) -> None:
    topology.has(CLAIM_A, reserved="7")
    found = topology.json()
    assert list(found) == [
        *("online", "present", "possible", "isolated", "reserved", "cpus", "sockets", "numaNodes", "l3Groups"),
        *("cores", "dies", "pcieRoots", "claims"),
    ]
    assert found["cpus"][8] == {
        "cpu": 8,
        "online": True,
        "isolated": False,
        "state": "claim",
        "claim": CLAIM_A.uid,
        "socket": 0,
        "die": 0,
        "cluster": -1,
        "core": 0,
        "numaNode": 0,
        "l3": 0,
        "coreType": "standard",
        "siblings": "0,8",
    }
    assert [cpu["state"] for cpu in found["cpus"]].count("shared") == 13
    assert found["cpus"][7]["state"] == "reserved"
    assert found["sockets"] == [{"socket": 0, "cpus": "0-3,8-11"}, {"socket": 1, "cpus": "4-7,12-15"}]
    assert found["numaNodes"][1] == {"node": 1, "cpus": "2-3,10-11", "memory": True}
    assert found["l3Groups"] == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    assert found["claims"] == [
        {"uid": CLAIM_A.uid, "namespace": "default", "name": "two-cpus", "cpus": "0,8", "owner": None}
    ]
    assert CLAIM_A.preparation not in json.dumps(found)


def owned(topology: Drawer, boot: str = BOOT) -> None:
    """Claims with owners of this boot, or of another."""
    random = topology.host / "proc/sys/kernel/random"
    random.mkdir(parents=True)
    (random / "boot_id").write_text(f"{BOOT}\n")
    topology.has(CLAIM_A, CLAIM_B)
    topology.checkpoint.with_name("owners.json").write_bytes(owners_to_bytes(OWNERS, boot))


def test_the_container_that_has_a_claim_is_told(topology: Drawer) -> None:
    owned(topology)
    done = topology()
    owner = OWNERS.owners[CLAIM_A.uid]
    told = f"A default/two-cpus: 0,8 (pod {owner.pod_name}, container {owner.container})"
    assert f"{told}   B default/other: 1,9\n" in done.out
    assert done.err == ""
    found = topology.json()["claims"]
    assert [claim["owner"] for claim in found] == [
        {
            "podNamespace": owner.pod_namespace,
            "podName": owner.pod_name,
            "podUID": owner.pod_uid,
            "container": owner.container,
            "containerID": owner.container_id,
        },
        None,
    ]
    assert owner.preparation not in json.dumps(found)


@pytest.mark.parametrize(("content", "told"), [(None, "is of another boot"), (b"{", "owners.json: ")])
def test_owners_that_can_not_be_used_are_one_line(topology: Drawer, content: bytes | None, told: str) -> None:
    owned(topology, "another")
    if content is not None:
        topology.checkpoint.with_name("owners.json").write_bytes(content)
    done = topology()
    (line,) = done.err.splitlines()
    assert told in line
    assert line.endswith("; the containers of claims are not shown")
    assert "A default/two-cpus: 0,8   B default/other: 1,9" in done.out


def test_claims_with_cpus_that_have_no_place_on_the_map_are_told(topology: Drawer, tmp_path: Path) -> None:
    topology.host = write_sysfs(tmp_path / "other", t1(offline=[8]))
    topology.has(CLAIM_A, replace(CLAIM_B, cpus=CPUSet.parse("9,100-101")))
    assert topology().err == (
        "nri-cpu: claim default/two-cpus has CPUs 8, which are off line\n"
        "nri-cpu: claim default/other has CPUs 100-101, which this machine does not have\n"
    )
    topology.host = write_sysfs(tmp_path / "small", machine(cores=1))
    topology.has(*claims(60)[1:])
    lines = topology().err.splitlines()
    assert len(lines) == 9
    assert lines[-1] == "nri-cpu: 51 more like these"


def test_a_long_name_is_whole_off_a_terminal_and_on_it_never_cuts_the_cpus(topology: Drawer) -> None:
    long = replace(CLAIM_A, name="a-claim-whose-name-is-as-long-as-names-of-generated-claims-are-on-most-clusters-0")
    topology.has(long, CLAIM_B)
    assert f"A default/{long.name}: 0,8\nB default/other" in topology().out
    shown = on_a_terminal(topology, 50, NO_COLOR="1")
    assert "A default/a-claim-whose-name-is-as-long-as-n…: 0,8\n" in shown
    assert max(map(len, shown.splitlines())) <= 50


def test_json_says_when_claims_are_not_known(topology: Drawer) -> None:
    found = topology.json()
    assert found["claims"] is None
    assert {cpu["state"] for cpu in found["cpus"]} == {"unknown"}


def test_json_of_a_cpu_off_line_has_its_node_or_null(topology: Drawer, tmp_path: Path) -> None:
    offline = t1(offline=[3, 15])
    topology.host = write_sysfs(
        tmp_path / "other", Topology.of(offline.cpus.values(), offline.present, {15: offline.offline_nodes[15]})
    )
    cpus = topology.json()["cpus"]
    assert [(cpus[cpu]["state"], cpus[cpu]["numaNode"]) for cpu in (3, 15)] == [("offline", None), ("offline", 0)]


def test_memory_without_cpus_is_told(topology: Drawer, tmp_path: Path) -> None:
    node = topology.host / "sys/devices/system/node"
    (node / "node9").mkdir()
    (node / "node9/cpulist").write_text("\n")
    for name in ("has_memory", "has_normal_memory"):
        (node / name).write_text("0-3,9\n")
    (node / "node9/meminfo").write_text("Node 9 MemTotal: 1024 kB\n")
    assert "NUMA node 9 has memory and no CPUs.\n" in topology().out
    assert {"node": 9, "cpus": "", "memory": True} in topology.json()["numaNodes"]


def test_cpus_without_memory_are_told(topology: Drawer) -> None:
    for node in (1, 3):
        (topology.host / f"sys/devices/system/node/node{node}/meminfo").write_text(f"Node {node} MemTotal: 0 kB\n")
    assert "NUMA nodes 1 and 3 have no memory.\n" in topology().out
    assert [node["memory"] for node in topology.json()["numaNodes"]] == [True, False, True, False]


def test_a_machine_without_l3_says_so(topology: Drawer, tmp_path: Path) -> None:
    cpus = [Cpu(n, 0, 0, -1, n, 0, None) for n in range(4)]
    topology.host = write_sysfs(tmp_path / "other", Topology.of(cpus))
    out = topology().out
    assert "4 CPUs: 1 socket, 1 NUMA node, no L3 cache known, 4 cores of 1 thread.\nA column is a core.\n" in out


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 100_000])
def test_a_checkpoint_that_is_damaged_is_one_line_and_the_map_is_drawn(topology: Drawer, content: bytes) -> None:
    topology.has()
    topology.checkpoint.write_bytes(content)
    done = topology()
    assert done.code == 0
    assert "socket 0" in done.out
    assert done.err.startswith(f"nri-cpu: {topology.checkpoint}: ")
    assert done.err.endswith("; who has which CPU is not shown\n")
    assert len(done.err.splitlines()) == 1

"""Promises of the map: every CPU once, in its place, in lines that fit."""

import pytest

from nri_cpu.topology import Topology
from nri_cpu.topology.map import render
from tests.unit.topology.machines import box, machine, t1


def test_the_box_with_two_claims_reads_like_this() -> None:
    who = {0: "A", 8: "A", 6: "B", 7: "B", 14: "B", 15: "B", 4: "R"}
    assert render(box(), who, {"A": "default/one", "B": "default/two"}) == (
        "socket 0\n"
        "  node 0   0-1,8-9    AA ..\n"
        "  node 1   2-3,10-11  .. ..\n"
        "socket 1\n"
        "  node 2   4-5,12-13  R. ..\n"
        "  node 3   6-7,14-15  BB BB\n"
        "A default/one   B default/two   . shared   R reserved\n"
    )


def test_offline_cpus_are_shown() -> None:
    assert render(t1(offline=[15]), {}) == (
        "socket 0\n  node 0   0-15  .. .. .. .. .. .. .. . x\n. shared   x off line\n"
    )


def test_offline_cpus_of_an_unknown_node_are_listed() -> None:
    topology = t1(offline=[3, 15])
    unknown = Topology.of(topology.cpus.values(), topology.present)
    assert "off line, node not known: CPUs 3,15\n" in render(unknown, {})


def test_l3_groups_are_parted() -> None:
    assert ".. .. | .. .." in render(machine(cores=4, threads=2, l3_per_node=2), {})


@pytest.mark.parametrize(
    "topology",
    [machine(sockets=2, cores=64, threads=2, nodes=4, l3_per_node=4), machine(cores=300), machine(cores=64, threads=8)],
    ids=["epyc", "wide", "smt8"],
)
def test_every_line_fits_and_every_cpu_is_drawn_once(topology: Topology) -> None:
    who = dict.fromkeys(topology.online, "a")
    text = render(topology, who, {"a": "a claim with a long name " * 3})
    body = text[: text.index("a a claim")]
    assert max(map(len, body.splitlines())) <= 80
    assert sum(line.split("  ")[-1].count("a") for line in body.splitlines()) == len(who)


def test_many_labels_fold_between_entries() -> None:
    who = {cpu: chr(ord("a") + cpu) for cpu in range(16)}
    lines = render(t1(), who, {label: f"claim {label} of team" for label in who.values()}).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert sum(line.count(" of team") for line in lines) == 16

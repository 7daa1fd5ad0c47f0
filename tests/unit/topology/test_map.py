"""Promises of the map: every CPU once, in its place, in lines that fit."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Cpu, Topology
from nri_cpu.topology.map import render
from tests.unit.topology.machines import box, hybrid, machine, t1


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


def test_offline_cpus_of_a_node_with_several_sockets_are_in_neither() -> None:
    cpus = [Cpu(n, n // 2, -1, -1, n, 0, 0) for n in range(4)]
    topology = Topology.of(cpus, CPUSet.parse("0-7"), {4: 0, 6: 0, 7: 5})
    for numbers in (False, True):
        lines = render(topology, {}, numbers=numbers).splitlines()
        assert lines[-4:-1] == [
            "off line, node 0, socket not known: CPUs 4,6",
            "off line, node not known: CPUs 5",
            "off line, node 5: CPUs 7",
        ]
        assert not any("x" in line for line in lines[:4])


def test_a_meaning_is_never_cut() -> None:
    meaning = "team-with-a-long-name/claim-with-a-long-name: 0,2,4,6,8,10,12,14"
    text = render(box(), {0: "A", 1: "B"}, {"A": meaning, "B": "b"}, 40)
    assert f"A {meaning}\nB b   . shared\n" in text


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


# ---- numbers


def test_with_numbers_a_core_is_a_column() -> None:
    who = {0: "A", 8: "A", 4: "R"}
    assert render(box(), who, {"A": "default/one"}, numbers=True) == (
        "socket 0\n"
        "  node 0      0A  1\n"
        "              8A  9\n"
        "  node 1      2   3\n"
        "             10  11\n"
        "socket 1\n"
        "  node 2      4R  5\n"
        "             12  13\n"
        "  node 3      6   7\n"
        "             14  15\n"
        "A default/one   a number alone: shared   R reserved\n"
    )


def test_cpus_off_line_are_columns_of_their_own() -> None:
    text = render(machine(cores=4, threads=2, offline=[3, 7]), {}, numbers=True)
    assert "  node 0     0  1  2  3x 7x\n             4  5  6\n" in text


def test_types_of_cores_have_rows_of_their_own() -> None:
    assert render(hybrid(2, 3), {}, numbers=True) == (
        "socket 0\n  node 0\n    p-core    0  2\n              1  3\n    e-core    4  5  6\na number alone: shared\n"
    )
    assert "    p-core    .. ..\n    e-core    . . .\n" in render(hybrid(2, 3), {})


def test_l3_groups_are_parted_in_every_row() -> None:
    text = render(machine(cores=4, threads=2, l3_per_node=2), {}, numbers=True)
    assert "  node 0     0  1  | 2  3\n             4  5  | 6  7\n" in text


def test_bands_of_several_rows_are_apart_and_begin_at_an_l3() -> None:
    text = render(machine(cores=8, threads=2, l3_per_node=2), {}, width=40, numbers=True)
    assert text == (
        "socket 0\n"
        "  node 0      0   1   2   3\n"
        "              8   9  10  11\n"
        "\n"
        "              4   5   6   7\n"
        "             12  13  14  15\n"
        "a number alone: shared\n"
    )


def test_rows_of_single_threads_below_each_other_are_not_taken_for_siblings() -> None:
    assert render(hybrid(2, 12), {}, width=40, numbers=True) == (
        "socket 0\n"
        "  node 0\n"
        "    p-core     0   2\n"
        "               1   3\n"
        "    e-core     4   5   6   7   8   9\n"
        "\n"
        "              10  11  12  13  14  15\n"
        "a number alone: shared\n"
    )
    assert "\n\n" not in render(machine(cores=40), {}, width=40, numbers=True)


def test_a_meaning_that_is_empty_is_not_in_the_legend() -> None:
    assert "shared" not in render(box(), {}, {".": ""}, numbers=True)


def test_colours_take_no_room() -> None:
    who = {0: "A", 8: "A"}

    def paint(label: str, text: str) -> str:
        return f"<{label}>{text}</>"

    for numbers in (False, True):
        coloured = render(box(), who, {"A": "one"}, numbers=numbers, paint=paint)
        assert coloured.count("<A>") == 3
        assert re.sub("<[^>]*>", "", coloured).split() == render(box(), who, {"A": "one"}, numbers=numbers).split()


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Machines with numbers that are far apart, in any order, and some of whose CPUs are off line."""
    ids = draw(st.lists(st.integers(0, 8191), min_size=1, max_size=40, unique=True))
    few = st.integers(0, 2)
    cpus = [Cpu(n, draw(few), draw(few), draw(few), draw(few), draw(few), draw(st.none() | few)) for n in ids]
    off = draw(st.sets(st.integers(0, 8191), max_size=5)) - set(ids)
    return Topology.of(cpus, CPUSet(off), {cpu: draw(few) for cpu in off if draw(st.booleans())})


@given(machines(), st.integers(40, 200), st.booleans())
def test_every_machine_is_drawn_whole_within_the_width(topology: Topology, width: int, numbers: bool) -> None:
    text = render(topology, dict.fromkeys(topology.online, "A"), {"A": "B"}, width, numbers=numbers)
    assert max(map(len, text.splitlines())) <= width
    placed = [cpu for cpu in topology.present - topology.online if cpu in topology.offline_nodes]
    in_one_socket = [
        node
        for node, cpus in topology.nodes.items()
        if sum(not cpus.isdisjoint(socket) for socket in topology.sockets.values()) == 1
    ]
    known = [cpu for cpu in placed if topology.offline_nodes[cpu] in in_one_socket]
    body = text.rpartition("A B")[0]
    if numbers:
        drawn = [int(cpu) for cpu in re.findall(r"(\d+)A", body)]
        assert sorted(drawn) == list(topology.online)
        assert sorted({int(cpu) for cpu in re.findall(r"(\d+)x", body)}) == known
    else:
        assert sum(word.count("A") for word in body.split()) == len(topology.online)

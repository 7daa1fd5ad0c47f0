"""The bench says what it promises, and does not time what did not happen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nri_cpu.cpuset import CPUSet
from tests.bench import hooks
from tests.bench.__main__ import main
from tests.bench.allocation import Allocation, WrongChoiceError, big_machine, fragmented
from tests.bench.figures import OURS, Figure, Latency, Rounds, percentile, table
from tests.bench.sides import Floor, Ours, claim, running
from tests.kubelet_allocator.driver import Kubelet


def rounds(figure: Figure, ours: list[float], peers: list[float]) -> Rounds:
    made = Rounds(figure)
    for value in ours:
        made.add(OURS, value)
    for value in peers:
        made.add("peer", value)
    return made


def test_a_figure_is_the_best_and_the_median_round_of_each_side_and_the_ratio_of_medians() -> None:
    line = rounds(Figure("f", "ms", "peer", gated_by_peer=True), [3, 1, 2], [4, 8, 6]).line()
    assert (line["min"], line["median"], line["peer_min"], line["peer_median"]) == (1, 2, 4, 6)
    assert (line["ratio"], line["goal"], line["met"]) == (0.333, 6, True)


def test_a_goal_of_its_own_is_not_the_peers() -> None:
    line = rounds(Figure("f", "ms", "peer", goal=2), [3], [4]).line()
    assert (line["goal"], line["met"]) == (2, False)


def test_a_figure_without_a_peer_has_none() -> None:
    line = rounds(Figure("f", "ms"), [3], []).line()
    assert "peer" not in line
    assert "met" not in line


def test_a_missed_goal_shows_in_the_table() -> None:
    text = table([rounds(Figure("slow", "ms", goal=2), [3], []), rounds(Figure("fast", "ms", goal=2), [1], [])])
    assert [line.split()[-1] for line in text.splitlines()] == ["goal", "MISSED", "met"]


@pytest.mark.parametrize(("percent", "value"), [(50, 51), (99, 100), (100, 100)])
def test_percentiles_are_samples(percent: int, value: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], percent) == value


def test_a_plugin_that_does_not_do_what_is_timed_stops_the_bench(tmp_path: Path) -> None:
    for side in (Ours(tmp_path), Floor()):
        with running(side, "0.12.5", pods=1, containers=2) as one:
            assert one.n_updates == 2
            assert len(hooks.first_of_a_claim(one, cycles=2, updates=2)) == 2
            with pytest.raises(hooks.WrongAnswerError, match=r"2 updates, not .* and 3"):
                hooks.first_of_a_claim(one, cycles=1, updates=3)


def test_neighbouring_claims_are_disjoint() -> None:
    claims = [claim(number) for number in range(128)]
    assert sum(len(record.cpus) for record in claims) == 512
    assert claims[0].cpus.isdisjoint(claims[1].cpus)


def test_latency_is_the_median_and_the_greatest_and_has_two_goals_with_a_peer() -> None:
    slower = Latency("f", "peer", goal=2, gated_by_peer=True, ours=[3, 1, 8], peers=[2, 2.5, 9])
    line = slower.line()
    assert (line["p50"], line["max"], line["peer_p50"], line["peer_max"]) == (3, 8, 2.5, 9)
    assert (line["ratio"], line["goal"], line["met"]) == (1.2, 2, False)
    assert Latency("f", "peer", goal=9, gated_by_peer=True, ours=[3], peers=[2.5]).line()["met"] is False
    assert Latency("f", "peer", goal=3, gated_by_peer=True, ours=[3], peers=[4]).line()["met"] is True
    assert Latency("f", goal=2, ours=[2]).line()["met"] is True


def test_fragmented_machines_differ_and_are_the_same_every_time() -> None:
    topology = big_machine()
    assert (len(topology.online), len(topology.nodes), len(topology.l3_groups)) == (512, 8, 32)
    some = [fragmented(topology, seed) for seed in range(20)]
    assert len(set(some)) == 20
    assert some == [fragmented(topology, seed) for seed in range(20)]
    assert all(256 < len(free) < 400 for free in some)


def test_a_short_bench_of_allocation_has_every_way_and_count_beside_the_kubelets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only=allocation", "--rounds=1", "--requests=1"]) == 0
    text, _, shown = capsys.readouterr().out.partition("\n\n")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["figure"] for line in lines] == [row.split("  ")[0] for row in shown.splitlines()[1:]]
    assert all(line["p50"] > 0 and line.get("peer_p50", 1) > 0 and line["python"] for line in lines)
    assert len(lines) == 4 * 2 * 7 + 2 * 6 + 3


def test_a_choice_that_is_not_what_was_asked_for_stops_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.bench.allocation.allocate", lambda *_: CPUSet([0, 1]))
    with Kubelet() as kubelet, pytest.raises(WrongChoiceError, match="packed: 1 CPUs of 0-511: 0-1"):
        Allocation(tmp_path, requests=1).round(kubelet)


def test_a_short_bench_of_processes_gives_every_figure_with_its_peer_and_versions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = [
        "--only=processes",
        "--rounds=1",
        "--cycles=5",
        "--claims=2",
        "--warm-up=1",
        "--pods=2",
        "--containers=2",
        "--nri=0.8.0",
    ]
    assert main(short) == 0
    text, _, shown = capsys.readouterr().out.partition("\n\n")
    lines = [json.loads(line) for line in text.splitlines()]
    assert all(line["median"] > 0 and line["peer_median"] > 0 and line["nri"] == "0.8.0" for line in lines)
    assert [line["figure"] for line in lines] == [row.split("  ")[0] for row in shown.splitlines()[1:]]
    assert len(lines) == 12

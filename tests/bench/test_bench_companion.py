"""The parts of the bench about dra-cpu say what they promise, and do not time what did not happen."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.kubelet.dra_pb2 import Claim
from tests.bench import plane, pods
from tests.bench.__main__ import main
from tests.bench.allocation import big_machine
from tests.bench.claims import COUNT, Files
from tests.bench.companion import requests_an_hour
from tests.bench.prepare import Companion, NotPreparedError, companion, disk
from tests.unit.topology.machines import write_sysfs


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """What a short bench has printed, each figure in both forms."""
    assert main(["--rounds=1", *arguments]) == 0
    text, _, shown = capsys.readouterr().out.partition("\n\n")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["figure"] for line in lines] == [row.split("  ")[0] for row in shown.splitlines()[1:]]
    return lines


@pytest.fixture
def directory() -> Iterator[Path]:
    """One with a name that is short enough for sockets below it."""
    with tempfile.TemporaryDirectory(prefix="b") as name:
        yield Path(name)


def test_all_claims_of_the_bench_can_be_prepared_at_once_and_again(directory: Path, tmp_path: Path) -> None:
    files = Files(tmp_path / "claims")
    files.hold(files.claims)
    with companion(directory, write_sysfs(tmp_path / "host", big_machine()), files.arguments) as dra_cpu:
        assert dra_cpu.prepare_at_once(files.claims) > 0
        assert dra_cpu.unprepare(files.claims) > 0
        files.hold(files.claims[:2])
        prepares, unprepares = dra_cpu.one_by_one(files.claims[:2], 3)
        assert len(prepares) == len(unprepares) == 3
        assert dra_cpu.memory_mib() > 10
        assert dra_cpu.threads() > 1
        not_there(dra_cpu, files.claims[2])


def not_there(dra_cpu: Companion, claim: Claim) -> None:
    for prepare in (dra_cpu.prepare, dra_cpu.prepare_at_once):
        with pytest.raises(NotPreparedError, match=r"claim-2: .* has no ResourceClaim default/claim-2"):
            prepare([claim])


def test_a_dra_cpu_that_does_not_start_stops_the_bench(tmp_path: Path) -> None:
    with (
        pytest.raises(NotPreparedError, match=r"dra-cpu has ended; it said: .*--claims-dir"),
        companion(tmp_path / "dra-cpu", tmp_path, ["--claims-dir=/none", "--kubeconfig=/none"]),
    ):
        pytest.fail("it serves")


def test_the_disk_is_timed_alone(tmp_path: Path) -> None:
    assert len(disk(tmp_path, 2, claims=3)) == 2


def test_dra_cpu_asks_little_of_an_api_server_on_which_nothing_happens() -> None:
    assert 1 <= requests_an_hour() <= 6


def test_requests_are_counted_by_who_made_them() -> None:
    metric = "apiserver_flowcontrol_dispatched_requests_total"
    text = (
        f"# TYPE {metric} counter\n"
        f'{metric}{{flow_schema="bench-dra-cpu",priority_level="workload-low"}} 12\n'
        f'{metric}{{flow_schema="service-accounts",priority_level="workload-low"}} 100\n'
    )
    assert plane.requests_in(text) == 12
    assert plane.requests_in("") == 0


def test_seconds_of_calls_are_those_of_our_driver_and_method() -> None:
    metric = "dra_grpc_operations_duration_seconds"
    method = 'method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node{}Resources"'
    text = "".join(
        f'{metric}_{what}{{driver_name="{driver}",grpc_status_code="OK",{method.format(call)}}} {value}\n'
        for what, driver, call, value in (
            ("sum", "dra.cpu", "Prepare", "0.25"),
            ("count", "dra.cpu", "Prepare", "7"),
            ("sum", "dra.cpu", "Unprepare", "0.5"),
            ("sum", "other", "Prepare", "1e+01"),
        )
    )
    assert pods.seconds_in("NodePrepareResources", text) == 0.25


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_a_short_bench_of_the_companion_gives_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(capsys, "--only=companion", "--claims=2", "--calls=1", "--prepares=20", "--rest=1")
    assert all(line["median"] > 0 for line in lines if "API requests" not in line["figure"])
    assert all(line["kubernetes"] and line["python"] for line in lines)
    assert any(str(COUNT) in line["figure"] for line in lines)
    assert len(lines) == 22


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_short_bench_of_pods_gives_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    running, added, prepare = lines_of(capsys, "--only=pods", "--pairs=1")
    assert min(running["median"], running["peer_median"]) > 0
    assert added["median"] == pytest.approx(running["median"] - running["peer_median"], rel=0.05, abs=0.2)
    assert prepare["median"] > 0

"""Promises of dra-cpu allocate --report and --checkpoint: another machine, and what claims have already."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from dra.report import report_of
from nri_cpu.checkpoint.codec import checkpoint_to_bytes
from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord
from nri_cpu.cpuset import CPUSet
from nri_cpu.plain_yaml import dump
from nri_cpu.topology import Topology
from tests.unit.checkpoint.samples import BOOT, CHECKPOINT, CLAIM_A, CLAIM_B
from tests.unit.dra.command import Done, DraCpu
from tests.unit.ordinary import as_ordinary_user, out_of_reach
from tests.unit.topology.machines import box, machine


def report_file(
    directory: Path, topology: Topology, config: dict[str, object], claims: Iterable[ClaimRecord] = ()
) -> str:
    path = directory / "report.yaml"
    path.write_text(dump(report_of(topology, config, claims)))
    return str(path)


def test_a_report_stands_for_its_machine_and_its_configuration(dra_cpu: DraCpu, tmp_path: Path) -> None:
    topology = machine(sockets=2, cores=2)
    dra_cpu.config.write_text("reservedCPUs: 0-15\n")
    report = report_file(tmp_path, topology, {"reservedCPUs": "0", "strategy": "spread", "kubeconfig": "/x"})
    assert dra_cpu("allocate", "--cpus", "3", "--report", report).out == "1-3\n"
    assert dra_cpu("allocate", "--cpus", "4", "--report", report, "--reserved-cpus", "").out == "0-3\n"
    assert dra_cpu("allocate", "--cpus", "2", "--report", report, "--device", "cpudevsocket001").out == "2-3\n"
    other = tmp_path / "other.yaml"
    other.write_text("reservedCPUs: 3\n")
    assert dra_cpu("allocate", "--cpus", "3", "--report", report, "--config", str(other)).out == "0-2\n"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"reservedCPUs": "3-1"}, "driverConfig.reservedCPUs: '3-1' has the reversed range 3-1"),
        ({"reservedCPUs": [1]}, "driverConfig.reservedCPUs is a list: it must be a list of CPUs such as 0-3,8"),
        (
            {"reservedCPUs": "99"},
            "reservedCPUs: reserved CPUs 99 do not exist: this machine has 0-15; --reserved-cpus overrides it\n",
        ),
        ({"strategy": "best"}, "driverConfig.strategy is 'best': it must be packed"),
        (
            {"strategy": "packed", "numaNodes": 2},
            "driverConfig.numaNodes: 2 needs strategy: distributed, not packed",
        ),
        ({"numaNodes": 2}, "numaNodes: 2 needs strategy: distributed, not packed"),
    ],
)
def test_a_wrong_configuration_of_a_report_is_exit_code_2(
    dra_cpu: DraCpu, tmp_path: Path, config: dict[str, object], message: str
) -> None:
    report = report_file(tmp_path, box(), config)
    done = dra_cpu("allocate", "--cpus", "1", "--report", report)
    assert done.code == 2
    assert message in done.err
    own = message.startswith("numaNodes")  # only this request lacks the strategy
    assert done.err.startswith("dra-cpu: " if own else f"dra-cpu: --report {report}: driverConfig.")


def test_reserved_cpus_beside_a_report_are_told_as_what_they_are(dra_cpu: DraCpu, tmp_path: Path) -> None:
    report = report_file(tmp_path, box(), {"reservedCPUs": "99"})
    arguments = ("allocate", "--cpus", "1", "--report", report)
    assert dra_cpu(*arguments, "--reserved-cpus", "0").out == "8\n"
    expected = Done(2, "", "dra-cpu: reserved CPUs 77 do not exist: this machine has 0-15\n")
    assert dra_cpu(*arguments, "--reserved-cpus", "77") == expected
    config = tmp_path / "other.yaml"
    config.write_text("reservedCPUs: 77\n")
    assert dra_cpu(*arguments, "--config", str(config)) == expected


def test_reserved_cpus_of_a_report_that_are_null_are_none(dra_cpu: DraCpu, tmp_path: Path) -> None:
    report = report_file(tmp_path, box(), {"reservedCPUs": None, "strategy": None})
    assert dra_cpu("allocate", "--cpus", "16", "--report", report) == Done(0, "0-15\n", "")


def test_a_report_that_is_none_is_exit_code_2(dra_cpu: DraCpu, tmp_path: Path) -> None:
    path = tmp_path / "report.yaml"
    for content, message in (
        (b"\xff", "is not UTF-8 at byte 0"),
        (b"layoutVersion: v2\n", "layoutVersion is 'v2': it must be v1"),
    ):
        path.write_bytes(content)
        done = dra_cpu("allocate", "--cpus", "1", "--report", str(path))
        assert done.code == 2
        assert f"--report {path}" in done.err
        assert message in done.err
    done = dra_cpu("allocate", "--cpus", "1", "--report", "/dev/zero")
    assert "--report /dev/zero: is larger than" in done.err
    done = dra_cpu("allocate", "--cpus", "1", "--report", str(path), "--sysfs-overlay", "/x")
    assert "--report and --sysfs-overlay exclude each other" in done.err


def test_a_report_may_come_out_of_another_command(dra_cpu: DraCpu, tmp_path: Path) -> None:
    report = report_file(tmp_path, machine(sockets=2, cores=2), {})
    called = f"{sys.executable} -m dra allocate --cpus 4 --report <(cat {report})"
    done = subprocess.run(["bash", "-c", called], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0-3\n", "")


# ---- what claims have already


def test_claims_of_a_report_are_not_free_unless_free_says_so(dra_cpu: DraCpu, tmp_path: Path) -> None:
    report = report_file(tmp_path, box(), {"reservedCPUs": "7"}, [CLAIM_A, CLAIM_B])  # 0,8 and 1,9
    assert dra_cpu("allocate", "--cpus", "11", "--report", report).out == "2-6,10-15\n"
    assert dra_cpu("allocate", "--cpus", "1", "--report", report, "--device", "cpudevnuma000").code == 1
    assert dra_cpu("allocate", "--cpus", "2", "--report", report, "--free", "0,8").out == "0,8\n"
    requests = tmp_path / "requests"
    requests.write_text('{"cpus": 12}\n{"cpus": 2, "free": "1,9"}\n')
    answers = dra_cpu("allocate", "--batch", str(requests), "--report", report).out.splitlines()
    assert json.loads(answers[0]) == {"error": "12 CPUs requested, 11 free (2-6,10-15)"}
    assert json.loads(answers[1])["cpus"] == "1,9"


def test_what_a_checkpoint_has_or_reserves_is_not_free_on_this_machine_nor_on_that_of_a_report(
    dra_cpu: DraCpu, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint.json"
    checkpoint.write_bytes(checkpoint_to_bytes(CHECKPOINT, BOOT))
    assert dra_cpu("allocate", "--cpus", "11", "--checkpoint", str(checkpoint)).out == "2-6,10-15\n"
    assert dra_cpu("allocate", "--cpus", "16").out == "0-15\n"  # without it the whole machine
    report = report_file(tmp_path, box(), {}, [CLAIM_A])
    assert dra_cpu("allocate", "--cpus", "11", "--report", report, "--checkpoint", str(checkpoint)).out == "2-6,10-15\n"
    checkpoint.write_bytes(checkpoint_to_bytes(Checkpoint(CPUSet([0, 8]), {}), BOOT))
    assert dra_cpu("allocate", "--cpus", "14", "--checkpoint", str(checkpoint)).out == "1-7,9-15\n"
    checkpoint.write_bytes(checkpoint_to_bytes(Checkpoint(CPUSet(), {}), BOOT))
    both = ("allocate", "--report", report, "--checkpoint", str(checkpoint))
    assert dra_cpu(*both, "--cpus", "14").out == "1-7,9-15\n"
    checkpoint.write_bytes(checkpoint_to_bytes(Checkpoint(CPUSet([7]), {CLAIM_B.uid: CLAIM_B}), BOOT))
    assert dra_cpu(*both, "--cpus", "11").out == "2-6,10-15\n"


def test_a_checkpoint_that_can_not_be_read_is_one_line(dra_cpu: DraCpu, tmp_path: Path) -> None:
    checkpoint = tmp_path / "state/checkpoint.json"
    arguments = ("allocate", "--cpus", "1", "--checkpoint", str(checkpoint))
    done = dra_cpu(*arguments)
    assert (done.code, done.err) == (2, f"dra-cpu: --checkpoint {checkpoint} does not exist: check the path\n")
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"{")
    done = dra_cpu(*arguments)
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert done.err.startswith(f"dra-cpu: {checkpoint}: ")
    out_of_reach(checkpoint.parent)
    ordinary = as_ordinary_user("-m", "dra", *arguments, host=dra_cpu.host)
    checkpoint.parent.chmod(0o700)
    assert ordinary.returncode == 1
    assert f"{checkpoint} can't be read: Permission denied" in ordinary.stderr
    assert ordinary.stderr.endswith("; only root may read it\n")


def test_a_nodes_number_of_numa_nodes_may_wait_for_a_strategy(dra_cpu: DraCpu, tmp_path: Path) -> None:
    report = report_file(tmp_path, box(), {"numaNodes": 2})
    arguments = ("allocate", "--report", report, "--strategy", "distributed")
    assert dra_cpu(*arguments, "--cpus", "4").out == "0,2,8,10\n"
    requests = tmp_path / "requests"
    requests.write_text('{"cpus": 4}\n{"cpus": 4, "strategy": "distributed"}\n')
    first, second = map(json.loads, dra_cpu("allocate", "--report", report, "--batch", str(requests)).out.splitlines())
    assert "numaNodes: 2 needs strategy: distributed" in first["error"]
    assert second["cpus"] == "0,2,8,10"

"""Promises of dra-cpu allocate: the allocator's own answer, one line a request, and no input that stops the others."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra.allocation import AllocationOptions, Strategy, allocate
from dra.commands.requests import MAX_LINE
from dra.report import report_of
from nri_cpu.cpuset import CPUSet
from nri_cpu.plain_yaml import dump
from tests.unit.dra.command import Done, DraCpu
from tests.unit.topology.machines import box, machine, t1, write_sysfs

ALL = CPUSet.parse("0-15")


def packed(free: str, count: int) -> str:
    return str(allocate(box(), CPUSet.parse(free), count))


# ---- one request


def test_text_is_the_list_and_nothing_else(dra_cpu: DraCpu) -> None:
    assert dra_cpu("allocate", "--cpus", "2") == Done(0, f"{packed('0-15', 2)}\n", "")


def test_json_is_one_object(dra_cpu: DraCpu) -> None:
    done = dra_cpu("allocate", "--cpus", "2", "-o", "json")
    assert (done.code, json.loads(done.out), done.err) == (0, {"cpus": "0,8"}, "")


def test_a_refusal_is_exit_code_1_and_one_line(dra_cpu: DraCpu) -> None:
    assert dra_cpu("allocate", "--cpus", "17") == Done(1, "", "dra-cpu: 17 CPUs requested, 16 free (0-15)\n")
    done = dra_cpu("allocate", "--cpus", "17", "-o", "json")
    assert (done.code, json.loads(done.out), done.err) == (1, {"error": "17 CPUs requested, 16 free (0-15)"}, "")


@pytest.mark.parametrize("count", ["0", "-1"])
def test_a_number_that_is_not_positive_is_refused_by_the_allocator(dra_cpu: DraCpu, count: str) -> None:
    done = dra_cpu("allocate", "--cpus", count)
    assert (done.code, done.err) == (1, f"dra-cpu: {count} CPUs requested: the number must be positive\n")


def test_free_is_what_is_free_even_if_it_is_reserved(dra_cpu: DraCpu) -> None:
    dra_cpu.config.write_text("reservedCPUs: 0-7\n")
    assert dra_cpu("allocate", "--cpus", "8").out == "8-15\n"
    assert dra_cpu("allocate", "--cpus", "2", "--free", "0-3").out == f"{packed('0-3', 2)}\n"
    assert dra_cpu("allocate", "--cpus", "4", "--reserved-cpus", "0-11").out == "12-15\n"


def test_a_device_has_its_own_cpus_only(dra_cpu: DraCpu) -> None:
    for device, cpus in {
        "cpudevnuma001": "2-3,10-11",
        "cpudevsocket001": "4-7,12-15",
        "cpudevmachine": "0-15",
        "cpudev005": "5",
    }.items():
        count = str(len(CPUSet.parse(cpus)))
        assert dra_cpu("allocate", "--cpus", count, "--device", device).out == f"{cpus}\n"
        assert dra_cpu("allocate", "--cpus", "17", "--device", device).code == 1
    assert dra_cpu("allocate", "--cpus", "1", "--device", "cpudevnuma001", "--free", "0-3").out == "2\n"


def test_cpus_that_are_off_line_are_not_taken(dra_cpu: DraCpu, tmp_path: Path) -> None:
    dra_cpu.host = write_sysfs(tmp_path / "other", t1(offline=[15]))
    assert dra_cpu("allocate", "--cpus", "2", "--free", "7,8,15").out == "7-8\n"
    assert dra_cpu("allocate", "--cpus", "16").code == 1


def test_options_come_from_configuration_and_arguments(dra_cpu: DraCpu) -> None:
    spread = str(allocate(box(), ALL, 2, AllocationOptions(Strategy.SPREAD)))
    assert spread != packed("0-15", 2)
    assert dra_cpu("allocate", "--cpus", "2", "--strategy", "spread").out == f"{spread}\n"
    dra_cpu.config.write_text("strategy: spread\n")
    assert dra_cpu("allocate", "--cpus", "2").out == f"{spread}\n"
    assert dra_cpu("allocate", "--cpus", "2", "--strategy", "packed").out == f"{packed('0-15', 2)}\n"
    other = dra_cpu.config.with_name("other.yaml")
    other.write_text("")
    assert dra_cpu("allocate", "--cpus", "2", "--config", str(other)).out == f"{packed('0-15', 2)}\n"


def test_an_explained_answer_says_what_speaks_for_it(dra_cpu: DraCpu) -> None:
    done = dra_cpu("allocate", "--cpus", "3", "--free", "0-2,8", "--explain")
    assert done.code == 0
    first, free, *quality = done.out.splitlines()
    assert (first, free) == ("0-1,8", "free: 0-2,8; of these on whole free cores: 0,8")
    assert quality[:2] == ["sockets: 1", "numaNodes: 1"]
    found = json.loads(dra_cpu("allocate", "--cpus", "3", "--free", "0-2,8", "--explain", "-o", "json").out)
    assert (found["cpus"], found["free"], found["wholeFreeCores"]) == ("0-1,8", "0-2,8", "0,8")
    assert found["quality"]["sockets"] == 1
    shared = ("--strategy", "distributed", "--numa-nodes", "all")
    assert "\nshares: 2, 1, 1, 1\n" in dra_cpu("allocate", "--cpus", "5", *shared, "--explain").out


def test_an_explained_refusal_says_what_would_fit(dra_cpu: DraCpu) -> None:
    arguments = ("allocate", "--cpus", "3", "--full-physical-cores", "--explain")
    done = dra_cpu(*arguments)
    assert done.code == 1
    assert done.out == "free: 0-15; of these on whole free cores: 0-15\nwould fit: 2, 4\n"
    assert done.err.startswith("dra-cpu: ")
    found = json.loads(dra_cpu(*arguments, "-o", "json").out)
    assert found["wouldFit"] == [2, 4]
    assert f"dra-cpu: {found['error']}\n" == done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cpus", "two"], "argument --cpus: 'two' is no number of CPUs"),
        (["--cpus", "1.5"], "argument --cpus: '1.5' is no number of CPUs"),
        (["--cpus", "9" * 5000], "is no number of CPUs"),
        (["--cpus", "\N{SUPERSCRIPT TWO}"], "is no number of CPUs"),
        ([], "one of the arguments --cpus --batch is required"),
        (["--cpus", "1", "--batch", "-"], "argument --batch: not allowed with argument --cpus"),
        (["--cpus", "1", "--free", ""], "free is empty: name CPUs such as 0-3,8, or leave it out"),
        (["--cpus", "1", "--free", "3-1"], "free: '3-1' has the reversed range 3-1"),
        (["--cpus", "1", "--free", "0,99,98"], "free: CPUs 98-99 do not exist: this machine has 0-15"),
        (["--cpus", "1", "--free", "0-99999"], "free: '0-99999' has CPU 99999, the highest possible is 8191"),
        (["--cpus", "1", "--free", "x\ny"], "free: 'x\\ny' is not a list of CPUs"),
        (
            ["--cpus", "1", "--device", "cpudev"],
            "device 'cpudev' does not exist on this machine: there are cpudevnuma0",
        ),
        (["--cpus", "1", "--strategy", "best"], "argument --strategy: invalid choice: 'best'"),
        (["--cpus", "1", "--numa-nodes", "2"], "numaNodes: 2 needs strategy: distributed, not packed"),
        (
            ["--cpus", "1", "--strategy", "distributed", "--numa-nodes", "x"],
            "numaNodes is 'x': it must be auto, all or",
        ),
        (["--cpus", "1", "--strategy", "distributed", "--numa-nodes", "0"], "numaNodes is 0: it must be auto, all or"),
        (
            ["--cpus", "1", "--strategy", "spread", "--full-physical-cores"],
            "exclude each other: one takes single threads",
        ),
        (["--cpus", "1", "--reserved-cpus", "16"], "reserved CPUs 16 do not exist: this machine has 0-15"),
        (["--cpus", "1", "--report", "/nowhere"], "--report /nowhere can't be read: No such file or directory"),
        (["--cpus", "1", "--report", "/"], "--report / can't be read: Is a directory"),
        (["--batch", ""], "argument --batch: is an empty path"),
        (["--batch", "/"], "--batch / can't be read: Is a directory"),
        (["--batch", "/nowhere"], "--batch /nowhere can't be read: No such file or directory"),
        (["--batch", "/dev/null", "-o", "json"], "-o is for one request: answers to --batch are JSON, one a line"),
        (["--batch", "/dev/null", "--free", "99"], "free: CPUs 99 do not exist"),
        (["--batch", "/dev/null", "--device", "x"], "device 'x' does not exist on this machine"),
        (["--cpus", "1", "--prefer"], "unrecognized arguments: --prefer"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_names_the_value(dra_cpu: DraCpu, arguments: list[str], message: str) -> None:
    done = dra_cpu("allocate", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("dra-cpu")
    assert len(done.err.splitlines()) == 1
    assert message in done.err


def test_a_machine_without_cpus_is_exit_code_1(dra_cpu: DraCpu, tmp_path: Path) -> None:
    dra_cpu.host = tmp_path / "nowhere"
    done = dra_cpu("allocate", "--cpus", "1")
    assert done.code == 1
    assert "tells of no CPU: is /sys mounted there? HOST_ROOT" in done.err


# ---- many requests


class Batch:
    def __init__(self, dra_cpu: DraCpu, directory: Path) -> None:
        self._dra_cpu = dra_cpu
        self._file = directory / "requests"

    def __call__(self, *lines: object, arguments: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """The answers to lines, which are bytes as they are, or objects."""
        raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        self._file.write_bytes(b"".join(line + b"\n" for line in raw))
        done = self._dra_cpu("allocate", "--batch", str(self._file), *arguments)
        assert (done.code, done.err) == (0, "")
        answers = [json.loads(line) for line in done.out.splitlines()]
        assert len(answers) == len(lines)
        return answers


@pytest.fixture
def batch(dra_cpu: DraCpu, tmp_path: Path) -> Batch:
    return Batch(dra_cpu, tmp_path)


def cpus_of(answers: list[dict[str, Any]]) -> list[str | None]:
    return [answer.get("cpus") for answer in answers]


def test_each_line_gets_its_answer_in_order(batch: Batch) -> None:
    answers = batch({"cpus": 2}, {"cpus": 17}, {"cpus": 4, "free": "0-3", "device": "cpudevmachine"})
    assert cpus_of(answers) == ["0,8", None, "0-3"]
    assert answers[1] == {"error": "17 CPUs requested, 16 free (0-15)"}
    assert all(type(answer["ns"]) is int and answer["ns"] > 0 for answer in answers if "cpus" in answer)


def test_explained_answers_have_their_quality(batch: Batch) -> None:
    answers = batch({"cpus": 3}, {"cpus": 17}, arguments=("--explain",))
    assert list(answers[0]) == ["cpus", "ns", "quality"]
    assert answers[0]["quality"]["coresBroken"] == 1
    assert list(answers[1]) == ["error"]


def test_arguments_are_the_defaults_of_lines(batch: Batch) -> None:
    arguments = ("--free", "0-3,8-11", "--device", "cpudevnuma001", "--strategy", "spread", "--align-l3")
    answers = batch(
        {"cpus": 2},
        {"cpus": 2, "strategy": "packed"},
        {"cpus": 2, "device": "cpudevnuma000", "strategy": "packed"},
        {"cpus": 2, "free": "3,11"},
        {"cpus": 2, "fullPhysicalCores": True},
        arguments=arguments,
    )
    assert cpus_of(answers) == ["2-3", "2,10", "0,8", "3,11", None]
    assert "strategy: spread and fullPhysicalCores: true exclude each other" in answers[-1]["error"]


HOSTILE = [
    (b"", "the line is empty: a request is a JSON object such as"),
    (b"   \t", "the line is empty"),
    (b"{", "the line is not JSON: "),
    (b"{}", "cpus is missing or null: it must be a number from 1 to 8192, without quotes"),
    (b"[]", "the line is a list: a request is a JSON object such as"),
    (b"2", "the line is 2: a request is a JSON object"),
    (b"null", "the line is missing or null: a request is a JSON object"),
    (b'{"cpus": 2} {"cpus": 2}', "the line is not JSON: Extra data"),
    (b'{"cpus": 2, "cpus": 3}', "the line has the key 'cpus' twice in one object"),
    (b'{"cpus": 2, "cpu": 3}', "unknown key 'cpu' (3); known are cpus, free, device, strategy, numaNodes,"),
    (b'{"cpus": 2, "preferPCIeRoot": "pci0000:00"}', "unknown key 'preferPCIeRoot' ('pci0000:00'); known are cpus,"),
    (b'{"cpus": 2, "cpuset": "0-1"}', "unknown key 'cpuset' ('0-1')"),
    (b'{"cpus": 2, "explain": true}', "unknown key 'explain' (true)"),
    (b'{"cpus": true}', "cpus is true: it must be a number"),
    (b'{"cpus": "2"}', "cpus is '2': it must be a number"),
    (b'{"cpus": 2.0}', "cpus is 2.0: it must be a number"),
    (b'{"cpus": null}', "cpus is missing or null: it must be a number"),
    (b'{"cpus": [2]}', "cpus is a list: it must be a number"),
    (b'{"cpus": NaN}', "the line has the number NaN, which JSON does not know"),
    (b'{"cpus": 1e999}', "the line has the number '1e999', which is too large"),
    (b'{"cpus": 8193}', "cpus is 8193: it must be a number from 1 to 8192"),
    (b'{"cpus": %s}' % (b"9" * 4000), "cpus is a number of very many digits: it must be"),
    (b'{"cpus": %s}' % (b"9" * 9000), "the line has a number of too many digits"),
    (b'{"cpus": 0}', "0 CPUs requested: the number must be positive"),
    (b'{"cpus": -5}', "-5 CPUs requested: the number must be positive"),
    (b'{"cpus": 2, "free": ""}', "free is empty: name CPUs such as 0-3,8, or leave it out"),
    (b'{"cpus": 2, "free": "5-2"}', "free: '5-2' has the reversed range 5-2"),
    (b'{"cpus": 2, "free": "0-1048576"}', "free: '0-1048576' has CPU 1048576, the highest possible is 8191"),
    (b'{"cpus": 2, "free": "0,,1"}', "free: '0,,1' is not a list of CPUs such as 0-3,8: ''"),
    (b'{"cpus": 2, "free": "16-20"}', "free: CPUs 16-20 do not exist: this machine has 0-15"),
    (b'{"cpus": 2, "free": [0, 1]}', 'free is a list: it must be a list of CPUs in quotes, such as "0-3,8"'),
    (b'{"cpus": 2, "free": null}', "free is missing or null: it must be a list of CPUs in quotes"),
    (b'{"cpus": 2, "device": 1}', 'device is 1: it must be a name in quotes, such as "cpudevnuma001"'),
    (b'{"cpus": 2, "device": ""}', "device '' does not exist on this machine: there are cpudevnuma000,"),
    (b'{"cpus": 2, "strategy": "best"}', "strategy is 'best': it must be packed, spread, distributed"),
    (b'{"cpus": 2, "strategy": null}', "strategy is missing or null: it must be packed"),
    (b'{"cpus": 2, "numaNodes": 2}', "numaNodes: 2 needs strategy: distributed, not packed"),
    (
        b'{"cpus": 2, "strategy": "distributed", "numaNodes": true}',
        "numaNodes is true: it must be auto, all or a number",
    ),
    (b'{"cpus": 2, "fullPhysicalCores": 1}', "fullPhysicalCores is 1: it must be true or false, without quotes"),
    (b'{"cpus": 2, "alignL3": "no"}', "alignL3 is 'no': it must be true or false, without quotes"),
    (b'{"cpus": 2, "free": "\\ud800"}', "is not a list of CPUs"),
    (b'{"cpus": 2, "\\ud800": 1}', "unknown key '\\ud800' (1)"),
    (b'{"cpus": 2\xff}', "the line is not UTF-8: "),
    ('{"cpus": 2}'.encode("utf-16"), "the line is not UTF-8: "),
    (b"[" * 60_000, "the line is nested too deep"),
    (b'{"cpus": 2, "free": "' + b"0," * MAX_LINE + b'0"}', f"the line is longer than {MAX_LINE} bytes: no request is"),
    (b" " * (5 * MAX_LINE), f"the line is longer than {MAX_LINE} bytes"),
]


@pytest.mark.parametrize(("line", "message"), HOSTILE, ids=[repr(line[:40]) for line, _ in HOSTILE])
def test_a_bad_line_has_its_error_and_the_others_their_cpus(batch: Batch, line: bytes, message: str) -> None:
    answers = batch({"cpus": 2}, line, {"cpus": 4, "free": "0-3"})
    assert cpus_of(answers) == ["0,8", None, "0-3"]
    assert message in answers[1]["error"]
    assert answers[1].keys() == {"error"}
    assert answers[1]["error"].isprintable()


def test_line_ends_of_windows_and_a_last_line_without_one_are_fine(dra_cpu: DraCpu, tmp_path: Path) -> None:
    file = tmp_path / "requests"
    file.write_bytes(b'{"cpus": 2}\r\n{"cpus": 2}')
    assert len(dra_cpu("allocate", "--batch", str(file)).out.splitlines()) == 2
    file.write_bytes(b"")
    assert dra_cpu("allocate", "--batch", str(file)) == Done(0, "", "")


def test_a_line_of_exactly_the_limit_is_one_line(dra_cpu: DraCpu, tmp_path: Path) -> None:
    file = tmp_path / "requests"
    for size in (MAX_LINE - 1, MAX_LINE, MAX_LINE + 1, 2 * MAX_LINE, 2 * MAX_LINE + 1):
        file.write_bytes(b'{"cpus": 2}'.ljust(size) + b'\n{"cpus": 4}\n')
        answers = [json.loads(line) for line in dra_cpu("allocate", "--batch", str(file)).out.splitlines()]
        assert [len(CPUSet.parse(answer["cpus"])) for answer in answers[1:]] == [4]
        assert ("cpus" in answers[0]) == (size <= MAX_LINE - 1)


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_whatever_the_lines_are_each_has_one_answer(batch: Batch, lines: list[bytes]) -> None:
    batch(*lines)


def test_standard_input_is_a_batch_too(dra_cpu: DraCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"cpus": 2}\n')))
    assert json.loads(dra_cpu("allocate", "--batch", "-").out)["cpus"] == "0,8"
    monkeypatch.setattr(sys, "stdin", None)
    assert "--batch -: standard input is closed" in dra_cpu("allocate", "--batch", "-").err


# ---- as a process


def environment(host: Path) -> dict[str, str]:
    return {**os.environ, "HOST_ROOT": str(host)}


def test_answers_come_while_requests_go_on(dra_cpu: DraCpu) -> None:
    """So that a program can ask, look at the answer, and ask again."""
    command = [sys.executable, "-m", "dra", "allocate", "--batch", "-"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(dra_cpu.host), **pipes) as process:
        assert process.stdin
        assert process.stdout
        for line in ('{"cpus": 2}', "nonsense", '{"cpus": 4}'):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith("{")
        process.stdin.close()
        assert process.wait(30) == 0


def test_a_reader_that_stops_is_no_traceback(dra_cpu: DraCpu, tmp_path: Path) -> None:
    file = tmp_path / "requests"
    file.write_text('{"cpus": 2}\n' * 20_000)
    command = f"{sys.executable} -m dra allocate --batch {file} | head -n 1"
    done = subprocess.run(
        command, shell=True, env=environment(dra_cpu.host), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["cpus"] == "0,8"
    assert done.stderr == ""


def test_an_output_that_is_full_is_one_line(dra_cpu: DraCpu) -> None:
    command = [sys.executable, "-m", "dra", "allocate", "--cpus", "1"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, env=environment(dra_cpu.host), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    expected = "dra-cpu: standard output can't be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_it_needs_neither_grpc_nor_kubernetes_nor_protobuf_nor_yaml(dra_cpu: DraCpu) -> None:
    script = (
        "import sys; from dra import cli; code = cli.main(['allocate', '--cpus', '2']);"
        "print(code, {'grpc', 'kubernetes', 'google.protobuf', 'yaml', 'asyncio'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(dra_cpu.host), capture_output=True, text=True, check=True
    )
    assert done.stdout == "0,8\n0 set()\n"


# ---- the machine of a report


def report_file(directory: Path, topology: object, config: dict[str, object]) -> str:
    path = directory / "report.yaml"
    path.write_text(dump(report_of(topology, config)))  # type: ignore[arg-type]  # a Topology
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
        ({"reservedCPUs": "99"}, "reserved CPUs 99 do not exist: this machine has 0-15"),
        ({"strategy": "best"}, "driverConfig.strategy is 'best': it must be packed"),
        ({"numaNodes": 2}, "driverConfig.numaNodes: 2 needs strategy: distributed, not packed"),
    ],
)
def test_a_wrong_configuration_of_a_report_is_exit_code_2(
    dra_cpu: DraCpu, tmp_path: Path, config: dict[str, object], message: str
) -> None:
    done = dra_cpu("allocate", "--cpus", "1", "--report", report_file(tmp_path, box(), config))
    assert done.code == 2
    assert message in done.err


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

"""Promises of dra-cpu allocate --batch: one answer a line, and no line that stops the others."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra.allocation import AllocationOptions, allocate
from dra.commands.requests import MAX_LINE
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Topology
from tests.unit.dra.command import Done, DraCpu, environment


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


def test_explained_answers_and_refusals_are_those_of_one_request(batch: Batch, dra_cpu: DraCpu) -> None:
    requests = (("3", ()), ("17", ()), ("3", ("--full-physical-cores",)))
    lines = ({"cpus": 3}, {"cpus": 17}, {"cpus": 3, "fullPhysicalCores": True})
    answers = batch(*lines, {"cpus": 0}, arguments=("--explain",))
    assert answers[0].pop("ns") > 0
    for (count, options), answer in zip(requests, answers, strict=False):
        single = dra_cpu("allocate", "--cpus", count, *options, "--explain", "-o", "json")
        assert answer == json.loads(single.out)
    assert list(answers[0]) == ["cpus", "quality", "free", "wholeFreeCores"]
    assert list(answers[2]) == ["error", "wouldFit", "free", "wholeFreeCores"]
    assert list(answers[3]) == ["error"]  # no request, and so nothing that would fit


def test_a_batch_asks_the_allocator_once_a_line(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counting(topology: Topology, free: CPUSet, count: int, options: AllocationOptions) -> CPUSet:
        asked.append(count)
        return allocate(topology, free, count, options)

    for place in ("dra.commands.allocate", "dra.allocation.explain"):
        monkeypatch.setattr(f"{place}.allocate", counting)
    batch({"cpus": 3}, {"cpus": 17}, arguments=("--explain",))
    assert asked == [3, 17]


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
    (b"{}", "cpus is missing or null: it must be a number from 1 to 8192"),
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
    (b'{"cpus": "2"}', "cpus is '2': it must be a number from 1 to 8192, without quotes"),
    (b'{"cpus": 2.0}', "cpus is 2.0: it must be a number"),
    (b'{"cpus": null}', "cpus is missing or null: it must be a number"),
    (b'{"cpus": [2]}', "cpus is a list: it must be a number"),
    (b'{"cpus": NaN}', "the line has the number NaN, which JSON does not know"),
    (b'{"cpus": 1e999}', "the line has the number '1e999', which is too large"),
    (b'{"cpus": 8193}', "cpus is 8193: it must be a number from 1 to 8192"),
    (b'{"cpus": %s}' % (b"9" * 4000), "cpus is a number of very many digits: it must be"),
    (b'{"cpus": %s}' % (b"9" * 9000), "the line has a number of too many digits"),
    (b'{"cpus": 0}', "cpus is 0: it must be a number from 1 to 8192"),
    (b'{"cpus": -5}', "cpus is -5: it must be a number from 1 to 8192"),
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
        assert ("cpus" in answers[0]) == (size <= MAX_LINE)


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_whatever_the_lines_are_each_has_one_answer(batch: Batch, lines: list[bytes]) -> None:
    batch(*lines)


def test_standard_input_is_a_batch_too(dra_cpu: DraCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"cpus": 2}\n')))
    assert json.loads(dra_cpu("allocate", "--batch", "-").out)["cpus"] == "0,8"
    monkeypatch.setattr(sys, "stdin", None)
    assert "--batch -: standard input is closed" in dra_cpu("allocate", "--batch", "-").err


def test_a_standard_input_that_can_not_be_read_is_one_line(dra_cpu: DraCpu) -> None:
    called = f"exec {sys.executable} -m dra allocate --batch - 0>/dev/null"
    done = subprocess.run(
        called, shell=True, env=environment(dra_cpu.host), capture_output=True, text=True, timeout=30, check=False
    )
    expected = "dra-cpu: --batch -: standard input can't be read: Bad file descriptor; redirect it\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


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

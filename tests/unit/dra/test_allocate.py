"""Promises of dra-cpu allocate: the allocator's own answer, in text and JSON, and what is wrong in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dra.allocation import AllocationOptions, Strategy, allocate
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.command import Done, DraCpu, environment
from tests.unit.topology.machines import box, t1, write_sysfs

ALL = CPUSet.parse("0-15")


def packed(free: str, count: int) -> str:
    return str(allocate(box(), CPUSet.parse(free), count))


def test_text_is_the_list_and_nothing_else(dra_cpu: DraCpu) -> None:
    assert dra_cpu("allocate", "--cpus", "2") == Done(0, f"{packed('0-15', 2)}\n", "")


def test_json_is_one_object(dra_cpu: DraCpu) -> None:
    done = dra_cpu("allocate", "--cpus", "2", "-o", "json")
    assert (done.code, json.loads(done.out), done.err) == (0, {"cpus": "0,8"}, "")


def test_a_refusal_is_exit_code_1_and_one_line(dra_cpu: DraCpu) -> None:
    assert dra_cpu("allocate", "--cpus", "17") == Done(1, "", "dra-cpu: 17 CPUs requested, 16 free (0-15)\n")
    done = dra_cpu("allocate", "--cpus", "17", "-o", "json")
    assert (done.code, json.loads(done.out), done.err) == (1, {"error": "17 CPUs requested, 16 free (0-15)"}, "")


@pytest.mark.parametrize("count", ["0", "-1", "8193", "999999999", "9999999999", "x"])
def test_a_number_that_no_machine_has_is_wrong_usage_and_told_alike(dra_cpu: DraCpu, count: str) -> None:
    done = dra_cpu("allocate", "--cpus", count, "--full-physical-cores")
    told = f"argument --cpus: '{count}' is no number of CPUs: write a number from 1 to 8192; "
    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_free_and_a_device_without_a_cpu_in_common_are_told_as_such(dra_cpu: DraCpu, tmp_path: Path) -> None:
    arguments = ("allocate", "--cpus", "1", "--free", "0-1,8", "--device", "cpudevnuma001")
    told = (
        "free (0-1,8) and device cpudevnuma001 (2-3,10-11) have no CPU in common: name others, or leave one of them out"
    )
    assert dra_cpu(*arguments) == Done(2, "", f"dra-cpu: {told}\n")
    requests = tmp_path / "requests"
    requests.write_text('{"cpus": 1}\n{"cpus": 1, "device": "cpudevnuma000"}\n')
    done = dra_cpu("allocate", "--batch", str(requests), *arguments[3:])
    assert done.code == 0  # lines may have another device
    first, second = map(json.loads, done.out.splitlines())
    assert (first, second["cpus"]) == ({"error": told}, "1")
    taken = dra_cpu("allocate", "--cpus", "1", "--device", "cpudevnuma001", "--reserved-cpus", "2-3,10-11")
    assert taken == Done(1, "", "dra-cpu: 1 CPU requested, 0 free\n")


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
    done = dra_cpu("allocate", "--cpus", "1", "--free", "15", "--device", "cpudevnuma000")
    assert done.err.startswith("dra-cpu: free (none on line) and device cpudevnuma000 (0-")


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
        (["--cpus=--3"], "argument --cpus: '--3' is no number of CPUs: write a number from 1 to 8192"),
        (["--cpus", "500m"], "argument --cpus: '500m' is no number of CPUs: write a number from 1 to 8192"),
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
        (
            ["--cpus", "1", "--strategy", "best"],
            "argument --strategy: invalid choice: 'best' (choose from packed, spread, distributed);",
        ),
        (["--cpus", "1", "--strategy", "Pack"], "(choose from packed, spread, distributed); did you mean packed?;"),
        (["--cpus", "1", "--strategy", "full-pcpus-only"], "; here that is --full-physical-cores;"),
        (["--cpus", "1", "--strategy", "distribute-cpus-across-numa"], "; here that is --strategy distributed;"),
        (["--cpus", "1", "--strategy", "distribute-cpus-across-cores"], "; here that is --strategy spread;"),
        (["--cpus", "1", "--strategy", "x\ny"], "argument --strategy: invalid choice: 'x\\ny' (choose from"),
        (["--cpus", "1", "--numa-nodes", "2"], "numaNodes: 2 needs strategy: distributed, not packed"),
        (
            ["--cpus", "1", "--strategy", "distributed", "--numa-nodes", "x"],
            "argument --numa-nodes: 'x' is not auto, all or a number from 1 to 8192; ",
        ),
        (["--cpus", "1", "--numa-nodes", "-1"], "--numa-nodes: '-1' is not auto, all or a number from 1 to 8192; "),
        (["--cpus", "1", "--numa-nodes", "0"], "--numa-nodes: '0' is not auto, all or a number from 1 to 8192; "),
        (["--cpus", "1", "--numa-nodes", "9" * 5000], "' is not auto, all or a number from 1 to 8192; "),
        (["--cpus", "1", "--checkpoint", "/dev/zero"], "--checkpoint /dev/zero is no regular file: check the path"),
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

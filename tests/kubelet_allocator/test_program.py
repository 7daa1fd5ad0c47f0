"""The program that is the kubelet's allocator: built once, and what it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.go import Sources
from nri_cpu.cpuset import CPUSet
from tests.kubelet_allocator import build
from tests.kubelet_allocator.driver import Answer, Kubelet, NoAnswer, Policy, as_the_kubelet_sees_it
from tests.unit.topology.machines import hybrid, machine, t1, t1b, t2

HACK = Path(__file__).parents[2] / "hack" / "kubelet-allocator"


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    with Kubelet() as started:
        yield started


def test_what_is_built_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.program()
    monkeypatch.setattr(Sources, "find_go", lambda _: pytest.fail("asked for Go"))
    assert build.program() == first
    assert first.is_file()
    assert not first.is_relative_to(HACK.parent.parent)


@pytest.mark.parametrize("arguments", [[], ["built"], ["run", "it"], ["build", "all"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, HACK, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: hack/kubelet-allocator build")


def test_the_command_builds_and_prints_the_path() -> None:
    done = subprocess.run([sys.executable, HACK, "build"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{build.program()}\n"


def test_the_command_checks_and_says_nothing() -> None:
    done = subprocess.run([sys.executable, HACK, "check"], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_it_answers_as_the_kubelet_does_where_nothing_is_in_its_way(kubelet: Kubelet) -> None:
    assert str(kubelet.allocate(t1(), t1().online, 3).cpus) == "0-1,8"
    assert str(kubelet.allocate(t1(), t1().online, 2, Policy("spread")).cpus) == "0-1"
    assert str(kubelet.allocate(t2(), t2().online, 10, Policy("distributed")).cpus) == "0-2,4-6,8-9,12-13"
    assert str(kubelet.allocate(t1b(), t1b().online - CPUSet([0, 8]), 6, Policy(align_l3=True)).cpus) == "1-3,9-11"


def test_what_it_refuses_is_an_error_with_its_reason(kubelet: Kubelet) -> None:
    answer = kubelet.allocate(t1(), CPUSet([1]), 2)
    assert answer.cpus is None
    assert answer.error == "not enough cpus available to satisfy request: requested=2, available=1"
    assert "no strategy" in kubelet.allocate(t1(), t1().online, 2, Policy("tight")).error


def test_full_pcpus_only_refuses_odd_counts_and_counts_the_cores_of_reserved_cpus_as_taken(kubelet: Kubelet) -> None:
    reserved = CPUSet([0])
    free = t1().online - reserved

    def ask(count: int) -> Answer:
        return kubelet.allocate(t1(), free, count, Policy(full_pcpus_only=True, reserved=reserved))

    assert ask(13).error == "SMT Alignment Error: requested 13 cpus not multiple cpus per core = 2"
    assert str(ask(14).cpus) == "1-7,9-15"
    assert ask(16).error.startswith("SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 14")


def test_a_request_is_timed_as_often_as_it_is_asked_for(kubelet: Kubelet) -> None:
    times = kubelet.allocate(t1(), t1().online, 2, rounds=7).nanoseconds
    assert len(times) == 7
    assert min(times) > 0


def test_an_allocator_that_does_not_return_is_ended_and_started_again(kubelet: Kubelet) -> None:
    with pytest.raises(NoAnswer, match=r"not returned within 0\.05 s"):
        kubelet.allocate(t2(), t2().online, 2, rounds=10**9, limit=0.05)
    assert str(kubelet.allocate(t2(), t2().online, 2).cpus) == "0,8"


def test_a_core_has_the_number_of_its_lowest_cpu_and_no_l3_is_the_sockets() -> None:
    seen = {row["cpu"]: row for row in as_the_kubelet_sees_it(t2())}
    assert seen[13] == {"cpu": 13, "core": 5, "socket": 1, "numa": 1, "uncore": 1}
    assert {row["core"] for row in as_the_kubelet_sees_it(hybrid())} == {0, 2, 4, 5, 6, 7}
    assert {row["core"] for row in as_the_kubelet_sees_it(machine(cores=2, threads=2, offline=[0]))} == {1, 2}


ONE = {"topology": [{"cpu": 0}], "free": "0", "count": 1, "strategy": "packed"}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("x", "not a request"),
        ("[]", "not a request"),
        (json.dumps(ONE | {"count": "1"}), "not a request"),
        (json.dumps(ONE | {"topology": []}), "no topology yet"),
        (json.dumps(ONE | {"free": "1-0"}), "free: "),
        (json.dumps(ONE | {"reserved": "a"}), "reserved: "),
        (json.dumps(ONE | {"free": "1"}), "not enough cpus available"),
    ],
)
def test_a_bad_line_is_an_error_and_the_next_one_is_answered(line: str, error: str) -> None:
    done = subprocess.run(
        [build.program()], input=f"{line}\n{json.dumps(ONE)}\n", capture_output=True, text=True, check=True
    )
    bad, good = map(json.loads, done.stdout.splitlines())
    assert error in bad["error"]
    assert good["cpus"] == "0"
    assert not done.stderr

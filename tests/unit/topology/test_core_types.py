"""Promises about core types: the kernel's word where it has one, standard where it has none, no guess from clocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import CoreType, Overlay, read_topology
from tests.unit.topology.machines import hybrid, machine, sysfs_files

LETTERS = {CoreType.P_CORE: "P", CoreType.E_CORE: "e", CoreType.STANDARD: "-"}


def kinds(files: dict[str, str]) -> str:
    """One letter for each CPU on line."""
    topology = read_topology(Path("/nowhere"), Overlay.of(files))
    return "".join(LETTERS[cpu.core_type] for cpu in topology.cpus.values())


def with_capacities(capacities: Sequence[int | str], offline: Sequence[int] = ()) -> dict[str, str]:
    files = sysfs_files(machine(cores=len(capacities), offline=offline))
    return files | {
        f"/sys/devices/system/cpu/cpu{cpu}/cpu_capacity": f"{capacity}\n" for cpu, capacity in enumerate(capacities)
    }


@pytest.mark.fault("P-6")
def test_without_the_kernels_word_all_cores_are_standard() -> None:
    assert kinds(sysfs_files(machine(cores=4, threads=2))) == "--------"


@pytest.mark.fault("P-6")
@pytest.mark.parametrize(("gone", "expected"), [("cpu_core", "----eeee"), ("cpu_atom", "PPPP----")])
def test_one_pmu_without_the_other_is_no_fault(gone: str, expected: str) -> None:
    files = {path: text for path, text in sysfs_files(hybrid()).items() if gone not in path}
    assert kinds(files) == expected


def test_low_power_cores_are_e_cores() -> None:
    files = sysfs_files(hybrid(2, 4)) | {
        "/sys/devices/cpu_atom/cpus": "4-5\n",
        "/sys/devices/cpu_lowpower/cpus": "6-7\n",
    }
    assert kinds(files) == "PPPPeeee"


@pytest.mark.parametrize("text", ["", "\0", "x", "4-", "4-99999"])
def test_a_pmus_file_that_can_not_be_understood_tells_nothing(text: str) -> None:
    assert kinds(sysfs_files(hybrid()) | {"/sys/devices/cpu_atom/cpus": text}) == "PPPP----"


def test_a_cpu_of_two_pmus_is_an_e_core() -> None:
    assert kinds(sysfs_files(hybrid()) | {"/sys/devices/cpu_core/cpus": "0-4"}) == "PPPPeeee"


def test_pmus_count_before_capacities() -> None:
    files = sysfs_files(hybrid())
    files |= {f"/sys/devices/system/cpu/cpu{cpu}/cpu_capacity": "1024" if cpu > 3 else "300" for cpu in range(8)}
    assert kinds(files) == "PPPPeeee"


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        ([1024] * 4, "----"),
        ([1024, 1024, 446, 446], "PPee"),  # Juno
        ([398, 398, 1024, 986], "eePP"),  # RK3588: the two big clusters have different clocks
        ([1024, 871, 871, 245], "PPPe"),  # a prime core is a big one
        ([250, 250, 620, 620, 1024, 1024], "ee--PP"),  # a tier between is neither
        ([250, 500, 620, 1024], "e--P"),  # 500 has more than four fifths of 620
        ([200, 300, 600, 1024], "e--P"),  # of two tiers between both are
        ([1024, 1020, 1011, 1000, 980, 960], "------"),  # binning
        ([1024, 820], "--"),
        ([1024, 819], "Pe"),
        ([1025, 234], "Pe"),
        ([512, 512], "--"),
        ([5], "-"),
    ],
)
def test_capacities_make_kinds_where_they_are_far_apart(capacities: list[int], expected: str) -> None:
    assert kinds(with_capacities(capacities)) == expected


@pytest.mark.fault("A27")
@pytest.mark.parametrize("text", ["", "0", "-1", "x", "\0", "9" * 30])
def test_a_capacity_that_is_none_makes_a_standard_core_and_no_other_kind(text: str) -> None:
    assert kinds(with_capacities([1024, 1024, text, 446])) == "PP-e"
    assert kinds(with_capacities([1024, 1024, text])) == "---"


def test_cores_keep_their_kind_when_all_of_another_go_off_line() -> None:
    assert kinds(with_capacities([1024, 1024, 446, 446], offline=[0, 1])) == "ee"
    assert kinds(with_capacities([446, 446, 1024, 1024], offline=[2, 3])) == "ee"


def test_cpus_that_are_not_there_have_no_kind() -> None:
    files = sysfs_files(hybrid()) | {"/sys/devices/cpu_atom/cpus": "4-900"}
    topology = read_topology(Path("/nowhere"), Overlay.of(files))
    assert topology.online == CPUSet(range(8))
    assert topology == hybrid()

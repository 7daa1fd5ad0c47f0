"""Promises about cores: ids and the kernel's lists of siblings, where one is missing or both contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loguru import logger

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Overlay, Topology, read_topology
from tests.unit.topology.machines import machine, mask_text, sysfs_files, t1, t2

NOWHERE = Path("/nowhere")
Files = dict[str, str]


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line).strip()), format="{message}", level="DEBUG")
    yield lines
    logger.remove(sink)


def topology_of(cpu: int, name: str) -> str:
    return f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}"


def read(files: Files) -> Topology:
    return read_topology(NOWHERE, Overlay.of(files))


def without(files: Files, *names: str) -> Files:
    return {
        path: text for path, text in files.items() if not path.endswith(tuple(f"/topology/{name}" for name in names))
    }


SIBLINGS = ("core_cpus_list", "core_cpus", "thread_siblings_list", "thread_siblings")


@pytest.mark.fault("R15")
@pytest.mark.parametrize("threads", [1, 2, 4, 8])
@pytest.mark.parametrize("gone", [(), *((name,) for name in SIBLINGS), SIBLINGS, SIBLINGS[:3], ("core_id",)])
def test_any_one_source_is_enough(threads: int, gone: tuple[str, ...], log: list[str]) -> None:
    topology = machine(cores=4, threads=threads)
    assert read(without(sysfs_files(topology), *gone)).cores == topology.cores
    assert log == ([f"topology: no core id for CPUs {topology.online}"] if "core_id" in gone else [])


@pytest.mark.fault("R14")
def test_without_ids_and_siblings_each_cpu_is_a_core() -> None:
    assert len(read(without(sysfs_files(t1()), *SIBLINGS, "core_id")).cores) == 16


@pytest.mark.fault("R11")
@pytest.mark.parametrize("name", ["core_id", "die_id"])
def test_a_core_id_that_stands_in_for_a_missing_one_is_no_other_cores(name: str) -> None:
    # Core ids of socket 0 are 0, 10, 20, 3: without its own, CPU 3 would be a thread of that of CPU 1.
    files = without(sysfs_files(machine(cores=4)), *SIBLINGS)
    for cpu, core in enumerate([0, 3, 20, 3]):
        files[topology_of(cpu, "core_id")] = str(core)
    del files[topology_of(3, "core_id")]
    del files[topology_of(2, name)]
    assert len(read(files).cores) == 4


@pytest.mark.fault("R11")
def test_cores_that_repeat_an_id_inside_a_socket_are_told_apart_by_siblings(log: list[str]) -> None:
    topology = machine(sockets=2, cores=4, threads=2)
    files = sysfs_files(topology)
    for cpu in topology.online:
        files[topology_of(cpu, "core_id")] = str(cpu % 2)
    found = read(files)
    assert found.cores == topology.cores
    assert [found.cpus[core.first()].core for core in found.cores] == list(range(8))
    assert log == ["topology: core ids and lists of siblings contradict each other for CPUs 0-15"]


def test_siblings_that_ids_take_for_cores_of_their_own_are_one_core(log: list[str]) -> None:
    files = sysfs_files(t2())
    files[topology_of(9, "core_id")] = "77"
    assert read(files).cores == t2().cores
    assert log == ["topology: core ids and lists of siblings contradict each other for CPUs 1,9"]


def crossed(files: Files) -> None:
    files[topology_of(0, "core_cpus_list")] = "0,1"  # which CPU 1 doesn't say


def one_for_all(files: Files) -> None:
    for cpu in range(16):
        files[topology_of(cpu, "core_cpus_list")] = "0,8"


def over_sockets(files: Files) -> None:
    for cpu in (0, 4):
        files[topology_of(cpu, "core_cpus_list")] = "0,4"


@pytest.mark.parametrize("lie", [crossed, over_sockets])
def test_siblings_that_do_not_agree_or_span_sockets_count_for_nothing(lie: Callable[[Files], None]) -> None:
    files = sysfs_files(t2())
    lie(files)
    assert read(files).cores == t2().cores


@pytest.mark.parametrize("text", ["", "\0", "abc", "1-0", "99999", "1,2"])
def test_a_list_that_can_not_be_right_gives_way_to_the_next(text: str) -> None:
    files = sysfs_files(t2())
    for cpu in range(16):
        files[topology_of(cpu, "core_cpus_list")] = text if cpu not in (1, 2) else ""
        files[topology_of(cpu, "core_id")] = "0"
    assert read(files).cores == t2().cores


def test_a_list_copied_to_all_cpus_gives_way_to_masks() -> None:
    files = without(sysfs_files(t2()), "thread_siblings_list")
    one_for_all(files)
    assert read(files).cores == t2().cores


@pytest.mark.fault("R12")
def test_offline_siblings_are_no_threads() -> None:
    files = sysfs_files(t1(offline=[15]))
    files[topology_of(7, "core_cpus_list")] = "7,15"
    files[topology_of(7, "core_cpus")] = mask_text(CPUSet([7, 15]))
    assert read(files) == t1(offline=[15])


@pytest.mark.fault("A26", "A27")
@pytest.mark.parametrize("text", ["-1", "65535", "4294967295", "x"])
def test_every_way_to_say_no_cluster_leaves_the_cores_as_they_are(text: str) -> None:
    files = sysfs_files(t1())
    for cpu in range(16):
        files[topology_of(cpu, "cluster_id")] = text
    assert read(files).cores == t1().cores

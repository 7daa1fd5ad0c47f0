"""Promises about broken files: whatever one of them is, the machine stays usable, and each oddity is one line."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from loguru import logger

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Overlay, Topology, TopologyError, read_online, read_topology
from nri_cpu.topology.files import ENTRY_LIMIT, TOTAL_ENTRY_LIMIT, TOTAL_READ_LIMIT
from nri_cpu.topology.oddities import Oddities
from tests.unit.ordinary import as_ordinary_user, out_of_reach
from tests.unit.topology.machines import machine, write_sysfs

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"

# Every file that is read, for one CPU, node and bus each.
FILES = [
    f"{CPU}/online",
    f"{CPU}/present",
    f"{CPU}/possible",
    f"{CPU}/isolated",
    f"{CPU}/cpu1/cpu_capacity",
    *(f"{CPU}/cpu1/topology/{name}" for name in ("physical_package_id", "die_id", "cluster_id", "core_id")),
    *(f"{CPU}/cpu1/topology/{name}" for name in ("core_cpus_list", "core_cpus", "thread_siblings_list")),
    *(f"{CPU}/cpu0/cache/index3/{name}" for name in ("level", "id", "shared_cpu_list", "shared_cpu_map")),
    *(f"{NODE}/node{node}/{name}" for node in (0, 9) for name in ("cpulist", "cpumap", "meminfo")),
    *(f"{NODE}/{name}" for name in ("has_memory", "has_normal_memory", "online")),
    "sys/devices/cpu_core/cpus",
    "sys/devices/pci0000:00/pci_bus/0000:00/cpulistaffinity",
    "sys/devices/pci0000:00/pci_bus/0000:00/cpuaffinity",
]

TEXTS = {
    "empty": b"",
    "newline": b"\n",
    "nul": b"\0",
    "garbage": b"garbage\n",
    "binary": bytes(range(128, 256)),
    "negative": b"-7\n",
    "huge number": b"9" * 60,
    "reversed": b"3-0\n",
    "beyond all CPUs": b"0-99999999\n",
    "list for mask": b"0-1,3\n",
    "mask for list": b"ffffffff,0000000f\n",
    "other CPUs": b"700-800\n",
    "long": b"0," * 100_000,
    "a million zeros": b"0" * 1_000_000,
}


def text(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


def never_ends(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(4 << 30)


FORMS: dict[str, Callable[[Path], object]] = {
    **{kind: text(content) for kind, content in TEXTS.items()},
    "gone": lambda path: path,
    "directory": Path.mkdir,
    "fifo": fifo,
    "loop": loop,
    "never ends": never_ends,
    "sparse": sparse,
}


def put(path: Path, form: Callable[[Path], object]) -> None:
    """Put this in the place of whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    form(path)


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line).strip()), format="{message}", level="DEBUG")
    yield lines
    logger.remove(sink)


def small() -> Topology:
    """Two cores of two threads on one node, and a node of memory."""
    plain = machine(cores=2, threads=2)
    roots = {"pci0000:00": CPUSet([0, 2]), "pci0000:80": CPUSet([1])}
    return Topology.of(plain.cpus.values(), isolated=CPUSet([3]), memory_nodes=[9], pcie_roots=roots)


def written(root: Path, topology: Topology) -> Path:
    write_sysfs(root, topology)
    for cpu in topology.present:
        (root / CPU / f"cpu{cpu}/cpu_capacity").write_text("1024\n")
    (root / "sys/devices/cpu_core").mkdir(exist_ok=True)
    (root / "sys/devices/cpu_core/cpus").write_text("\n")
    return root


def check(root: Path, topology: Topology, log: list[str]) -> None:
    found = read_topology(root)
    assert found.online == topology.online
    assert found.online <= found.present <= found.possible
    assert found.isolated <= found.present
    assert sum(map(len, found.cores)) == sum(map(len, found.l3_groups)) == len(found.online)
    assert CPUSet.union(found.cores) == CPUSet.union(found.l3_groups) == CPUSet.union(found.nodes.values())
    assert all(cpus <= found.present for cpus in found.pcie_roots.values())
    assert found.pcie_roots["pci0000:80"] == CPUSet([1])
    kinds = [re.sub(r"[0-9][-0-9,]*", "N", line) for line in log]
    assert len(kinds) == len(set(kinds)) <= 3
    assert max(map(len, log), default=0) < 200


@pytest.mark.fault("A27", "R14")
@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_anything_else_costs_no_cpu(tmp_path: Path, log: list[str], file: str) -> None:
    root = written(tmp_path, small())
    for kind, form in FORMS.items():
        put(root / file, form)
        log.clear()
        if (file, kind) != (f"{CPU}/online", "list for mask"):  # which is right there, with CPU 2 off line
            check(tmp_path, small(), log)


@pytest.mark.parametrize("form", [sparse, never_ends])
def test_reading_files_without_end_takes_no_memory(tmp_path: Path, form: Callable[[Path], None]) -> None:
    root = written(tmp_path, small())
    for file in FILES:
        put(root / file, form)
    read_topology(root)  # imports and caches
    tracemalloc.start()
    read_topology(root)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20


class EndlessDirectory:
    """What os.scandir gives, without an end."""

    def __init__(self, prefix: str) -> None:
        self._names = (SimpleNamespace(name=f"{prefix}{number}") for number in count())
        self.given = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SimpleNamespace:
        self.given += 1
        return next(self._names)


@pytest.mark.parametrize("prefix", ["cpu", "node", "index", "pci0000:", "cpu0"])
def test_directories_without_end_are_read_to_a_limit_and_hide_no_cpu(
    tmp_path: Path, log: list[str], monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    root = written(tmp_path, small())
    made: list[EndlessDirectory] = []

    def scandir(_path: str) -> EndlessDirectory:
        made.append(EndlessDirectory(prefix))
        return made[-1]

    monkeypatch.setattr(os, "scandir", scandir)
    found = read_topology(root)
    assert found.online == small().online
    assert len(made) < 20
    assert max(directory.given for directory in made) <= ENTRY_LIMIT + 1
    assert sum(directory.given for directory in made) < TOTAL_ENTRY_LIMIT + 2 * len(made)
    assert f"topology: more files than those of any machine, the rest is passed over: {root}/sys" in log
    assert max(map(len, log), default=0) < 200


@pytest.mark.parametrize("junk", [20_000, ENTRY_LIMIT + 1])
@pytest.mark.parametrize("directory", [CPU, NODE, "sys/devices"])
def test_any_number_of_other_files_in_a_directory_hides_no_cpu_and_no_node(
    tmp_path: Path, log: list[str], monkeypatch: pytest.MonkeyPatch, directory: str, junk: int
) -> None:
    root = written(tmp_path, plain := machine(sockets=2, cores=8, threads=2))
    real = os.scandir

    def scandir(path: str) -> Any:
        """With the other files first."""
        with real(path) as entries:
            there = list(entries)
        first = (SimpleNamespace(name=f"x{number}") for number in range(junk if path == f"{root}/{directory}" else 0))
        return contextlib.nullcontext(chain(first, there))

    monkeypatch.setattr(os, "scandir", scandir)
    found = read_topology(root)
    assert (found.online, found.present) == (plain.online, plain.present)
    assert found.nodes == plain.nodes  # by the CPUs' own links, where the list of nodes has an end
    assert log == (
        [f"topology: more files than those of any machine, the rest is passed over: {root}/sys"]
        if junk > ENTRY_LIMIT
        else []
    )


def test_all_directories_together_have_an_end(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[EndlessDirectory] = []

    def scandir(_path: str) -> EndlessDirectory:
        made.append(EndlessDirectory("other"))
        return made[-1]

    monkeypatch.setattr(os, "scandir", scandir)
    # No node lists a CPU, so that each CPU's own directory is looked into.
    topology = read_topology(Path("/nowhere"), Overlay.of({f"/{CPU}/online": "0-1023"}))
    assert topology.online == CPUSet(range(1024))
    assert sum(directory.given for directory in made) < TOTAL_ENTRY_LIMIT + 2 * len(made)
    assert "topology: more files than those of any machine, the rest is passed over: /nowhere/sys" in log


def test_all_files_together_have_an_end(tmp_path: Path, log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Every CPU is the same folder, whose files are all the same one.
    topology = tmp_path / "cpu/topology"
    topology.mkdir(parents=True)
    (topology / "die_id").write_text("0" * 60_000)
    for name in ("physical_package_id", "cluster_id", "core_id"):
        (topology / name).symlink_to("die_id")
    (tmp_path / CPU).mkdir(parents=True)
    (tmp_path / CPU / "online").write_text("0-511\n")
    for cpu in range(512):
        (tmp_path / CPU / f"cpu{cpu}").symlink_to(tmp_path / "cpu")
    total = 0

    def counted(file: int, size: int) -> bytes:
        nonlocal total
        data = read(file, size)
        total += len(data)
        return data

    read = os.read
    monkeypatch.setattr(os, "read", counted)
    assert read_topology(tmp_path).online == CPUSet(range(512))
    assert total < TOTAL_READ_LIMIT + (1 << 20)
    assert f"topology: more files than those of any machine, the rest is passed over: {tmp_path}/sys" in log


def test_directories_of_thousands_of_cpus_that_are_not_there_cost_nothing(tmp_path: Path) -> None:
    write_sysfs(tmp_path, small())
    (tmp_path / CPU / "online").unlink()
    for name in ("cpu99999999999", "cpu8192", "cpu01", "cpu-1", "cpu1x", "cpufreq", "cpu", "\udcff", "cpu\n2"):
        (tmp_path / CPU / name).mkdir()
    assert read_online(tmp_path) == read_topology(tmp_path).online == small().online


def test_memory_that_can_not_be_understood_is_told(tmp_path: Path, log: list[str]) -> None:
    root = written(tmp_path, small())
    (root / NODE / "node9/meminfo").write_text("Node 9 MemTotal: many kB\n")
    assert read_topology(root).memory_nodes == ()
    assert log == ["topology: no size of memory in meminfo of node9"]


# Lists that contradict each other


def test_thousands_of_nodes_that_all_list_all_cpus_are_one_look_each(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int | str] = []
    note = Oddities.note

    def counted(oddities: Oddities, kind: str, which: int | str) -> None:
        noted.append(which)
        note(oddities, kind, which)

    monkeypatch.setattr(Oddities, "note", counted)
    files = {f"/{NODE}/node{node}/cpulist": "0-511" for node in range(4096)}
    topology = read_topology(Path("/nowhere"), Overlay.of(files | {f"/{CPU}/online": "0-511"}))
    assert topology.nodes == {0: CPUSet(range(512))}
    assert "topology: several NUMA nodes, the lowest counts, for CPUs 0-511" in log
    assert len(noted) < 10_000


def told(root: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (root / CPU / name).write_text(text)
    return root


@pytest.mark.fault("H1", "P-5")
def test_cpus_on_line_that_have_no_directory_are_left_out(tmp_path: Path, log: list[str]) -> None:
    root = told(written(tmp_path, small()), online="0-7\n", present="0-7\n")
    assert read_topology(root).online == small().online
    assert log == ["topology: on line and without a directory, left out, are CPUs 4-7"]


def test_a_list_of_other_cpus_than_there_are_directories_is_not_believed(tmp_path: Path) -> None:
    root = told(written(tmp_path, small()), online="4-7\n")
    assert read_topology(root).online == small().online


def test_without_any_directory_the_list_is_believed(tmp_path: Path) -> None:
    (tmp_path / CPU).mkdir(parents=True)
    topology = read_topology(told(tmp_path, online="0-2\n"))
    assert topology.online == topology.present == topology.possible == CPUSet(range(3))
    assert topology.cores == (CPUSet([0]), CPUSet([1]), CPUSet([2]))


def test_cpus_on_line_are_present_and_present_ones_possible(tmp_path: Path, log: list[str]) -> None:
    topology = read_topology(told(written(tmp_path, small()), present="0-1\n", possible="0\n", isolated="2,9\n"))
    assert topology.online == topology.present == topology.possible == CPUSet(range(4))
    assert topology.isolated == CPUSet([2])
    assert log == ["topology: on line and not present, taken as both, are CPUs 2-3"]


@pytest.mark.fault("H4")
def test_offline_cpus_are_present_also_where_no_list_says_so(tmp_path: Path) -> None:
    root = write_sysfs(tmp_path, machine(cores=2, threads=2, offline=[3]))
    for name in ("online", "present", "possible"):
        (root / CPU / name).unlink()
    topology = read_topology(root)
    assert topology.online == CPUSet(range(3))
    assert topology.present == topology.possible == CPUSet(range(4))


def test_a_machine_that_has_all_its_cpus_off_line_is_no_machine(tmp_path: Path) -> None:
    root = write_sysfs(tmp_path, small())
    for cpu in range(4):
        (root / CPU / f"cpu{cpu}/online").write_text("0\n")
    assert read_topology(root).online == small().online  # the list says otherwise
    (root / CPU / "online").unlink()
    with pytest.raises(TopologyError, match="tells of no CPU"):
        read_topology(root)


READ = """
import os, pathlib
from nri_cpu.topology import TopologyError, read_topology

try:
    print(read_topology(pathlib.Path(os.environ["HOST_ROOT"])).online)
except TopologyError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("directory", "told"), [(CPU, f"{CPU}/online"), ("sys", f"{CPU}/online"), (f"{CPU}/cpu0", None)]
)
def test_a_machine_that_this_user_may_not_read_is_told_as_that(
    tmp_path: Path, directory: str, told: str | None
) -> None:
    root = written(tmp_path, small())
    out_of_reach(root / directory)
    done = as_ordinary_user("-c", READ, host=root)
    refused = f"{root}/{told} can't be read: Permission denied; be a user who may, or allow reading of the folders on"
    assert done.stdout.startswith(refused if told else "0-3\n"), done


def test_a_folder_of_cpus_that_this_user_may_not_list_is_told_as_that(tmp_path: Path) -> None:
    root = written(tmp_path, small())
    (root / CPU / "online").unlink()
    out_of_reach(root / CPU)
    (root / CPU).chmod(0o711)
    done = as_ordinary_user("-c", READ, host=root)
    assert done.stdout.startswith(f"{root}/{CPU} can't be read: Permission denied; "), done

"""Promise of reader and overlay: any machine is read back from the files that a kernel would show for it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import given, settings

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Overlay, Topology, read_online, read_topology
from nri_cpu.topology.overlay import parse_overlay
from tests.unit.topology.machines import sysfs_files, write_sysfs
from tests.unit.topology.random_machines import large, topologies

NOWHERE = Path("/nowhere")


def overlay_of(topology: Topology) -> Overlay:
    return Overlay.of(sysfs_files(topology))


@given(topologies())
def test_any_machine_is_read_back_from_an_overlay(topology: Topology) -> None:
    overlay = overlay_of(topology)
    assert read_topology(NOWHERE, overlay) == topology
    assert read_online(NOWHERE, overlay) == topology.online


@given(topologies())
@settings(max_examples=20)
def test_an_overlay_that_yaml_has_written_is_read_as_it_was(topology: Topology) -> None:
    files = sysfs_files(topology)
    assert parse_overlay(yaml.safe_dump(files, width=1 << 20)) == Overlay.of(dict(sorted(files.items())))


@given(topologies(highest=300))
@settings(max_examples=5)  # files are slow, and read like an overlay but for opening them
def test_any_machine_is_read_back_from_files(topology: Topology) -> None:
    with TemporaryDirectory() as directory:
        root = write_sysfs(Path(directory), topology)
        assert read_topology(root) == topology
        assert read_online(root) == topology.online


@pytest.mark.fault("P-4", "R15")
def test_more_than_1024_cpus_with_gaps_and_cpu_0_off_line_are_read_back() -> None:
    topology = read_topology(NOWHERE, overlay_of(large(1200)))
    assert topology == large(1200)
    assert topology.online == CPUSet(range(2, 2400, 2))
    assert topology.offline_nodes == {0: 0}
    assert topology.memory_nodes == (1000,)
    assert {len(core) for core in topology.cores} == {3, 4}


@given(topologies())
@settings(max_examples=20)
def test_masks_alone_tell_the_same(topology: Topology) -> None:
    lists = ("core_cpus_list", "thread_siblings_list", "shared_cpu_list", "cpulist", "cpulistaffinity")
    files = {path: text for path, text in sysfs_files(topology).items() if not path.endswith(lists)}
    assert read_topology(NOWHERE, Overlay.of(files)) == topology

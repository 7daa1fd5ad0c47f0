"""Promises of nri-cpu's files about a sysfs overlay: its word on CPUs on line counts, at the start and after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nri_cpu.config import parse
from nri_cpu.cpuset import CPUSet
from nri_cpu.node_files import Files, Places
from nri_cpu.topology import TopologyError
from tests.unit.topology.machines import t1, write_sysfs

ONLINE = "sys/devices/system/cpu/online"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    write_sysfs(tmp_path, t1())
    return Places(tmp_path / "state/checkpoint.json", tmp_path / "cdi", tmp_path)


def configured(places: Places, text: str) -> Places:
    path = places.host / "overlay.yaml"
    path.write_text(text)
    return places.configured(parse(f"sysfsOverlay: {path}\n", "config.yaml"))


@pytest.mark.fault("H1")
def test_an_overlays_list_of_cpus_on_line_is_what_counts_whatever_the_kernel_says(places: Places) -> None:
    files = Files(configured(places, f'/{ONLINE}: "0-3\\n"\n'))
    assert files.online() == CPUSet(range(4))
    (places.host / ONLINE).write_text("0-7\n")
    assert files.online() == CPUSet(range(4))
    files.close()


@pytest.mark.fault("H1", "H2")
def test_with_an_overlay_of_other_files_cpus_on_line_are_followed(places: Places) -> None:
    files = Files(configured(places, '/sys/devices/system/node/node0/cpulist: "0-3\\n"\n'))
    assert files.online() == CPUSet(range(16))
    (places.host / ONLINE).write_text("0-7\n")
    assert files.online() == CPUSet(range(8))
    files.close()


def test_an_overlay_that_can_not_be_used_is_an_error_and_leaves_the_files_before(places: Places) -> None:
    files = Files(places)
    with pytest.raises(TopologyError, match="needs a text"):
        files.moved(configured(places, f"/{ONLINE}: 0\n"))
    with pytest.raises(TopologyError, match="No such file"):
        Files(replace(places, sysfs_overlay=places.host / "nowhere.yaml"))
    assert files.online() == CPUSet(range(16))
    files.close()


def test_an_overlay_may_come_with_the_runtimes_configuration(places: Places) -> None:
    files = Files(places)
    assert files.running.acquire()
    moved = files.moved(configured(places, f'/{ONLINE}: "1"\n'))
    assert moved.online() == CPUSet([1])
    assert moved.running.held
    moved.close()

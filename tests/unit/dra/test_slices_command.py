"""Promises of dra-cpu slices: what would be published, as kubectl takes it, without a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra.devices import DeviceMode, GroupBy, devices_of
from dra.slices.objects import slices_of
from tests.captures.machines import NAMES, capture
from tests.unit.dra.command import DraCpu
from tests.unit.ordinary import as_ordinary_user
from tests.unit.topology.machines import box, machine, write_sysfs

NODE = ("--hostname-override", "node-7")


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def test_yaml_and_json_are_the_same_slices(dra_cpu: DraCpu) -> None:
    expected = list(slices_of(devices_of(box(), box().online, DeviceMode.GROUPED), "node-7"))
    done = dra_cpu("slices", *NODE)
    assert (done.code, done.err) == (0, "")
    assert documents(done.out) == expected
    listed = json.loads(dra_cpu("slices", *NODE, "-o", "json").out)
    assert listed == {"apiVersion": "v1", "kind": "List", "items": expected}


@pytest.mark.parametrize(
    ("arguments", "mode", "group_by"),
    [
        (("--cpu-device-mode", "individual"), DeviceMode.INDIVIDUAL, GroupBy.NUMANODE),
        (("--group-by", "socket"), DeviceMode.GROUPED, GroupBy.SOCKET),
        (("--group-by", "machine"), DeviceMode.GROUPED, GroupBy.MACHINE),
    ],
)
def test_modes_and_groupings_come_from_arguments_and_from_the_file(
    dra_cpu: DraCpu, arguments: tuple[str, ...], mode: DeviceMode, group_by: GroupBy
) -> None:
    expected = list(slices_of(devices_of(box(), box().online, mode, group_by), "node-7"))
    assert documents(dra_cpu("slices", *NODE, *arguments).out) == expected
    dra_cpu.config.write_text(f"cpuDeviceMode: {mode}\ngroupBy: {group_by}\nhostnameOverride: node-7\n")
    assert documents(dra_cpu("slices").out) == expected


def test_reserved_cpus_are_in_no_device(dra_cpu: DraCpu) -> None:
    done = dra_cpu("slices", "--cpu-device-mode", "individual", "--reserved-cpus", "0,8")
    names = [device["name"] for one in documents(done.out) for device in one["spec"]["devices"]]
    assert len(names) == 14
    assert not {"cpudev000", "cpudev008"} & set(names)
    assert done.err == ""


@pytest.mark.fault("R16")
def test_what_is_odd_is_told_on_stderr(dra_cpu: DraCpu) -> None:
    done = dra_cpu("slices", "--reserved-cpus", "0")
    assert "dra-cpu: CPUs 8 can be in claims and are siblings of reserved ones" in done.err
    assert documents(done.out)


@pytest.mark.fault("R9")
def test_nothing_to_publish_is_no_document_and_an_empty_list(dra_cpu: DraCpu) -> None:
    done = dra_cpu("slices", "--reserved-cpus", "0-15")
    assert (done.code, done.out) == (0, "")
    assert done.err == "dra-cpu: all CPUs are reserved: no claim can be prepared\n"
    assert json.loads(dra_cpu("slices", "--reserved-cpus", "0-15", "-o", "json").out)["items"] == []


def test_many_devices_are_many_documents(dra_cpu: DraCpu, tmp_path: Path) -> None:
    dra_cpu.host = write_sysfs(tmp_path / "wide", machine(cores=100, threads=2))
    found = documents(dra_cpu("slices", "--cpu-device-mode", "individual").out)
    assert [len(one["spec"]["devices"]) for one in found] == [128, 72]


@pytest.mark.fault("F-6")
def test_the_node_allocatable_mapping_is_there_when_it_is_switched_on(dra_cpu: DraCpu) -> None:
    assert "nodeAllocatableResources" not in dra_cpu("slices").out
    dra_cpu.config.write_text("publishNodeAllocatableResourceMapping: true\n")
    assert "nodeAllocatableResources" in dra_cpu("slices").out


def test_pcie_roots_are_there_when_they_are_switched_on(dra_cpu: DraCpu, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text('/sys/devices/pci0000:00/pci_bus/0000:00/cpulistaffinity: "0-3\\n"\n')
    arguments = ("slices", "--sysfs-overlay", str(overlay))
    assert "pcieRoot" not in dra_cpu(*arguments).out
    attributes = documents(dra_cpu(*arguments, "--expose-pcie-roots").out)[0]["spec"]["devices"][0]["attributes"]
    assert attributes["resource.kubernetes.io/pcieRoot"] == {"strings": ["pci0000:00"]}
    assert "pcieRoot" in dra_cpu(*arguments, "--expose-pcie-roots=true").out
    assert "pcieRoot" not in dra_cpu(*arguments, "--expose-pcie-roots=false").out
    dra_cpu.config.write_text("exposePCIeRoots: true\n")
    assert "pcieRoot" in dra_cpu(*arguments).out
    assert "pcieRoot" not in dra_cpu(*arguments, "--expose-pcie-roots=F").out


def test_what_the_api_server_would_refuse_is_exit_code_1_with_the_slices(
    dra_cpu: DraCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra.slices.limits._MAX_BYTES", 100)
    done = dra_cpu("slices")
    assert done.code == 1
    assert "100 at most" in done.err
    assert documents(done.out)


@pytest.mark.fault("R16")
def test_warnings_alone_are_exit_code_0(dra_cpu: DraCpu) -> None:
    done = dra_cpu("slices", "--reserved-cpus", "0", "--cpu-device-mode", "individual", "--group-by", "socket")
    assert done.code == 0
    assert done.err.splitlines()[0] == (
        "dra-cpu: --group-by socket has no effect: in individual mode a device is one CPU"
    )
    assert "siblings of reserved ones" in done.last


@pytest.mark.parametrize("name", NAMES)
def test_every_captured_machine_has_devices(dra_cpu: DraCpu, name: str) -> None:
    dra_cpu.host = capture(name)
    for mode in DeviceMode:
        done = dra_cpu("slices", "--cpu-device-mode", mode, "--expose-pcie-roots")
        assert done.code == 0
        assert documents(done.out)[0]["spec"]["devices"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "table"), "argument -o/--output: invalid choice: 'table'"),
        (("--group-by", "core"), "argument --group-by: invalid choice: 'core'"),
        (("--group-by", "numa-node"), "did you mean numanode?"),
        (("--expose-pcie-roots=yes",), "argument --expose-pcie-roots: 'yes' is neither true nor false"),
        (("--hostname-override", "A b"), "--hostname-override: 'A b' is no name of a node"),
        (("--reserved-cpus", "16"), "reserved CPUs 16 do not exist: this machine has 0-15"),
        (("--sysfs-overlay", "/nowhere"), "sysfs overlay /nowhere: can't be read"),
        (("--config", "/nowhere"), "/nowhere: can't be read"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_line(dra_cpu: DraCpu, arguments: tuple[str, ...], message: str) -> None:
    done = dra_cpu("slices", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.last


def test_an_ordinary_user_needs_no_cluster(dra_cpu: DraCpu) -> None:
    done = as_ordinary_user("-m", "dra", "slices", *NODE, host=dra_cpu.host)
    assert (done.returncode, done.stderr) == (0, "")
    assert documents(done.stdout)[0]["spec"]["nodeName"] == "node-7"


def test_a_reader_that_stops_is_no_traceback(dra_cpu: DraCpu, tmp_path: Path) -> None:
    host = write_sysfs(tmp_path / "wide", machine(cores=128, threads=2))
    command = f"{sys.executable} -m dra slices {' '.join(NODE)} --cpu-device-mode individual | head -n 1"
    done = subprocess.run(
        command, shell=True, env={"HOST_ROOT": str(host), "PATH": "/usr/bin:/bin"}, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"---\n", b"")

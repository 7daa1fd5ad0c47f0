"""Promises of the sysfs overlay: its files stand over the machine's, and a wrong one is an error that names the key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import TopologyError, load_overlay, read_online, read_topology
from nri_cpu.topology.overlay import MAX_OVERLAY_BYTES, Overlay, parse_overlay
from tests.unit.topology.machines import t1, write_sysfs

ONLINE = "/sys/devices/system/cpu/online"

FOUR_CPUS = """
# A machine of four CPUs on two nodes, each with a PCIe root.
/sys/devices/system/cpu/online: "0-3\\n"
/sys/devices/system/cpu/present: |
  0-3
/sys/devices/system/cpu/smt/control: off-line
/sys/devices/system/node/node0/cpulist: "0-1\\n"
/sys/devices/system/node/node1/cpulist: "2-3\\n"
/sys/devices/system/cpu/cpu0/node0: ""
/sys/devices/system/cpu/cpu1/node0: ""
/sys/devices/system/cpu/cpu2/node1: ""
/sys/devices/system/cpu/cpu3/node1: ""
/sys/devices/system/cpu/cpu0/topology/physical_package_id: "0\\n"
/sys/devices/system/cpu/cpu2/topology/physical_package_id: '1'
/sys/devices/system/cpu/cpu2/cache/index3/level: "3\\n"
/sys/devices/system/cpu/cpu2/cache/index3/shared_cpu_list: "2-3\\n"
/sys/devices/pci0000:00/pci_bus/0000:00/cpulistaffinity: "0-1\\n"
/sys/devices/pci0001:80/pci_bus/0001:80/cpulistaffinity: "2-3\\n"
"""


def test_an_overlay_alone_is_a_machine(tmp_path: Path) -> None:
    topology = read_topology(tmp_path, parse_overlay(FOUR_CPUS))
    assert topology.online == topology.present == CPUSet(range(4))
    assert topology.nodes == {0: CPUSet([0, 1]), 1: CPUSet([2, 3])}
    assert topology.sockets == {0: CPUSet([0, 1, 3]), 1: CPUSet([2])}
    assert [cpu.l3 for cpu in topology.cpus.values()] == [None, None, 2, 2]
    assert topology.pcie_roots == {"pci0000:00": CPUSet([0, 1]), "pci0001:80": CPUSet([2, 3])}


def test_files_of_an_overlay_replace_and_add_and_all_others_stay(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t1())
    overlay = parse_overlay(
        '/sys/devices/system/cpu/online: "0-14"\n/sys/devices/system/node/node1/cpulist: "8-14"\n'
        '/sys/devices/system/node/node0/cpulist: "0-7"\n'
    )
    topology = read_topology(tmp_path, overlay)
    assert topology.online == read_online(tmp_path, overlay) == CPUSet(range(15))
    assert topology.nodes == {0: CPUSet(range(8)), 1: CPUSet(range(8, 15))}
    assert topology.cores[-1] == CPUSet([7])
    assert read_topology(tmp_path) == t1()


def test_a_file_of_an_overlay_may_be_empty(tmp_path: Path) -> None:
    write_sysfs(tmp_path, t1(offline=[15]))
    overlay = parse_overlay(f'{ONLINE}: ""\n')
    assert read_online(tmp_path, overlay) == CPUSet(range(15))


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~\n", "null\n", "{}\n"])
def test_an_empty_overlay_changes_nothing(tmp_path: Path, text: str) -> None:
    overlay = parse_overlay(text)
    assert overlay == Overlay.of({})
    assert read_topology(write_sysfs(tmp_path, t1()), overlay) == t1()


@pytest.mark.parametrize(
    "key",
    ["/proc/cpuinfo", "/sys", "/sys/", "sys/devices", "/sys/a/../b", "/sys//a", "/sys/a/", "7", "<<", "", "~", "true"],
)
def test_a_key_that_is_no_path_of_sysfs_is_named(key: str) -> None:
    for quoted in (key, f'"{key}"'):
        with pytest.raises(TopologyError, match=f"o.yaml: '{key}' is no path of sysfs, such as {ONLINE}"):
            parse_overlay(f"\n? {quoted}\n: '0'\n", "o.yaml")


@pytest.mark.parametrize("key", ["/sys" + 33 * "/a", "/sys/" + 1020 * "a", "/sys" + 1_000_000 * "/a"])
def test_a_path_that_is_too_deep_or_too_long_is_named_before_its_directories_are_made(key: str) -> None:
    with pytest.raises(TopologyError, match=f"'{key[:60]}.* is no path of sysfs") as caught:
        parse_overlay(f"? {key}\n: '0'\n")
    assert len(str(caught.value)) < 400


def test_a_deep_path_is_one(tmp_path: Path) -> None:
    path = "/sys" + 31 * "/dir"
    assert parse_overlay(f"{path}: x\n").files == {path: "x"}


@pytest.mark.parametrize("value", ["0", "-1", "true", "False", "~", "null", "", "[0, 1]", "{a: b}"])
def test_a_value_that_is_no_text_is_named(value: str) -> None:
    with pytest.raises(TopologyError, match=f"o.yaml: '{ONLINE}' needs a text for a value, in quotes, such as "):
        parse_overlay(f"/sys/a: x\n{ONLINE}: {value}\n/sys/b: 1\n", "o.yaml")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("'0'", "0"),
        ('"0-3\\n"', "0-3\n"),
        ("0-3", "0-3"),
        ("|\n  0-3", "0-3\n"),
        ("&anchor 0-3", "0-3"),
        # For YAML these are numbers, a switch, a date; for the kernel a mask, and so on.
        ("00000003", "00000003"),
        ("0x3", "0x3"),
        ("10:30", "10:30"),
        ("1_2", "1_2"),
        ("off", "off"),
        ("2026-01-01", "2026-01-01"),
    ],
)
def test_a_text_is_what_is_written(value: str, expected: str) -> None:
    assert parse_overlay(f"{ONLINE}: {value}\n").files[ONLINE] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{ONLINE}: '0'\n{ONLINE}: '1'\n", f"o: has the key '{ONLINE}' a second time in line 2: remove one"),
        (f"{ONLINE}: '0'\n{ONLINE}/more: '1'\n", f"o: '{ONLINE}' is a file and the directory of '{ONLINE}/more'"),
        ("- a\n- b\n", "o: is no mapping of paths to texts, such as "),
        ("text\n", "o: is no mapping of paths to texts"),
        ("7\n", "o: is no mapping of paths to texts"),
        ("? [a]\n: 'x'\n", "o: has a key that is no text in line 1"),
        ("/sys/a: 'x'\n/sys/b: !!str 0\n", "o: has a tag in line 2, which is not supported: write it out"),
        ("/sys/a: &a x\n/sys/b: *a\n", "o: has an alias in line 2, which is not supported: write it out"),
        ("/sys/a: 'x'\n---\n/sys/b: 'y'\n", "o: has 2 documents; leave one"),
        ("---\n---\n", "o: has 2 documents; leave one"),
        ("/sys/a: 'x\n", "o: is no YAML in line 2: "),
        ('/sys/a: "\\x"\n', "o: is no YAML in line 1: "),
        ("\0", "o: is no YAML: "),
        ("/sys/a: @\n", "o: is no YAML in line 1: "),
    ],
)
def test_a_wrong_overlay_is_one_line_that_says_where(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_overlay(text, "o")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_deep_nesting_and_aliases_of_aliases_cost_nothing() -> None:
    with pytest.raises(TopologyError, match="is nested too deep in line 1"):
        parse_overlay("/sys/a: " + "[" * 500 + "]" * 500)
    bomb = "/sys/a: &a [x, x]\n" + "".join(f"/sys/{n}: &b{n} [*a, *a]\n" for n in range(100))
    with pytest.raises(TopologyError, match="has an alias in line 2"):
        parse_overlay(bomb)


def test_more_keys_than_the_largest_machine_needs_are_not_read() -> None:
    with pytest.raises(TopologyError, match=r"o: has more than [0-9]+ values"):
        parse_overlay("".join(f"/sys/{n}: x\n" for n in range(300_000)), "o")


def test_paths_that_make_more_directories_than_the_largest_machine_has_are_refused() -> None:
    deep = "".join(f"/sys/{n}{27 * '/a'}: x\n" for n in range(20_000))
    with pytest.raises(TopologyError, match=r"^o: has more than 500000 files and directories: take it apart$"):
        parse_overlay(deep, "o")


@pytest.mark.parametrize("huge", ["[" + 300_000 * "a," + "]", "\n" + 300_000 * "- a\n", "[" + 300_000 * "[]," + "]"])
def test_a_huge_collection_for_a_value_is_read_to_the_limit_of_values_only(
    huge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    def counted(*arguments: Any) -> Iterator[yaml.Event]:
        nonlocal read
        for event in parse(*arguments):
            read += 1
            yield event

    parse = yaml.parse
    monkeypatch.setattr(yaml, "parse", counted)
    monkeypatch.setattr("nri_cpu.topology.overlay._MAX_VALUES", 1000)
    with pytest.raises(TopologyError, match="has more than 1000 values"):
        parse_overlay(f"{ONLINE}: {huge}")
    assert read < 1010


def test_a_yaml_without_its_c_library_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parse_overlay(FOUR_CPUS)
    monkeypatch.delattr("yaml.CSafeLoader", raising=False)
    assert parse_overlay(FOUR_CPUS) == expected
    for text in ("/sys/a: 'x\n", "\0", '/sys/a: "\\x"\n', '/sys/a: "\\Uffffffff"\n', "/sys/a: 1\n", "%YAML 9.9\n---\n"):
        with pytest.raises(TopologyError):
            parse_overlay(text)


def test_an_overlay_of_thousands_of_files_is_read(tmp_path: Path) -> None:
    text = "".join(f'/sys/devices/system/cpu/cpu{n}/topology/core_id: "{n}\\n"\n' for n in range(4096))
    assert len(read_topology(tmp_path, parse_overlay(text)).cores) == 4096


def test_a_file_that_can_not_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "overlay.yaml"
    with pytest.raises(TopologyError, match=f"sysfs overlay {path}: can't be read: No such file or directory"):
        load_overlay(path)
    path.mkdir()
    with pytest.raises(TopologyError, match=f"sysfs overlay {path}: can't be read: Is a directory"):
        load_overlay(path)


def test_a_file_that_is_none_is_named_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(TopologyError, match=f"sysfs overlay {path}: is no regular file"):
            load_overlay(path)


def test_a_file_that_is_no_text_is_named_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "overlay.yaml"
    path.write_bytes(b"/sys/a: 'x'\n/sys/b: '\xff'\n")
    with pytest.raises(TopologyError, match=f"sysfs overlay {path}:2: is not UTF-8"):
        load_overlay(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "overlay.yaml"
    with path.open("wb") as file:
        file.truncate(4 << 30)
    with pytest.raises(TopologyError, match=f"sysfs overlay {path}: is larger than {MAX_OVERLAY_BYTES} bytes"):
        load_overlay(path)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "overlay.yaml"
    path.write_bytes(b'\xef\xbb\xbf/sys/a: "x"\n')
    assert load_overlay(path).files == {"/sys/a": "x"}

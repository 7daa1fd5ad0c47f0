"""The configuration file: what is written is what counts, and all that is wrong with it is told at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_cpu.config import MAX_CONFIG_BYTES, Config, ConfigError, load, parse
from nri_cpu.cpuset import CPUSet
from tests.unit.config_texts import KEYS, WHOLE, problem, problems

TOKENS = [": ", "\n", "- ", "[", "]", "{", "}", ",", "&a ", "*a", "!!str ", "? ", "'", '"', "\\x", "|\n", "0", "%", "#"]
TOKENS += ["---\n", "...\n", "\t", " ", "groupBy", "checkpoint", "numanode"]


def test_every_key_is_read() -> None:
    assert parse(WHOLE, "c.yaml") == Config(
        api_version="v1alpha1",
        cpu_device_mode="grouped",
        group_by="numanode",
        reserved_cpus=CPUSet.parse("0-1,8"),
        hostname_override="node-1.example",
        kubeconfig=Path("/etc/kubernetes/kubelet.conf"),
        sysfs_overlay=Path("/etc/dra-cpu/overlay.yaml"),
        min_shared_cpus=2,
        checkpoint=Path("/var/lib/dra-cpu/checkpoint.json"),
        cdi_dir=Path("/var/run/cdi"),
        require_plugin=False,
        strategy="distributed",
        numa_nodes=2,
        full_physical_cores=True,
        align_l3=False,
        expose_pcie_roots=True,
        publish_node_allocatable_resource_mapping=True,
        kubelet_cpu_manager_conflict="warn",
    )


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "---\n...\n", "{}"])
def test_a_file_that_sets_nothing_sets_nothing(text: str) -> None:
    assert parse(text, "c.yaml") == Config()
    assert all(getattr(Config(), name) is None for name in Config.__slots__)


def test_json_is_yaml_too() -> None:
    assert parse('{"reservedCPUs": "0", "requirePlugin": true}', "c") == Config(
        reserved_cpus=CPUSet([0]), require_plugin=True
    )


@pytest.mark.fault("A34")
def test_all_that_is_wrong_is_told_at_once_in_the_order_of_the_file() -> None:
    text = """\
cpuDeviceMode: Grouped
reservedcpus: "0"
groupBy: numanode
groupBy: numanode
minSharedCPUs: two
zzz: 1
requirePlugin: "yes"
"""
    assert problems(text) == (
        "c.yaml:1: cpuDeviceMode: 'Grouped' is not individual or grouped; did you mean grouped?",
        "c.yaml:2: reservedcpus: unknown key; did you mean reservedCPUs?",
        "c.yaml:4: groupBy: duplicate key, first on line 3; remove one",
        "c.yaml:5: minSharedCPUs: 'two' is no number of CPUs: write decimal digits without quotes",
        f"c.yaml:6: zzz: unknown key; known are {', '.join(KEYS)}",
        "c.yaml:7: requirePlugin: 'yes' is neither true nor false: write one of them without quotes",
    )


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("reservedcpus", "reservedCPUs"),
        ("reserved-cpus", "reservedCPUs"),
        ("RESERVED_CPUS", "reservedCPUs"),
        ("reservedCPU", "reservedCPUs"),
        ("cpuDevicemode", "cpuDeviceMode"),
        ("groupby", "groupBy"),
        ("min-shared-cpus", "minSharedCPUs"),
        ("kubeConfig", "kubeconfig"),
        ("cdiDirectory", "cdiDir"),
        ("apiversion", "apiVersion"),
        ("hostNameOverride", "hostnameOverride"),
        ("checkpoints", "checkpoint"),
        ("alignL3s", "alignL3"),
        ("numa-nodes", "numaNodes"),
        ("exposePcieRoots", "exposePCIeRoots"),
        ("full-physical-cores", "fullPhysicalCores"),
    ],
)
@pytest.mark.fault("A34")
def test_a_misspelt_key_is_refused_and_the_right_one_named(key: str, meant: str) -> None:
    assert problem(f"{key}: x") == f"c.yaml:1: {key}: unknown key; did you mean {meant}?"


@pytest.mark.parametrize("key", ["v", "bindAddress", "<<", "''", "1", "true", "null", '"a\\nb"', "x" * 500, "é"])
@pytest.mark.fault("A34")
def test_an_unknown_key_is_refused_on_one_short_line(key: str) -> None:
    told = problem(f"{key}: x")
    assert told.startswith("c.yaml:1: ")
    assert "unknown key" in told
    assert len(told) < 400


@pytest.mark.parametrize("key", ["groupBy", '"groupBy"', "'groupBy'"])
@pytest.mark.fault("A34")
def test_a_key_given_twice_is_refused_even_with_the_same_value_and_other_quotes(key: str) -> None:
    assert "duplicate key, first on line 1" in problem(f"groupBy: numanode\n{key}: numanode\n")


def test_a_second_use_does_not_hide_what_is_wrong_with_the_first() -> None:
    assert len(problems("groupBy: x\ngroupBy: numanode\n")) == 2


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("[1]", "a list"),
        ("[]", "a list"),
        ("\n- 1\n- 2\n", "a list"),
        ("{a: b}", "a mapping"),
        ("\n  a: [1, {b: c}]\n", "a mapping"),
        ("*x", "an alias"),
        ("&x 1", "an anchor"),
        ("&x [*x]", "a list"),
        ("!!str 1", "a tag"),
        ("!!python/object/apply:os.system ['true']", "a list"),
        ("!own x", "a tag"),
    ],
)
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.fault("A34")
def test_what_a_flat_file_has_no_use_for_is_refused_by_name(key: str, written: str, words: str) -> None:
    told = problem(f"{key}: {written}\n")
    assert told.startswith(f"c.yaml:1: {key}: ")
    assert words in told


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: b: c", 1),
        ("groupBy: numanode\n\tcdiDir: x", 2),
        ("groupBy: 'numanode", 1),
        ("{", 1),
        ("[1", 1),
        ("- a\n- b", 1),
        ("text", 1),
        ("7", 1),
        ("~", 1),
        ("!!map {}", 1),
        ("&a {groupBy: numanode}", 1),
        ("*a", 1),
        ("groupBy: numanode\n---\ngroupBy: numanode", 2),
        ("---\n---\n", 2),
        ("%YAML 2.0\n---\n{}", 1),
        ("groupBy: numanode\n\x07", 2),
        ("\ud800", 1),
        ("\0", 1),
        ('kubeconfig: "\\UFFFFFFFF"', 1),
        ("%YAML 1." + "9" * 5000 + "\n---\n{}", 1),
        ("? [a]\n: b", 1),
        ("? {a: b}\n: b", 1),
        ("&a groupBy: numanode", 1),
        ("\n!!str groupBy: numanode", 2),
    ],
)
def test_what_is_no_flat_yaml_is_refused_with_its_line(text: str, line: int) -> None:
    told = problems(text)
    assert any(one.startswith((f"c.yaml:{line}: ", f"c.yaml:{line + 1}: ")) for one in told), told


def test_what_was_found_before_a_fault_of_the_syntax_is_told_too() -> None:
    first, second = problems("reservedcpus: 1\ngroupBy: [\n")
    assert "did you mean reservedCPUs?" in first
    assert "is not YAML" in second


@pytest.mark.fault("A34")
def test_a_bomb_of_aliases_is_never_expanded() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert len(problems(bomb)) == 9


@pytest.mark.parametrize("opened", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused_early(opened: str) -> None:
    assert "nested too deep" in problems("groupBy: " + "[" * 20 + opened * 10_000)[-1]
    assert problems("groupBy:\n  " + opened * 10_000)
    assert problems(opened * 10_000)


def test_text_over_the_limit_is_refused_unread() -> None:
    assert "is larger than" in problem("#" * (MAX_CONFIG_BYTES + 1))
    assert parse("#" * MAX_CONFIG_BYTES, "c") == Config()


@given(st.text(max_size=200))
def test_any_text_gives_a_config_or_our_error(text: str) -> None:
    try:
        parse(text, "c")
    except ConfigError as error:
        told = error.problems
    else:
        told = ("none",)
    assert told


@given(st.lists(st.sampled_from(TOKENS), max_size=20).map("".join))
def test_any_mixture_of_yaml_gives_a_config_or_our_error(text: str) -> None:
    try:
        parse(text, "c")
    except ConfigError as error:
        told = error.problems
    else:
        told = ("none",)
    assert told


def test_a_file_is_read_with_its_path_in_messages(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(WHOLE)
    assert load(path) == parse(WHOLE, "c")
    path.write_bytes(b"\xef\xbb\xbfgroupBy: numanode\n")
    assert load(path) == Config(group_by="numanode")
    path.write_text("\nx: 1\n")
    with pytest.raises(ConfigError, match=f"^{path}:2: x: unknown key"):
        load(path)


def test_a_file_that_can_not_be_read_is_our_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{tmp_path / 'none'}: can't be read: No such file or directory; check"):
        load(tmp_path / "none")
    with pytest.raises(ConfigError, match=f"^{tmp_path}: is no regular file; name one"):
        load(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_bytes(b"groupBy: numanode\n\xff\xfe")
    with pytest.raises(ConfigError, match=f"^{path}:2: is not UTF-8"):
        load(path)
    os.truncate(path, 1 << 32)
    with pytest.raises(ConfigError, match=f"^{path}: is larger than {MAX_CONFIG_BYTES} bytes"):
        load(path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for other in (pipe, Path("/dev/zero")):
        with pytest.raises(ConfigError, match=f"^{other}: is no regular file; name one"):
            load(other)


def test_yaml_is_imported_only_when_there_is_something_to_read() -> None:
    code = (
        "import sys, nri_cpu.config as c; print('yaml' in sys.modules); c.parse('', ''); print('yaml' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.split() == ["False", "True"]


def test_the_config_is_immutable() -> None:
    with pytest.raises(AttributeError):
        Config().group_by = "x"  # type: ignore[misc]

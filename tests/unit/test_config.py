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

WHOLE = """\
# all of it
apiVersion: v1alpha1
cpuDeviceMode: grouped
groupBy: numanode
reservedCPUs: 0-1,8
hostnameOverride: node-1.example
kubeconfig: /etc/kubernetes/kubelet.conf
sysfsOverlay: "/etc/dra-cpu/overlay.yaml"
minSharedCPUs: 2
checkpoint: /var/lib/dra-cpu/checkpoint.json
cdiDir: '/var/run/cdi'
requirePlugin: false   # nobody waits
strategy: distributed
numaNodes: 2
fullPhysicalCores: true
alignL3: false
exposePCIeRoots: true
publishNodeAllocatableResourceMapping: true
"""


NO_CPUS = ["off", "no", "true", "1_2", "10:30", "0x10", "0b1", "1e3", "1.0", "-1", "+1", "2026-11-30", "3-1", "9999"]
NO_CPUS += ["0-99999999", "all", "0-", "0,,1", ".inf", "'0x'", "0--1", "٣"]
TOKENS = [": ", "\n", "- ", "[", "]", "{", "}", ",", "&a ", "*a", "!!str ", "? ", "'", '"', "\\x", "|\n", "0", "%", "#"]
TOKENS += ["---\n", "...\n", "\t", " ", "groupBy", "checkpoint", "numanode"]
KEYS = [line.partition(":")[0] for line in WHOLE.splitlines()[1:]]


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as error:
        parse(text, "c.yaml")
    assert str(error.value) == "; ".join(error.value.problems)
    assert "\n" not in str(error.value)
    return error.value.problems


def problem(text: str) -> str:
    (only,) = problems(text)
    return only


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
    )


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "---\n...\n", "{}"])
def test_a_file_that_sets_nothing_sets_nothing(text: str) -> None:
    assert parse(text, "c.yaml") == Config()
    assert all(getattr(Config(), name) is None for name in Config.__slots__)


def test_json_is_yaml_too() -> None:
    assert parse('{"reservedCPUs": "0", "requirePlugin": true}', "c") == Config(
        reserved_cpus=CPUSet([0]), require_plugin=True
    )


@pytest.mark.parametrize(
    ("key", "field", "words"),
    [
        ("groupBy", "group_by", ["numanode", "socket", "machine"]),
        ("strategy", "strategy", ["packed", "spread", "distributed"]),
        ("numaNodes", "numa_nodes", ["auto", "all"]),
    ],
)
def test_every_word_of_a_key_is_known(key: str, field: str, words: list[str]) -> None:
    for word in words:
        assert getattr(parse(f"{key}: {word}", "c"), field) == word
        assert getattr(parse(f'{key}: "{word}"', "c"), field) == word


@pytest.mark.fault("A34")
@pytest.mark.parametrize(
    "written", ['"2"', "0", "-1", "08", "1_0", "0x2", "2.0", "1e3", "one", "Auto", "off", "true", "[all]", "'0'", "+1"]
)
def test_numa_nodes_are_a_word_or_a_number_without_quotes(written: str) -> None:
    told = problem(f"numaNodes: {written}")
    assert told.startswith("c.yaml:1: numaNodes: ")
    assert told.endswith("is not auto, all or a number from 1: write one of them, a number without quotes")


def test_more_numa_nodes_than_there_can_be_are_refused() -> None:
    assert parse("numaNodes: 8192", "c").numa_nodes == 8192
    assert problem("numaNodes: 8193") == (
        "c.yaml:1: numaNodes: 8193 is more than the 8192 NUMA nodes that a machine could have"
    )


def test_of_three_words_all_are_named() -> None:
    assert problem("groupBy: numa") == (
        "c.yaml:1: groupBy: 'numa' is not numanode, socket or machine; did you mean numanode?"
    )
    assert problem("strategy: 3").endswith('if it is meant as text, put it in quotes: "3"')


def test_where_one_word_is_right_it_is_named() -> None:
    assert problem("apiVersion: v1") == "c.yaml:1: apiVersion: 'v1' is not v1alpha1; write v1alpha1"


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
    ("written", "cpus"),
    [
        ("0", "0"),
        ("2", "2"),
        ("'2'", "2"),
        ("08", "8"),
        ("010", "10"),
        ("0-3,8", "0-3,8"),
        ("0,1", "0-1"),
        ('"0-1"', "0-1"),
        ('""', ""),
        ("''", ""),
        ("|\n  0-3\n", "0-3"),
        ("4095,511,0-2", "0-2,511,4095"),
    ],
)
@pytest.mark.fault("A34", "P-4")
def test_reserved_cpus_are_what_is_written(written: str, cpus: str) -> None:
    assert parse(f"reservedCPUs: {written}", "c").reserved_cpus == CPUSet.parse(cpus)


@pytest.mark.parametrize(
    "written",
    NO_CPUS,
)
@pytest.mark.fault("A34")
def test_reserved_cpus_are_never_something_else(written: str) -> None:
    told = problem(f"reservedCPUs: {written}")
    assert told.startswith("c.yaml:1: reservedCPUs: ")
    assert written.strip("'")[:4] in told


@pytest.mark.parametrize("written", ["", "~", "null"])
@pytest.mark.parametrize("key", ["reservedCPUs", "groupBy", "kubeconfig", "checkpoint", "hostnameOverride"])
def test_a_key_without_a_value_is_refused(key: str, written: str) -> None:
    assert problem(f"{key}: {written}") == f"c.yaml:1: {key}: has no value; write one, or remove the line"


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


@pytest.mark.parametrize("written", ["1", "1.5", "true", "off", "2026-11-30", "0x1F", "1_000", "12:30:45"])
@pytest.mark.parametrize("key", ["hostnameOverride", "kubeconfig", "sysfsOverlay", "checkpoint", "cdiDir"])
@pytest.mark.fault("A34")
def test_text_that_yaml_takes_for_something_else_must_be_quoted(key: str, written: str) -> None:
    assert problem(f"{key}: {written}").endswith(f'if it is meant as text, put it in quotes: "{written}"')
    if key != "hostnameOverride":
        parse(f'{key}: "{written}"', "c")


@pytest.mark.parametrize(
    "written", ["01", "0x1", "1_0", "-1", "+1", "1.0", "1e1", '"1"', "1:30", "8193", "9" * 400, "true", "~"]
)
def test_a_number_of_cpus_is_decimal_digits_and_nothing_else(written: str) -> None:
    assert "minSharedCPUs: " in problem(f"minSharedCPUs: {written}")


def test_numbers_of_cpus_from_none_to_all() -> None:
    assert parse("minSharedCPUs: 0", "c").min_shared_cpus == 0
    assert parse("minSharedCPUs: 8192", "c").min_shared_cpus == 8192


@pytest.mark.parametrize("written", ["yes", "no", "on", "off", "True", "TRUE", "1", '"true"', "~", "y"])
def test_a_switch_is_true_or_false_and_nothing_else(written: str) -> None:
    assert "is neither true nor false" in problem(f"requirePlugin: {written}")
    assert parse("requirePlugin: true", "c").require_plugin is True


@pytest.mark.parametrize("written", ["v1", "v1beta1", "1", "V1alpha1"])
def test_another_api_version_is_refused(written: str) -> None:
    assert problem(f"apiVersion: {written}").startswith("c.yaml:1: apiVersion: ")


@pytest.mark.parametrize("written", ["Node", "-a", "a..b", "a_b", "a/b", "a" * 254, '"a\\n"', '"a b"'])
def test_a_name_that_no_node_can_have_is_refused(written: str) -> None:
    assert problem(f"hostnameOverride: {written}").startswith("c.yaml:1: hostnameOverride: ")


def test_empty_text_is_not_set_where_the_flag_means_that_too() -> None:
    assert parse('hostnameOverride: ""\nkubeconfig: ""\nsysfsOverlay: ""\n', "c") == Config()
    for key in ("checkpoint", "cdiDir"):
        assert "is an empty path" in problem(f'{key}: ""')
    for path in ("/", ".", "/var/lib/dra-cpu/.."):
        assert f"'{path}' is a directory; name a file in it" in problem(f"checkpoint: {path}")
    assert "is not numanode" in problem('groupBy: ""')


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
    with pytest.raises(ConfigError, match=f"^{tmp_path}: can't be read: Is a directory"):
        load(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_bytes(b"groupBy: numanode\n\xff\xfe")
    with pytest.raises(ConfigError, match=f"^{path}:2: is not UTF-8"):
        load(path)
    for huge in (Path("/dev/zero"), path):
        os.truncate(path, 1 << 32)
        with pytest.raises(ConfigError, match=f"^{huge}: is larger than {MAX_CONFIG_BYTES} bytes"):
            load(huge)


def test_yaml_is_imported_only_when_there_is_something_to_read() -> None:
    code = (
        "import sys, nri_cpu.config as c; print('yaml' in sys.modules); c.parse('', ''); print('yaml' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.split() == ["False", "True"]


def test_the_config_is_immutable() -> None:
    with pytest.raises(AttributeError):
        Config().group_by = "x"  # type: ignore[misc]

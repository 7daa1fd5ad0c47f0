"""Values of the configuration file: what is written is what counts, and what doesn't fit its key is refused by name."""

from __future__ import annotations

import pytest

from nri_cpu.config import Config, parse
from nri_cpu.cpuset import CPUSet
from tests.unit.config_texts import problem

NO_CPUS = ["off", "no", "true", "1_2", "10:30", "0x10", "0b1", "1e3", "1.0", "-1", "+1", "2026-11-30", "3-1", "9999"]
NO_CPUS += ["0-99999999", "all", "0-", "0,,1", ".inf", "'0x'", "0--1", "٣"]


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

"""Promises of opaque parameters: exactly the documented form, one error that names key and value, merged key by key."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.allocation import AllocationOptions, NumaNodes, OptionsError, Strategy
from dra.cpu_config import CpuConfig, CpuConfigError, merge, node_default, parse_cpu_config
from nri_cpu.config import Config, parse
from nri_cpu.cpuset import CPUSet

PATH = "config[0].opaque.parameters"


def parameters(**cpu_config: object) -> dict[str, object]:
    return {"apiVersion": "v1alpha1", "cpuConfig": cpu_config}


def refusal(value: object) -> str:
    with pytest.raises(CpuConfigError) as caught:
        parse_cpu_config(value, PATH)
    text = str(caught.value)
    assert text.startswith(PATH)
    assert text.isprintable()
    assert len(text) < 400
    return text.removeprefix(PATH)


def test_parameters_of_dra_driver_cpu_are_read() -> None:
    read = parse_cpu_config({"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "2-5"}}, PATH)
    assert read == CpuConfig(cpuset=CPUSet.parse("2-5"))


@pytest.mark.fault("B5")
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"strategy": "packed"}, CpuConfig(Strategy.PACKED)),
        ({"strategy": "spread"}, CpuConfig(Strategy.SPREAD)),
        ({"strategy": "distributed", "numaNodes": 2}, CpuConfig(Strategy.DISTRIBUTED, 2)),
        ({"numaNodes": "auto"}, CpuConfig(numa_nodes=NumaNodes.AUTO)),
        ({"numaNodes": "all"}, CpuConfig(numa_nodes=NumaNodes.ALL)),
        ({"numaNodes": 8192}, CpuConfig(numa_nodes=8192)),
        ({"fullPhysicalCores": True}, CpuConfig(full_physical_cores=True)),
        ({"fullPhysicalCores": False, "alignL3": False}, CpuConfig(full_physical_cores=False, align_l3=False)),
        ({"cpuset": "0,4-6"}, CpuConfig(cpuset=CPUSet([0, 4, 5, 6]))),
        ({"cpuset": "3,1,2-3"}, CpuConfig(cpuset=CPUSet([1, 2, 3]))),
    ],
)
def test_every_key_is_read_and_said_again(written: dict[str, object], read: CpuConfig) -> None:
    assert parse_cpu_config(parameters(**written), PATH) == read
    assert parse_cpu_config(parameters(**read.as_json()), PATH) == read


@pytest.mark.fault("A13")
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, " is missing or null where an object belongs"),
        ([], " is a list where an object belongs"),
        ("cpuset: 1", " is 'cpuset: 1' where an object belongs"),
        (7, " is 7 where an object belongs"),
        ({}, ".apiVersion is missing or null, not v1alpha1, the one that is known here"),
        ({"cpuConfig": {"cpuset": "0-3"}}, ".apiVersion is missing or null, not v1alpha1, the one that is known here"),
        (parameters(cpuset="1") | {"apiVersion": "v1beta1"}, ".apiVersion is 'v1beta1', not v1alpha1"),
        (parameters(cpuset="1") | {"apiVersion": 1}, ".apiVersion is 1, not v1alpha1"),
        (parameters(cpuset="1") | {"apiVersion": ["v1alpha1"]}, ".apiVersion is a list, not v1alpha1"),
        (parameters(cpuset="1") | {"kind": "X"}, " has the unknown key 'kind' ('X'); known are apiVersion, cpuConfig"),
        ({"apiVersion": "v1alpha1"}, ".cpuConfig is missing or null where an object belongs"),
        ({"apiVersion": "v1alpha1", "cpuConfig": None}, ".cpuConfig is missing or null where an object belongs"),
        ({"apiVersion": "v1alpha1", "cpuConfig": "2-5"}, ".cpuConfig is '2-5' where an object belongs"),
        (parameters(), ".cpuConfig is empty: set cpuset, strategy, numaNodes, fullPhysicalCores, alignL3"),
        (parameters(cpuSet="1"), ".cpuConfig has the unknown key 'cpuSet' ('1'); known are cpuset, strategy"),
        (parameters(**{"x\n": {}}), ".cpuConfig has the unknown key 'x\\n' (an object)"),
    ],
)
def test_what_is_no_object_of_this_version_is_refused(value: object, told: str) -> None:
    assert refusal(value).startswith(told)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("strategy", "Packed", " is 'Packed': it must be packed, spread, distributed"),
        ("strategy", "", " is '': it must be"),
        ("strategy", None, " is missing or null: it must be"),
        ("strategy", ["packed"], " is a list: it must be"),
        ("strategy", True, " is true: it must be"),
        ("strategy", "x" * 5000, " is 'xxx"),
        ("numaNodes", "2", " is '2': it must be auto, all or a number from 1 to 8192, without quotes"),
        ("numaNodes", "", " is '': it must be"),
        ("numaNodes", 0, " is 0: it must be"),
        ("numaNodes", -1, " is -1: it must be"),
        ("numaNodes", 8193, " is 8193: it must be"),
        ("numaNodes", 10**400, " is a number of very many digits: it must be"),
        ("numaNodes", 2.0, " is 2.0: it must be"),
        ("numaNodes", True, " is true: it must be"),
        ("numaNodes", None, " is missing or null: it must be"),
        ("numaNodes", {"all": True}, " is an object: it must be"),
        ("fullPhysicalCores", "true", " is 'true': it must be true or false, without quotes"),
        ("fullPhysicalCores", 1, " is 1: it must be"),
        ("fullPhysicalCores", None, " is missing or null: it must be"),
        ("alignL3", "no", " is 'no': it must be"),
        ("alignL3", 0, " is 0: it must be"),
        ("cpuset", "", " is empty: name CPUs, such as 2-5,8, or take it away"),
        ("cpuset", " ", " is empty: name CPUs"),
        ("cpuset", 2, ' is 2: it must be a list of CPUs in quotes, such as "2-5,8"'),
        ("cpuset", [2, 3], " is a list: it must be"),
        ("cpuset", None, " is missing or null: it must be"),
        ("cpuset", True, " is true: it must be"),
        ("cpuset", "abc", ": 'abc' is not a list of CPUs such as 0-3,8: 'abc'"),
        ("cpuset", "5-2", ": '5-2' has the reversed range 5-2"),
        ("cpuset", "1,,2", ": '1,,2' is not a list of CPUs"),
        ("cpuset", "-1", ": '-1' is not a list"),
        ("cpuset", "0-99999999", ": '0-99999999' has CPU 99999999, the highest possible is 8191"),
        ("cpuset", "1\n2", ": '1\\n2' is not a list"),
        ("cpuset", "\u0663", ": '\u0663' is not a list"),
    ],
)
@pytest.mark.fault("A13")
def test_a_wrong_value_is_named_with_its_key(key: str, value: object, told: str) -> None:
    assert refusal(parameters(**{key: value})).startswith(f".cpuConfig.{key}{told}")


@pytest.mark.parametrize("other", [{"strategy": "packed"}, {"alignL3": True}, {"numaNodes": 1, "alignL3": True}])
def test_a_cpuset_excludes_the_others(other: dict[str, object]) -> None:
    assert refusal(parameters(cpuset="2-5", **other)) == (
        f".cpuConfig.cpuset: 2-5 excludes {', '.join(other)}: it leaves nothing to choose"
    )
    with pytest.raises(OptionsError, match=r"cpuset: 2-5, .*: a cpuset leaves nothing to choose"):
        merge([CpuConfig(cpuset=CPUSet.parse("2-5")), parse_cpu_config(parameters(**other), PATH)]).options()


def test_parameters_that_no_api_server_takes_are_refused() -> None:
    many = ",".join(str(cpu) for cpu in range(0, 8000, 2))
    assert refusal(parameters(cpuset=many)).startswith(" has ")
    assert refusal(parameters(cpuset=many)).endswith("10240 are the most that parameters can have")
    assert refusal({"a\ud800" * 3000: 1}).startswith(" has ")
    fits = ",".join(str(cpu) for cpu in range(0, 4000, 2))
    assert len(parse_cpu_config(parameters(cpuset=fits), PATH).cpuset or ()) == 2000


def test_parameters_without_end_are_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    ring: dict[str, object] = {}
    ring["x"] = ring
    for value in (deep, ring, {"x": object()}, {"x": float("nan")} | {"y": {1}}):
        assert refusal(value) == " is no JSON, or nested too deep"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["cpuset", "strategy", "numaNodes", "fullPhysicalCores", "alignL3", "x"])
WORDS = st.sampled_from(["packed", "all", "2-5", 2, True, "spread", "distributed"])


@given(JSON | st.dictionaries(KEYS, JSON | WORDS, max_size=3).map(lambda found: parameters(**found)))
def test_any_value_gives_a_config_or_our_error(value: object) -> None:
    try:
        read = parse_cpu_config(value, PATH)
    except CpuConfigError as error:
        told = str(error)
    else:
        told = str(read.as_json())
    assert told.isprintable()
    assert told != "{}"


def test_what_is_set_later_counts_key_by_key() -> None:
    merged = merge(
        [
            CpuConfig(Strategy.DISTRIBUTED, NumaNodes.ALL, align_l3=False),
            CpuConfig(),
            CpuConfig(numa_nodes=2, full_physical_cores=True),
            CpuConfig(full_physical_cores=False),
        ]
    )
    assert merged == CpuConfig(Strategy.DISTRIBUTED, 2, full_physical_cores=False, align_l3=False)
    assert merged.options() == AllocationOptions(Strategy.DISTRIBUTED, 2, full_physical_cores=False, align_l3=False)


def test_what_is_set_is_told_as_it_is_written() -> None:
    everything = CpuConfig(Strategy.DISTRIBUTED, 2, full_physical_cores=True, align_l3=False)
    assert str(everything) == "strategy: distributed, numaNodes: 2, fullPhysicalCores: true, alignL3: false"
    assert str(CpuConfig(cpuset=CPUSet([2, 3]))) == "cpuset: 2-3"
    assert str(CpuConfig()) == "nothing"


def test_what_is_not_set_is_packed_and_aligned() -> None:
    assert merge([]) == CpuConfig()
    assert CpuConfig().options() == AllocationOptions(Strategy.PACKED, align_l3=True)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (CpuConfig(Strategy.SPREAD, full_physical_cores=True), "spread.*fullPhysicalCores"),
        (CpuConfig(numa_nodes=2), "numaNodes: 2 needs strategy: distributed"),
        (CpuConfig(Strategy.PACKED, NumaNodes.ALL), "numaNodes: all needs strategy: distributed"),
        (CpuConfig(cpuset=CPUSet([1])), "cpuset: 1: a cpuset leaves nothing to choose"),
    ],
)
def test_what_excludes_each_other_has_no_options(config: CpuConfig, told: str) -> None:
    with pytest.raises(OptionsError, match=told):
        config.options()


def test_the_configuration_file_is_the_nodes_default() -> None:
    text = "strategy: distributed\nnumaNodes: all\nfullPhysicalCores: true\nalignL3: false\n"
    assert node_default(parse(text, "c")) == CpuConfig(
        Strategy.DISTRIBUTED, NumaNodes.ALL, full_physical_cores=True, align_l3=False
    )
    assert node_default(parse("strategy: distributed\nnumaNodes: 3\n", "c")).numa_nodes == 3
    assert node_default(Config()) == CpuConfig()
    with pytest.raises(OptionsError, match=r"spread.*fullPhysicalCores"):
        node_default(parse("strategy: spread\nfullPhysicalCores: true\n", "c"))
    told = "numaNodes: all needs strategy: distributed, not packed: set that strategy beside it, or take numaNodes away"
    with pytest.raises(OptionsError, match=f"^{told}$"):
        node_default(parse("strategy: packed\nnumaNodes: all\n", "c"))


def test_a_number_of_nodes_may_wait_in_the_configuration_for_a_class_that_says_distributed() -> None:
    default = node_default(parse("numaNodes: 2\n", "c"))
    assert default == CpuConfig(numa_nodes=2)
    merged = merge([default, CpuConfig(Strategy.DISTRIBUTED)])
    assert merged.options() == AllocationOptions(Strategy.DISTRIBUTED, 2)
    with pytest.raises(OptionsError, match="numaNodes: 2 needs strategy: distributed"):
        default.options()

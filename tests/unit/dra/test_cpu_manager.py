"""Promises about the kubelet's own CPU manager: with a static policy dra-cpu does not start beside it unasked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from dra.commands.cpu_manager import STATE, check_cpu_manager
from dra.commands.errors import CommandError


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), format="{message}")
    yield lines
    logger.remove(sink)


def state(root: Path, policy: object = "static") -> Path:
    path = root / STATE
    path.write_text(json.dumps({"policyName": policy, "defaultCpuSet": "0-15", "checksum": 1353318690}))
    return path


@pytest.mark.fault("B8", "A39")
def test_a_static_policy_is_refused_with_the_file_and_the_way_out(tmp_path: Path) -> None:
    path = state(tmp_path)
    with pytest.raises(CommandError) as caught:
        check_cpu_manager(tmp_path, refuse=True)
    said = str(caught.value)
    assert said.startswith(f"{path} says that the kubelet's CPU manager has policy static")
    for way_out in (
        "drain the node",
        "cpuManagerPolicy to none",
        "remove that file",
        "kubeletCPUManagerConflict: warn",
    ):
        assert way_out in said


@pytest.mark.fault("B8")
def test_a_static_policy_is_a_warning_where_that_is_configured(tmp_path: Path, log: list[str]) -> None:
    state(tmp_path)
    check_cpu_manager(tmp_path, refuse=False)
    assert ["policy static" in line for line in log] == [True]


@pytest.mark.fault("B8")
@pytest.mark.parametrize("policy", ["none", "", "something-new"])
def test_any_other_policy_is_no_conflict(tmp_path: Path, log: list[str], policy: str) -> None:
    state(tmp_path, policy)
    check_cpu_manager(tmp_path, refuse=True)
    assert log == []


@pytest.mark.fault("B8")
def test_no_state_is_no_conflict(tmp_path: Path, log: list[str]) -> None:
    check_cpu_manager(tmp_path, refuse=True)
    check_cpu_manager(tmp_path / "nowhere", refuse=True)
    assert log == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[]", "it has no policyName in words: a list"),
        (b"null", "it has no policyName in words: missing or null"),
        (b'{"policyName": null}', "it has no policyName in words: an object"),
        (b'{"policyName": ["static"]}', "it has no policyName in words"),
        (b"\xff\xfe\xfa", "decode"),
        (b"[" * 100_000, "maximum recursion depth"),
        (b" " * ((4 << 20) + 1), "more than 4194304 bytes"),
    ],
)
def test_a_state_that_can_not_be_understood_is_a_warning(
    tmp_path: Path, log: list[str], content: bytes, why: str
) -> None:
    (tmp_path / STATE).write_bytes(content)
    check_cpu_manager(tmp_path, refuse=True)
    (line,) = log
    assert line.startswith(f"whether the kubelet pins CPUs itself is unknown, {tmp_path / STATE} can't be used: ")
    assert why in line
    assert line.endswith("; its cpuManagerPolicy must be none")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "FIFO"])
def test_a_state_that_is_no_file_is_a_warning_and_keeps_nobody_waiting(
    tmp_path: Path, log: list[str], make: object
) -> None:
    make(tmp_path / STATE)  # type: ignore[operator]  # either
    check_cpu_manager(tmp_path, refuse=True)
    assert len(log) == 1


@given(st.binary(max_size=200))
def test_whatever_is_in_the_file_does_not_end_the_start(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / STATE).write_bytes(content)
    check_cpu_manager(root, refuse=True)

"""Building the test runtime: once, for every version of NRI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hack.go import BuildError, Sources
from tests.nri_runtime import build

HACK = Path(__file__).parents[2] / "hack" / "nri-runtime"


def test_what_is_built_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.programs(build.NEWEST)
    monkeypatch.setattr(Sources, "find_go", lambda _: pytest.fail("asked for Go"))
    assert build.programs(build.NEWEST) == first
    assert first.runtime.is_file()
    assert first.floor.is_file()
    assert not first.runtime.is_relative_to(HACK.parent.parent)


def test_an_unknown_version_is_named_with_those_that_there_are() -> None:
    with pytest.raises(BuildError, match=r"'0\.7\.0'; there are 0\.6\.1, 0\.8\.0, 0\.12\.5"):
        build.programs("0.7.0")


@pytest.mark.parametrize("arguments", [[], ["built"], ["run"], ["build", "all"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, HACK, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: hack/nri-runtime build")


def test_the_command_prints_the_paths_of_all_programs() -> None:
    done = subprocess.run([sys.executable, HACK, "build"], capture_output=True, text=True, check=True)
    expected = [
        path for version in build.VERSIONS for path in (build.programs(version).runtime, build.programs(version).floor)
    ]
    assert done.stdout.split() == [str(path) for path in expected]

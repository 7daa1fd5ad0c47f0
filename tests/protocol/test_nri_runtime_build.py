"""Building the test runtime: once, and with one line of advice where it can't be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nri_runtime import build

HACK = Path(__file__).parents[2] / "hack" / "nri-runtime"


@pytest.fixture
def nothing_built_and_no_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache and nothing on PATH but what a test puts into the folder that this returns."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_GO_PLACES", ())
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    return path


def test_what_is_built_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.programs(build.NEWEST)
    monkeypatch.setattr(build, "find_go", lambda: pytest.fail("asked for Go"))
    assert build.programs(build.NEWEST) == first
    assert first.runtime.is_file()
    assert first.floor.is_file()
    assert not first.runtime.is_relative_to(HACK.parent.parent)


@pytest.mark.usefixtures("nothing_built_and_no_go")
def test_without_go_one_line_says_what_to_install() -> None:
    with pytest.raises(build.BuildError, match=r"Go 1.24 or newer is needed, none here: install golang-go") as error:
        build.programs(build.NEWEST)
    assert "\n" not in str(error.value)


def test_an_old_go_is_not_used(nothing_built_and_no_go: Path) -> None:
    go = nothing_built_and_no_go / "go"
    go.write_text("#!/bin/sh\necho go1.19.8\n")
    go.chmod(0o755)
    with pytest.raises(build.BuildError, match=f"only older ones here .{go}"):
        build.programs(build.NEWEST)


def test_a_go_that_fetches_what_our_modules_ask_for_is_used(nothing_built_and_no_go: Path) -> None:
    go = nothing_built_and_no_go / "go"
    go.write_text('#!/bin/sh\n[ "$GOTOOLCHAIN" = auto ] && [ -e go.mod ] && echo go1.24.0 || echo go1.22.1\n')
    go.chmod(0o755)
    assert build.find_go() == str(go)


def test_a_broken_go_is_not_used(nothing_built_and_no_go: Path) -> None:
    go = nothing_built_and_no_go / "go"
    go.write_text("#!/bin/sh\nexit 1\n")
    go.chmod(0o755)
    with pytest.raises(build.BuildError, match="install golang-go"):
        build.programs(build.NEWEST)


@pytest.mark.parametrize("module", build.MODULES.values())
def test_no_module_needs_a_newer_go_than_is_asked_for(module: str) -> None:
    assert "\ngo {}.{}.0\n".format(*build.OLDEST_GO) in (build.SOURCES / module).read_text()


def test_an_unknown_version_is_named_with_those_that_there_are() -> None:
    with pytest.raises(build.BuildError, match=r"'0\.7\.0'; there are 0\.6\.1, 0\.8\.0, 0\.12\.5"):
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

"""Programs in Go that tests need: with the Go that is there, or one line of advice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hack import go
from hack.go import BuildError, Sources
from tests.kubelet_allocator import build as kubelet_allocator
from tests.nri_runtime import build as nri_runtime

every_program = pytest.mark.parametrize(
    "sources", [nri_runtime.SOURCES, kubelet_allocator.SOURCES], ids=lambda sources: sources.folder.name
)


@pytest.fixture
def bin_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Go and apt, with nothing on PATH but what a test puts into the folder that this returns."""
    monkeypatch.setattr(go, "_GO_PLACES", ())
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    return path


def put(folder: Path, script: str) -> Path:
    program = folder / "go"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


@every_program
@pytest.mark.usefixtures("bin_alone")
def test_without_go_one_line_says_what_to_install(sources: Sources) -> None:
    needed = "{}.{}".format(*sources.oldest_go)
    with pytest.raises(BuildError, match=f"Go {needed} or newer is needed, none here: install golang-go") as error:
        sources.find_go()
    assert "\n" not in str(error.value)


@every_program
def test_an_old_go_is_not_used(sources: Sources, bin_alone: Path) -> None:
    old = put(bin_alone, "echo go1.19.8")
    with pytest.raises(BuildError, match=f"only older ones here .{old}"):
        sources.find_go()


@every_program
def test_a_go_that_fetches_what_our_modules_ask_for_is_used(sources: Sources, bin_alone: Path) -> None:
    needed = "{}.{}".format(*sources.oldest_go)
    able = put(bin_alone, f'[ "$GOTOOLCHAIN" = auto ] && [ -e go.mod ] && echo go{needed}.0 || echo go1.22.1')
    assert sources.find_go() == str(able)


@every_program
def test_a_broken_go_is_not_used(sources: Sources, bin_alone: Path) -> None:
    put(bin_alone, "exit 1")
    with pytest.raises(BuildError, match="install golang-go"):
        sources.find_go()


@every_program
def test_no_module_needs_a_newer_go_than_is_asked_for(sources: Sources) -> None:
    modules = [text.decode() for name, text in sources.contents() if name.endswith(".mod")]
    assert modules
    for text in modules:
        assert re.findall(r"^go (.*)$", text, re.M) == ["{}.{}.0".format(*sources.oldest_go)]


def test_a_build_depends_on_every_file_that_go_reads_and_on_no_other(tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum", "a.go", "link.s", "sub/b.go", "README.md", "driver.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    contents = dict(Sources(tmp_path, (1, 24)).contents())
    assert contents == {name: name.encode() for name in ("go.mod", "go.sum", "a.go", "link.s", "sub/b.go")}


def test_code_that_gofmt_would_change_is_named(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n")
    (tmp_path / "good.go").write_text("package x\n")
    Sources(tmp_path, (1, 21)).check_format()
    (tmp_path / "bad.go").write_text("package  x\n")
    with pytest.raises(BuildError, match=r"gofmt would change bad\.go in "):
        Sources(tmp_path, (1, 21)).check_format()


def test_a_command_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"sh -c echo why; exit 3 failed:\nwhy"):
        Sources(tmp_path, (1, 24)).run(["sh", "-c", "echo why; exit 3"])


def test_a_build_error_is_one_message_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise BuildError("no Go")

    assert go.exit_code("hack/x", fail) == 1
    assert capsys.readouterr().err == "hack/x: no Go\n"

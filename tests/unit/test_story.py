"""The demo: what is not true on the node ends it with a line that says what, and exit code 1."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from hack import story
from hack.node.errors import NodeError
from hack.story import Clock, NotTrueError, Owner, Story
from nri_cpu.cpuset import CPUSet


@pytest.mark.parametrize(
    "error", [NotTrueError("CPUs of web: 0-15, and not 2-15"), NodeError("no box"), TimeoutError("x: not within 5 s")]
)
def test_what_is_not_true_or_fails_is_one_line_and_exit_code_1(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(**_options: object) -> NoReturn:
        raise error

    monkeypatch.setattr(story, "start", start)
    assert story.main() == 1
    assert capsys.readouterr().err == f"demo: {error}\n"


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("-h", 0), ("--fast", 2)])
def test_an_argument_gets_one_line_of_help_and_runs_nothing(
    argument: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(story, "start", lambda **_: pytest.fail("it ran"))
    assert story.main([argument]) == code
    out, err = capsys.readouterr()
    assert (out + err).startswith("usage: hack/demo")
    assert (out + err).count("\n") == 1
    assert bool(out) == (code == 0)


def container(name: str) -> Any:
    return SimpleNamespace(id=name, sandbox=SimpleNamespace(name=name))


def told(allowed: dict[str, str]) -> Story:
    """A story on a node of CPUs 0-7: claims T and F have 0-1 and 2-3, containers run where `allowed` says."""
    claims = {"T": CPUSet.parse("0-1"), "F": CPUSet.parse("2-3")}
    node = SimpleNamespace(
        online_cpus=lambda: CPUSet.parse("0-7"),
        run=lambda *_, **__: SimpleNamespace(text="box", stdout=b"a picture\n"),
    )
    made = Story(cast("Any", node), cast("Any", None), Clock())
    made.product = cast(
        "Any",
        SimpleNamespace(
            allowed=lambda _cri, containers: {c.id: CPUSet.parse(allowed[c.id]) for c in containers},
            cpus_of=lambda claim: claims[claim.name],
            checkpoint=lambda: SimpleNamespace(prepared=CPUSet.parse("0-3")),
        ),
    )
    made.owners = {name: Owner(cast("Any", SimpleNamespace(name=name)), (), container(name)) for name in claims}
    made.others = [container("shared")]
    return made


def test_a_picture_is_shown_when_everybody_is_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    told({"T": "0-1", "F": "2-3", "shared": "4-7"}).picture()
    assert capsys.readouterr().out.strip() == "a picture"


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        ({"T": "0-1", "F": "2-3", "shared": "1,4-7"}, "CPUs of shared: 1,4-7, and not 4-7"),
        ({"T": "0-7", "F": "2-3", "shared": "4-7"}, "CPUs of T: 0-7, and not 0-1"),
        ({"T": "0-1", "F": "1-2", "shared": "4-7"}, "CPUs of F: 1-2, and not 2-3"),
    ],
)
def test_whoever_runs_elsewhere_ends_the_story(allowed: dict[str, str], words: str) -> None:
    with pytest.raises(NotTrueError, match=words):
        told(allowed).picture()

"""hack/venv: a Python that will not do is named, with the way out, before anything is made of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

VENV = Path(__file__).parents[2] / "hack" / "venv"


def python(path: Path, version: str, *, ensurepip: bool = True) -> Path:
    """A program that says it is this Python, and can do nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    answers = f"*version_info*) echo {version};; *ensurepip*) exit {int(not ensurepip)};; *) exit 1;;"
    path.write_text(f'#!/bin/sh\ncase "$*" in {answers} esac\n')
    path.chmod(0o755)
    return path


def refusal(tmp_path: Path, name: str | Path, path: str = "") -> str:
    environment = os.environ | {"PATH": f"{path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [VENV, name, tmp_path / "venv"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert not (tmp_path / "venv/ready").exists()
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("hack/venv: "))
    return said


@pytest.mark.parametrize("version", ["3.10", "2.7", "3.9", "nonsense"])
def test_an_older_python_is_refused(tmp_path: Path, version: str) -> None:
    assert f"is {version}, and 3.11 or newer is needed" in refusal(tmp_path, python(tmp_path / "python", version))


def test_a_python_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "no-such-python is no Python, and 3.11" in refusal(tmp_path, "no-such-python")


def test_an_environment_of_another_python_is_not_mixed_up(tmp_path: Path) -> None:
    python(tmp_path / "venv/bin/python", "3.11")
    assert refusal(tmp_path, python(tmp_path / "python", "3.12")).endswith("(3.12): make clean first")


def test_a_missing_venv_module_is_named_by_its_package_to_those_who_are_not_root(tmp_path: Path) -> None:
    id_ = tmp_path / "bin/id"
    id_.parent.mkdir()
    id_.write_text("#!/bin/sh\necho 1000\n")
    id_.chmod(0o755)
    old = python(tmp_path / "python", "3.12", ensurepip=False)
    assert refusal(tmp_path, old, str(id_.parent)).endswith("install Debian's python3.12-venv")


def test_root_gets_the_venv_module_by_apt_or_a_word_that_it_is_not_there(tmp_path: Path) -> None:
    for name, text in (("id", "echo 0"), ("apt-get", f'echo "$*" >> {tmp_path}/asked; [ $2 = update ]')):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    without = python(tmp_path / "python", "3.12", ensurepip=False)
    assert "apt can't install python3.12-venv" in refusal(tmp_path, without, str(tmp_path / "bin"))
    assert (tmp_path / "asked").read_text().splitlines()[-1].endswith(" python3.12-venv")

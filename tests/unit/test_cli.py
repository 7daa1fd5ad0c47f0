"""The nri-cpu command: wrong input is one line that names the thing and the way out, with the right exit code."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nri_cpu import __version__, command
from nri_cpu.command import UsageError
from nri_cpu.commands.run import settings_of
from nri_cpu.config import Config
from nri_cpu.nri.endpoint import InheritedFd, SocketPath


def nri_cpu(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    called = [sys.executable, "-m", "nri_cpu", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(called, env=env, capture_output=True, text=True, timeout=30, check=False)


def test_version() -> None:
    done = nri_cpu("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"nri-cpu {__version__}")


@pytest.mark.fault("A34")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "COMMAND"),
        (("jump",), "jump"),
        (("allocate",), "(choose from run, topology); did you mean dra-cpu allocate?;"),
        (("topologie",), "did you mean topology?"),
        (("run", "--sockt", "/x"), "--sockt"),
        (("run", "--log-format", "xml"), "xml"),
        (("run", "--config", "/nowhere/config.yaml"), "/nowhere/config.yaml"),
        (("run", "--config", ""), "--config: is an empty path"),
        (("run", "--checkpoint", ""), "--checkpoint: is an empty path"),
        (("run", "--checkpoint", "/"), "--checkpoint: / is a directory"),
        (("run", "--reserved-cpus", "3-1"), "3-1"),
        (("run", "--reserved-cpus", "all"), "all"),
        (("run", "--socket", "/" + "x" * 120), "107"),
        (("run", "--socket", ""), "--socket"),
        (("run", "--index", "7"), "7"),
        (("run", "--name", "a b"), "a b"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_names_what_is_wrong(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint.json")) if arguments[:1] == ("run",) else ()
    done = nri_cpu(*arguments, *checkpoint)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["nri_cpu", "dra"])
def test_ctrl_c_ends_a_command_by_its_signal_and_without_a_word(module: str) -> None:
    """So that a shell ends the script that called it too; Python would print a traceback, or exit with a number."""
    script = (
        f"import sys, {module}.cli as cli, nri_cpu.command as command\n"
        "def interrupted(*_): raise KeyboardInterrupt\n"
        "command.configuration = interrupted\n"
        f"sys.exit(cli.main(['{'topology' if module == 'nri_cpu' else 'slices'}']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(("module", "arguments"), [("nri_cpu", ["topology"]), ("dra", ["allocate", "--cpus", "1"])])
def test_paths_of_others_do_nothing_to_a_terminal(module: str, arguments: list[str]) -> None:
    called = [sys.executable, "-m", module, *arguments]
    env = {**os.environ, "HOST_ROOT": "/tmp/\x1b[31m\nnri-cpu: forged"}
    done = subprocess.run(called, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.isprintable()
    assert "/tmp/?[31m" in line


def test_a_closed_stderr_leaves_standard_output_alone() -> None:
    called = f"exec {sys.executable} -m nri_cpu topology 2>&-"
    env = {**os.environ, "HOST_ROOT": "/nowhere"}
    done = subprocess.run(["sh", "-c", called], env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("module", ["nri_cpu", "dra"])
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--version >&-", "standard output is closed"),
        ("--help >&-", "standard output is closed"),
        ("--version >/dev/full", "standard output can't be written: No space left on device"),
        ("--help >/dev/full", "standard output can't be written: No space left on device"),
        ("run --help >/dev/full", "standard output can't be written: No space left on device"),
    ],
)
def test_help_and_version_that_can_not_be_written_are_one_line(module: str, arguments: str, told: str) -> None:
    called = f"exec {sys.executable} -m {module} {arguments}"
    done = subprocess.run(["sh", "-c", called], capture_output=True, text=True, timeout=30, check=False)
    name = "nri-cpu" if module == "nri_cpu" else "dra-cpu"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{name}: {told}\n")


@pytest.mark.parametrize("module", ["nri_cpu", "dra"])
def test_wrong_usage_is_exit_code_2_also_where_nobody_can_be_told(module: str) -> None:
    called = f"exec {sys.executable} -m {module} --unknown >&- 2>&-"
    assert subprocess.run(["sh", "-c", called], timeout=30, check=False).returncode == 2


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("nri_cpu", ("topology", "--config")),
        ("nri_cpu", ("topology", "--sysfs-overlay")),
        ("nri_cpu", ("topology", "--checkpoint")),
        ("nri_cpu", ("run", "--config")),
        ("dra", ("slices", "--config")),
        ("dra", ("slices", "--sysfs-overlay")),
        ("dra", ("allocate", "--cpus", "1", "--checkpoint")),
        ("dra", ("run", "--config")),
    ],
)
def test_a_pipe_to_which_nobody_writes_keeps_no_command_waiting(
    tmp_path: Path, module: str, arguments: tuple[str, ...]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    called = [sys.executable, "-m", module, *arguments, str(pipe)]
    done = subprocess.run(called, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert f"{pipe}" in done.stderr
    assert "is no regular file" in done.stderr


@pytest.mark.fault("A34")
def test_a_default_configuration_that_can_not_be_reached_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path.exists() is false for such a file from Python 3.14."""
    monkeypatch.setattr(command, "CONFIG", tmp_path / "etc/config.yaml")
    assert command.configuration(None) == Config()
    (tmp_path / "etc").write_text("")  # no directory
    assert command.configuration(None) == Config()

    def refused(*_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(Path, "exists", lambda _: False)
    with pytest.raises(UsageError, match=r"etc/config\.yaml: can't be read: Permission denied; check the path"):
        command.configuration(None)


@pytest.mark.fault("A34")
def test_a_wrong_configuration_is_exit_code_2_with_file_line_and_key(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("apiVersion: v1alpha1\nreservedCpus: 0\n")
    done = nri_cpu("run", "--config", str(config))
    assert done.returncode == 2
    assert done.stderr.startswith(f"nri-cpu: {config}:2: reservedCpus")


def test_a_directory_that_cannot_be_made_is_exit_code_1() -> None:
    done = nri_cpu("run", "--checkpoint", "/proc/nowhere/checkpoint.json")
    assert done.returncode == 1
    assert "/proc/nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("value", "code", "told"), [("x", 2, "NRI_PLUGIN_SOCKET='x'"), ("-3", 2, "'-3'"), ("77", 1, "77"), ("0", 1, "0")]
)
def test_a_descriptor_that_is_none_is_told(tmp_path: Path, value: str, code: int, told: str) -> None:
    """As when somebody sets the runtime's variable by hand. The log goes where a launched plugin's goes."""
    script = (
        "import sys, nri_cpu.cli as cli; from pathlib import Path;"
        f"cli.LOG_OF_LAUNCHED = Path({str(tmp_path / 'log')!r});"
        f"sys.exit(cli.main(['run', '--checkpoint', {str(tmp_path / 'c' / 'checkpoint.json')!r}]))"
    )
    env = {**os.environ, "NRI_PLUGIN_SOCKET": value}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def options(**given: object) -> argparse.Namespace:
    base: dict[str, object] = {
        "config": None, "socket": "/s", "index": "10", "name": "n", "checkpoint": None, "reserved_cpus": None
    }  # fmt: skip
    return argparse.Namespace(**{**base, **given})


def test_arguments_go_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("reservedCPUs: 0-1\ncheckpoint: /a/checkpoint.json\ncdiDir: /cdi\n")
    by_file = settings_of(options(config=config), {})
    assert (str(by_file.reserved), by_file.places.checkpoint) == ("0-1", Path("/a/checkpoint.json"))
    both = settings_of(options(config=config, reserved_cpus="", checkpoint=Path("/b/checkpoint.json")), {})
    assert (str(both.reserved), both.places.checkpoint) == ("", Path("/b/checkpoint.json"))
    assert both.places.cdi_directory == Path("/cdi")


def test_what_a_runtime_says_of_a_plugin_that_it_starts_goes_over_the_arguments() -> None:
    env = {"NRI_PLUGIN_SOCKET": "3", "NRI_PLUGIN_NAME": "cpu", "NRI_PLUGIN_IDX": "07", "HOST_ROOT": "/host"}
    settings = settings_of(options(), env)
    assert (settings.endpoint, settings.name, settings.index) == (InheritedFd(3), "cpu", "07")
    assert settings.places.host == Path("/host")
    assert settings_of(options(), {}).endpoint == SocketPath("/s")


def test_wrong_arguments_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--reserved-cpus"):
        settings_of(options(reserved_cpus="1-"), {})

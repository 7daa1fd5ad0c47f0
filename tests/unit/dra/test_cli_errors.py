"""Promises of the dra-cpu command: whatever is wrong is one line with the way out, and the right exit code."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from loguru import logger

from dra import cli
from dra.commands import run, serve
from nri_cpu import command
from tests.unit.dra.companion import Companion


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """main() takes over signals and the log."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    logger.remove()
    logger.add(sys.__stderr__)  # type: ignore[arg-type]  # it is there


def outcome(companion: Companion, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and the last line on stderr of a run that fails at start; there is no traceback."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_ROOT", str(companion.host))
        patch.setattr(command, "CONFIG", companion.directory / "nowhere.yaml")
        try:
            code = cli.main(companion.arguments(*arguments))
        except SystemExit as error:
            code = int(str(error.code))
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return code, text.splitlines()[-1]


@pytest.mark.fault("K7")
def test_a_second_instance_ends_with_one_line_and_changes_nothing(
    companion: Companion, capsys: pytest.CaptureFixture[str]
) -> None:
    with companion.running():
        before = companion.checkpoint.read_bytes()
        code, text = outcome(companion, capsys, "--claims-dir", str(companion.claims), "--reserved-cpus", "0-3")
        assert companion.checkpoint.read_bytes() == before
    assert (code, text) == (1, f"dra-cpu: another process serves {companion.socket}: end it first")


@pytest.mark.fault("A31", "A34", "R16")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kubelet-root-dir", "var/lib/kubelet"], "--kubelet-root-dir var/lib/kubelet is no absolute path"),
        (["--kubelet-root-dir", ""], "argument --kubelet-root-dir: is an empty path; write one, or leave the argument"),
        (["--checkpoint", ""], "argument --checkpoint: is an empty path"),
        (["--checkpoint", "/"], "argument --checkpoint: / is a directory; name a file in it"),
        (["--cdi-dir", ""], "argument --cdi-dir: is an empty path"),
        (["--config", ""], "argument --config: is an empty path"),
        (["--claims-dir", ""], "argument --claims-dir: is an empty path"),
        (["--cdi-dir", "/a\nb"], "argument --cdi-dir: the path '/a\\nb' has characters that can't be shown"),
        (["--hostname-override", "A b"], "--hostname-override: 'A b' is no name of a node (lower-case letters"),
        (["--hostname-override", "a\n2026 forged"], "--hostname-override: 'a\\n2026 forged' is no name of a node"),
        (["--x\nforged\x1b"], "unrecognized arguments: --x?forged?"),
        (["--kubelet-root-dir", "/" + "x" * 82], "dra.sock has 108 bytes, 1 more than a socket's may have"),
        (["--kubelet-root-dir", "/" + "x" * 73], "dra.cpu-reg.sock has 108 bytes, 1 more than a socket's may have"),
        (["--reserved-cpus", "3-1"], "--reserved-cpus: '3-1' has the reversed range 3-1"),
        (["--reserved-cpus", "0,99"], "reserved CPUs 99 do not exist: this machine has 0-15"),
        (["--cpu-device-mode", "single"], "argument --cpu-device-mode: invalid choice: 'single'"),
        (["--group-by", "core"], "argument --group-by: invalid choice: 'core'"),
        (["--sysfs-overlay", "/nowhere"], "sysfs overlay /nowhere: can't be read: No such file or directory"),
        (["--unknown"], "unrecognized arguments: --unknown"),
        (["--claims", "x"], "unrecognized arguments: --claims x"),
        (["--claims-dir", "/nowhere"], "the claims directory /nowhere can't be read: No such file or directory"),
        (["--claims-dir", "/", "--kubeconfig", "x"], "--claims-dir and --kubeconfig exclude each other"),
        (["--kubeconfig", "/nowhere"], "--kubeconfig /nowhere can't be used: [Errno 2] No such file or directory"),
        (["--config", "/nowhere"], "/nowhere: can't be read: No such file or directory"),
        (["--v", "x"], "argument -v/--v: invalid int value: 'x'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    companion: Companion, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, text = outcome(companion, capsys, *arguments)
    assert code == 2
    assert text.startswith("dra-cpu")
    assert message in text


@pytest.mark.parametrize("arguments", [["--unknown"], ["--log-format", "xml"]])
def test_what_is_wrong_after_run_points_at_the_help_of_run(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", *arguments])
    assert "; dra-cpu run --help tells what there is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("reservedcpus: 0\n", "config.yaml:1: reservedcpus: unknown key; did you mean reservedCPUs?"),
        ("sysfsOverlay: /x\n", "sysfs overlay /x: can't be read: No such file or directory; check the path"),
        ("strategy: packed\nnumaNodes: 2\n", "the configuration: numaNodes: 2 needs strategy: distributed, not packed"),
        ("[", "config.yaml:1: is not YAML"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_exit_code_2(
    companion: Companion, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (companion.directory / "config.yaml").write_text(content)
    code, text = outcome(companion, capsys, "--config", str(companion.directory / "config.yaml"))
    assert code == 2
    assert message in text


def test_a_machine_without_cpus_is_one_line_and_exit_code_1(
    companion: Companion, capsys: pytest.CaptureFixture[str]
) -> None:
    companion.host = companion.directory / "nowhere"
    code, text = outcome(companion, capsys, "--claims-dir", str(companion.claims))
    assert code == 1
    assert "sys/devices/system/cpu/online tells of no CPU: is /sys mounted there? HOST_ROOT" in text


@pytest.mark.fault("B2", "S2")
def test_a_checkpoint_that_can_not_be_read_is_one_line_and_exit_code_1(
    companion: Companion, capsys: pytest.CaptureFixture[str]
) -> None:
    companion.checkpoint.mkdir(parents=True)
    code, text = outcome(companion, capsys, "--claims-dir", str(companion.claims))
    assert (code, text) == (1, f"dra-cpu: {companion.checkpoint} is no regular file; remove it")


def test_a_kubelet_root_that_can_not_hold_sockets_is_one_line_and_exit_code_1(
    companion: Companion, capsys: pytest.CaptureFixture[str]
) -> None:
    companion.socket.mkdir(parents=True)
    code, text = outcome(companion, capsys, "--claims-dir", str(companion.claims))
    assert (code, text) == (1, f"dra-cpu: {companion.socket} is no socket: remove it")


def test_files_that_are_no_claims_are_named_at_the_start(
    companion: Companion, capsys: pytest.CaptureFixture[str]
) -> None:
    (companion.claims / "pod.yaml").write_text("kind: Pod\napiVersion: v1\n")
    companion.socket.mkdir(parents=True)  # ends the run
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_ROOT", str(companion.host))
        assert cli.main(companion.arguments("--claims-dir", str(companion.claims))) == 1
    assert f"in {companion.claims}: pod.yaml: holds a Pod of v1, not a ResourceClaim" in capsys.readouterr().err


def test_a_fault_of_ours_is_one_line_and_a_traceback_only_with_v(
    companion: Companion, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(serve, "serve", fail)
    expected = "dra-cpu: KeyError: 'x'; a fault of dra-cpu itself, -v shows where"
    assert outcome(companion, capsys) == (1, expected)
    assert cli.main(companion.arguments("-v")) == 1
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert text.splitlines()[-1] == expected


def node_name(*arguments: str) -> str:
    return run.settings_of(cli._parser().parse_args(["run", *arguments]), {}).devices.node_name


def test_the_node_is_called_like_its_host(companion: Companion, host_name: str) -> None:
    config = companion.directory / "config.yaml"
    config.write_text("hostnameOverride: from-file\n")
    assert node_name() == host_name.lower() == "host-1"
    assert node_name("--config", str(config)) == "from-file"
    assert node_name("--config", str(config), "--hostname-override", "from-flag") == "from-flag"
    assert node_name("--config", str(config), "--hostname-override", "") == "from-file"


def test_an_empty_kubeconfig_is_none(host_name: str) -> None:
    assert run.settings_of(cli._parser().parse_args(["run", "--kubeconfig", ""]), {}).kubeconfig is None


def test_a_closed_stderr_is_no_fault(companion: Companion) -> None:
    """Nor does what libraries print there get into a file that has its number since."""
    script = (
        "import os, sys; from nri_cpu.command import log_to; from loguru import logger;"
        "log_to('text'); logger.info('x'); opened = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT);"
        "print(sys.stderr, opened > 2)"
    )
    command = f'exec {sys.executable} -c "{script}" {companion.directory}/file 2>&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "None True\n")
    command = f"exec {sys.executable} -m dra run --claims-dir /nowhere 2>&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["topology"],
            "(choose from run, slices, allocate, gatherinfo); did you mean nri-cpu topology?;",
        ),
        (["slice"], "; did you mean slices?;"),
    ],
)
def test_a_command_that_there_is_not_has_a_hint(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_help_says_what_a_device_is_and_what_more_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "grouped: a device has many CPUs; individual: a device is one CPU (default: grouped)" in text
    assert "-v [N], --v [N] log details, such as what is odd about the machine" in text


def test_a_grouping_of_individual_devices_is_a_warning_in_the_log(
    companion: Companion, capsys: pytest.CaptureFixture[str]
) -> None:
    companion.socket.mkdir(parents=True)  # ends the run
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_ROOT", str(companion.host))
        grouping = ("--cpu-device-mode", "individual", "--group-by", "socket")
        assert cli.main(companion.arguments("--claims-dir", str(companion.claims), *grouping)) == 1
    assert "WARNING --group-by socket has no effect: in individual mode a device is one CPU" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("dra-cpu 0.")

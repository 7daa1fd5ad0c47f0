"""Promises of the dra-cpu command: a process that serves, ends and starts again, and errors in one line."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from loguru import logger

from dra import cli
from dra.commands import run
from dra.kubelet import dra_pb2 as pb
from hack.wait import wait_until
from nri_cpu import command
from nri_cpu.checkpoint.cdi import read_specs
from nri_cpu.checkpoint.files import read_checkpoint
from nri_cpu.checkpoint.locks import FileLock
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.apiserver import apiserver
from tests.unit.dra.manifests import NODE, UID, manifest, result, uid
from tests.unit.topology.machines import box, write_sysfs

SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node"


class Companion:
    """`dra-cpu run` as a process, with a machine, a kubelet root and directories of its own."""

    def __init__(self, directory: Path, kubelet_root: Path) -> None:
        self.directory = directory
        self.kubelet_root = kubelet_root
        self.checkpoint = directory / "state/checkpoint.json"
        self.cdi = directory / "cdi"
        self.claims = directory / "claims"
        self.socket = kubelet_root / "plugins/dra.cpu/dra.sock"
        self.claims.mkdir()
        self.host = write_sysfs(directory / "host", box())
        self.extra_path = ""

    def arguments(self, *more: str) -> list[str]:
        return [
            "run",
            *("--kubelet-root-dir", str(self.kubelet_root), "--hostname-override", NODE),
            *("--checkpoint", str(self.checkpoint), "--cdi-dir", str(self.cdi), *more),
        ]

    @contextlib.contextmanager
    def running(self, *more: str) -> Iterator["subprocess.Popen[str]"]:
        arguments = self.arguments(*(more or ("--claims-dir", str(self.claims))))
        environment = {"HOST_ROOT": str(self.host), "PYTHONPATH": f"{self.extra_path}:{Path.cwd()}"}
        command = [sys.executable, "-m", "dra", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stderr
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "serving the kubelet" in line:
                    break
            else:
                pytest.fail("".join(lines))
            yield process
        finally:
            process.kill()
            process.communicate()

    def call(self, method: str, *uids: str, name: str = "one") -> Any:
        kind = f"Node{method}Resources"
        request = getattr(pb, f"{kind}Request")(claims=[pb.Claim(namespace="default", uid=u, name=name) for u in uids])
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            raw: Any = channel.unary_unary(f"{SERVICE}{method}Resources")
            answer = raw(request.SerializeToString(), timeout=30, wait_for_ready=True)
        return getattr(pb, f"{kind}Response").FromString(answer).claims

    def prepared(self) -> dict[str, CPUSet]:
        return {key: record.cpus for key, record in read_checkpoint(self.checkpoint)[0].claims.items()}


def end(process: "subprocess.Popen[str]", number: int) -> int:
    process.send_signal(number)
    return process.wait(30)


@pytest.fixture
def companion(tmp_path: Path) -> Iterator[Companion]:
    # A socket's path has room for 107 bytes, of which pytest's own directories take most.
    with tempfile.TemporaryDirectory(prefix="dra-") as root:
        yield Companion(tmp_path, Path(root))


@pytest.fixture
def plugin(companion: Companion) -> Iterator[FileLock]:
    """nri-cpu is in the runtime."""
    companion.checkpoint.parent.mkdir()
    lock = FileLock(companion.checkpoint.with_name("synchronized.lock"))
    assert lock.acquire()
    yield lock
    lock.release()


@pytest.mark.fault("A25", "K7", "B2")
def test_a_claim_from_a_file_lives_through_a_stop_and_a_kill(companion: Companion, plugin: FileLock) -> None:
    (companion.claims / "one.json").write_text(json.dumps(manifest(result("cpudevnuma002"))))
    with companion.running() as process:
        assert [device.device_name for device in companion.call("Prepare", UID)[UID].devices] == ["cpudevnuma002"]
        assert end(process, signal.SIGTERM) == 0
    assert not companion.socket.exists()
    assert {key: record.cpus for key, record in read_specs(companion.cdi).items()} == {UID: CPUSet.parse("4,12")}
    with companion.running() as process:
        before = companion.call("Prepare", UID)
        assert end(process, signal.SIGKILL) == -signal.SIGKILL
    assert companion.socket.exists()
    with companion.running() as process:
        assert companion.call("Prepare", UID) == before
        assert companion.prepared() == {UID: CPUSet.parse("4,12")}
        assert companion.call("Unprepare", UID)[UID].error == ""
        assert end(process, signal.SIGINT) == 0
    assert companion.prepared() == {}


def test_without_a_cluster_the_kubernetes_client_is_not_needed(companion: Companion, plugin: FileLock) -> None:
    broken = companion.directory / "broken/kubernetes"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not here')")
    companion.extra_path = str(broken.parent)
    (companion.claims / "one.json").write_text(json.dumps(manifest()))
    with companion.running():
        assert companion.call("Prepare", UID)[UID].error == ""


@pytest.mark.fault("K3")
def test_a_claim_comes_from_the_api_server(companion: Companion, plugin: FileLock) -> None:
    with apiserver() as server:
        server.put(manifest())
        with companion.running("--kubeconfig", str(server.kubeconfig(companion.directory))):
            assert companion.call("Prepare", UID)[UID].error == ""
            assert "replaced" in companion.call("Prepare", uid(2))[uid(2)].error
            assert "answered 404" in companion.call("Prepare", uid(3), name="gone")[uid(3)].error
    assert companion.prepared() == {UID: CPUSet.parse("0,8")}


@pytest.mark.fault("A25")
def test_a_second_signal_does_not_wait_for_a_call_under_way(companion: Companion, plugin: FileLock) -> None:
    with apiserver() as server:
        server.put(manifest())
        server.hold = threading.Event()
        kubeconfig = str(server.kubeconfig(companion.directory))
        address = f"unix:{companion.socket}"
        with companion.running("--kubeconfig", kubeconfig) as process, grpc.insecure_channel(address) as channel:
            request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace="default", uid=UID, name="one")])
            call: Any = channel.unary_unary(f"{SERVICE}PrepareResources")
            waiting = call.future(request.SerializeToString(), timeout=30, wait_for_ready=True)
            wait_until("the request", lambda: server.seen)
            process.terminate()
            assert process.stderr
            assert any("stopping when the calls under way have ended" in line for line in process.stderr)
            assert end(process, signal.SIGTERM) == -signal.SIGTERM
            waiting.cancel()


def test_flags_and_configuration_reach_what_they_name(companion: Companion) -> None:
    config = companion.directory / "config.yaml"
    config.write_text("cpuDeviceMode: individual\nreservedCPUs: 0\nrequirePlugin: false\nminSharedCPUs: 13\n")
    (companion.claims / "one.yaml").write_text(json.dumps(manifest(*(result(f"cpudev{n:03}", None) for n in (1, 3)))))
    (companion.claims / "two.yaml").write_text(
        json.dumps(manifest(*(result(f"cpudev{n:03}", None) for n in (9, 10)), claim_uid=uid(2), name="two"))
    )
    with companion.running(
        *("--claims-dir", str(companion.claims), "--config", str(config), "--reserved-cpus", "0,8", "--v=4")
    ):
        # 16 - 2 reserved - 2 = 12
        assert "would leave 12 shared CPUs, minimum 13" in companion.call("Prepare", UID)[UID].error
    config.write_text(config.read_text().replace("13", "12"))
    with companion.running("--claims-dir", str(companion.claims), "--config", str(config), "--reserved-cpus", "0,8"):
        assert companion.call("Prepare", UID)[UID].error == ""
        assert "would leave 10 shared CPUs" in companion.call("Prepare", uid(2), name="two")[uid(2)].error
    assert read_checkpoint(companion.checkpoint)[0].reserved == CPUSet.parse("0,8")


def test_groupings_the_overlay_and_how_cpus_are_chosen_reach_what_they_name(companion: Companion) -> None:
    config = companion.directory / "config.yaml"
    config.write_text("requirePlugin: false\nstrategy: spread\ngroupBy: machine\nexposePCIeRoots: true\n")
    overlay = companion.directory / "overlay.yaml"
    overlay.write_text('/sys/devices/system/cpu/online: "0-6,8-15\\n"\n')
    (companion.claims / "one.yaml").write_text(json.dumps(manifest(result("cpudevsocket001", 2))))
    (companion.claims / "two.yaml").write_text(
        json.dumps(manifest(result("cpudevmachine", 2), claim_uid=uid(2), name="two"))
    )
    arguments = ("--claims-dir", str(companion.claims), "--config", str(config), "--sysfs-overlay", str(overlay))
    with companion.running(*arguments):
        assert "cpudevsocket001 belongs to cpuDeviceMode grouped, groupBy socket" in (
            companion.call("Prepare", UID)[UID].error
        )
        assert companion.call("Prepare", uid(2), name="two")[uid(2)].error == ""
    with companion.running(*arguments, "--group-by", "socket"):
        assert companion.call("Prepare", UID)[UID].error == ""
    prepared = companion.prepared()
    assert prepared[UID] <= box().sockets[1]
    for cpus in prepared.values():
        assert 7 not in cpus  # it is not on line, by the overlay
        assert len(cpus) == len({cpu % 8 for cpu in cpus}) == 2  # spread: siblings are n and n + 8


@pytest.mark.fault("K7")
def test_a_second_instance_ends_with_one_line_and_changes_nothing(
    companion: Companion, capsys: pytest.CaptureFixture[str]
) -> None:
    with companion.running():
        before = companion.checkpoint.read_bytes()
        code, text = outcome(companion, capsys, "--claims-dir", str(companion.claims), "--reserved-cpus", "0-3")
        assert companion.checkpoint.read_bytes() == before
    assert (code, text) == (1, f"dra-cpu: another process serves {companion.socket}: end it first")


def test_json_logs_are_json(companion: Companion) -> None:
    with companion.running("--claims-dir", str(companion.claims), "--log-format", "json") as process:
        process.terminate()
        assert process.stderr
        messages = [json.loads(line)["record"]["message"] for line in process.stderr]
        assert messages[-1] == "stopped; prepared claims keep their CPUs"


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
        (["--kubelet-root-dir", "/" + "x" * 82], "has 108 bytes, 1 more than a socket's may have"),
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


@pytest.mark.parametrize("package", ["kubernetes", "urllib3"])
def test_a_missing_kubernetes_client_is_one_line_with_the_way_out(
    companion: Companion, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.delitem(sys.modules, "dra.kube", raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # importing it is a ModuleNotFoundError
    code, text = outcome(companion, capsys)
    assert code == 2
    assert f"package {package} is not there: install the Kubernetes client" in text
    assert "--claims-dir" in text


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

    monkeypatch.setattr(run, "run", fail)
    expected = "dra-cpu: KeyError: 'x'; a fault of dra-cpu itself, -v shows where"
    assert outcome(companion, capsys) == (1, expected)
    assert cli.main(companion.arguments("-v")) == 1
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert text.splitlines()[-1] == expected


def node_name(*arguments: str) -> str:
    return run.settings_of(cli._parser().parse_args(["run", *arguments]), {}).devices.node_name


def test_the_node_is_called_like_its_host(companion: Companion) -> None:
    config = companion.directory / "config.yaml"
    config.write_text("hostnameOverride: from-file\n")
    assert node_name() == socket.gethostname().lower()
    assert node_name("--config", str(config)) == "from-file"
    assert node_name("--config", str(config), "--hostname-override", "from-flag") == "from-flag"
    assert node_name("--config", str(config), "--hostname-override", "") == "from-file"


def test_an_empty_kubeconfig_is_none() -> None:
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


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("dra-cpu 0.")

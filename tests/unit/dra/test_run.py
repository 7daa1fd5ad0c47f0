"""Promises of dra-cpu run to the kubelet: it starts whatever is missing, registers, and ends clean."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest

from dra.kubelet import dra_pb2
from hack.wait import wait_until
from nri_cpu.checkpoint.cdi import read_specs
from nri_cpu.checkpoint.locks import FileLock
from tests.protocol.fake_kubelet import FakeKubelet
from tests.unit.dra.apiserver import Fault, apiserver
from tests.unit.dra.companion import NO_PLUGIN, ONE, OTHER, SERVICE, Companion, arguments, health, put_off_line, sockets
from tests.unit.dra.manifests import UID, manifest

STOPS = "dra-cpu stops; the kubelet tries again"
EXEC = "client.authentication.k8s.io/v1"


@pytest.mark.fault("A25", "K7")
def test_it_registers_and_ends_without_a_socket_and_with_all_that_is_prepared(
    companion: Companion, cluster: list[str]
) -> None:
    kubelet = FakeKubelet(companion.kubelet_root)
    with kubelet.running(), companion.started(*cluster) as running:
        plugin = kubelet.plugin("dra.cpu")
        assert plugin.endpoint == str(companion.socket)
        running.said("the kubelet has registered dra.cpu")
        assert companion.call("Prepare", UID)[UID].error == ""
        assert sockets(companion) == ["dra.cpu-reg.sock", "dra.sock"]
        assert running.end() == 0
    assert sockets(companion) == []
    assert set(companion.prepared()) == set(read_specs(companion.cdi)) == {UID}
    assert running.lines[-1].endswith("stopped; prepared claims keep their CPUs\n")


@pytest.mark.fault("K10", "A32")
def test_a_kubelet_that_starts_later_or_again_finds_it(companion: Companion, cluster: list[str]) -> None:
    """Also when it has never run here: its directories are made as it would make them."""
    companion.kubelet_root.rmdir()
    with companion.started(*cluster) as running:
        running.said("serving the kubelet")
        wait_until("the registration socket", lambda: sockets(companion)[1:])
        kubelet = FakeKubelet(companion.kubelet_root)
        for _ in range(2):
            with kubelet.running():
                assert kubelet.plugin("dra.cpu").endpoint == str(companion.socket)
        assert running.end() == 0


@pytest.mark.fault("A32")
def test_a_kubelet_that_refuses_is_quoted_and_asked_again(companion: Companion, cluster: list[str]) -> None:
    kubelet = FakeKubelet(companion.kubelet_root, refusal="I know no such thing")
    with kubelet.running(), companion.started(*cluster) as running:
        running.said("ERROR   the kubelet refuses dra.cpu: I know no such thing")
        kubelet.refusal = None
        running.said("the kubelet has registered dra.cpu")
        assert running.text.count("refuses dra.cpu") == 1
        assert running.end() == 0


@pytest.mark.fault("A32")
def test_a_kubelet_that_never_calls_is_told_of_with_the_directory_that_it_has_to_watch(
    companion: Companion, cluster: list[str]
) -> None:
    with companion.started(
        *cluster, before="from dra.kubelet import registration\nregistration._OVERDUE = 0.2"
    ) as running:
        line = running.said("the kubelet never called")
        assert f"it has to watch {companion.kubelet_root}/plugins_registry" in line
        assert running.end() == 0


@pytest.mark.fault("B11", "H1", "H2")
def test_cpus_that_come_while_it_runs_can_be_prepared(companion: Companion, cluster: list[str]) -> None:
    put_off_line(companion, "4-5,12-13")
    with companion.started(*cluster) as running:
        running.said("3 grouped devices")
        assert "device cpudevnuma002 does not exist" in companion.call("Prepare", UID)[UID].error
        put_off_line(companion, "")
        running.said("4 devices, before 3")
        assert companion.call("Prepare", UID)[UID].error == ""


@pytest.mark.fault("A37")
def test_a_thread_that_dies_is_named_in_the_log_and_ends_it_with_exit_code_1(
    companion: Companion, cluster: list[str]
) -> None:
    broken = "from dra.node_watch import NodeWatch\ndef look(self): raise KeyError('x')\nNodeWatch.look = look"
    with companion.started(*cluster, before=broken) as running:
        assert running.ended() == 1
    assert "ERROR   the thread node-watch has failed, which is a fault of dra-cpu itself" in running.text
    assert "in look" in running.text
    assert running.lines[-1] == "dra-cpu: its thread node-watch has failed: KeyError; the log says where\n"
    assert sockets(companion) == []


@pytest.mark.fault("A37")
def test_a_fault_of_ours_in_a_call_is_told_to_the_kubelet_and_in_the_log_which_stays_json(
    companion: Companion, cluster: list[str]
) -> None:
    broken = (
        "from dra.prepare.preparer import Preparer\ndef prepare(*_): raise KeyError('x')\nPreparer.prepare = prepare"
    )
    with companion.started(*cluster, "--log-format", "json", before=broken) as running:
        running.said("serving the kubelet")
        with pytest.raises(grpc.RpcError, match="Exception calling application"):
            companion.call("Prepare", UID)
        assert running.end() == 0
    records = [json.loads(line)["record"] for line in running.lines]
    (told,) = [record for record in records if record["level"]["name"] == "ERROR"]
    assert told["message"] == "grpc._server: Exception calling application: 'x'"
    assert told["exception"]["type"] == "KeyError"


@pytest.mark.fault("A37")
def test_what_libraries_warn_of_is_in_the_log_in_its_form(companion: Companion, cluster: list[str]) -> None:
    warns = (
        "import warnings\nfrom dra.prepare.preparer import Preparer\n"
        "def stop(*_): warnings.warn('two\\nlines')\nPreparer.stop = stop"
    )
    with companion.started(*cluster, before=warns) as running:
        running.said("serving the kubelet")
        assert running.end() == 0
    (line,) = [line for line in running.lines if "lines" in line]
    assert "WARNING py.warnings: <string>:3: UserWarning: two lines" in line


@pytest.mark.fault("K9", "K3")
def test_two_instances_of_two_pods_serve_side_by_side(companion: Companion, cluster: list[str]) -> None:
    kubelet = FakeKubelet(companion.kubelet_root)
    old, new = (companion.socket.with_name(f"dra-{uid}.sock") for uid in (ONE, OTHER))
    with kubelet.running(), companion.started(*cluster, "--pod-uid", ONE) as first:
        assert kubelet.plugin("dra.cpu").endpoint == str(old)
        with companion.started(*cluster, "--pod-uid", OTHER) as second:
            second.said("the kubelet has registered dra.cpu")
            assert {plugin.endpoint for plugin in kubelet.registered.values()} == {str(old), str(new)}
            companion.socket = old
            prepared = companion.call("Prepare", UID)[UID]
            assert first.end() == 0
            companion.socket = new
            assert companion.call("Prepare", UID)[UID] == prepared  # the one knows what the other did
            assert companion.call("Unprepare", UID)[UID].error == ""
            assert sockets(companion) == [f"dra-{OTHER}.sock", f"dra.cpu-{OTHER}-reg.sock"]
            assert second.end() == 0
    assert sockets(companion) == []


@pytest.mark.fault("B8", "A39")
def test_beside_a_static_cpu_manager_it_does_not_start_unless_it_is_told_to(
    companion: Companion, cluster: list[str]
) -> None:
    (companion.kubelet_root / "cpu_manager_state").write_text('{"policyName": "static"}')
    with companion.started(*cluster) as running:
        assert running.ended() == 1
    assert "cpu_manager_state says that the kubelet's CPU manager has policy static" in running.lines[-1]
    assert not companion.checkpoint.exists()
    config = companion.directory / "config.yaml"
    config.write_text(f"{NO_PLUGIN}kubeletCPUManagerConflict: warn\n")
    with companion.started(*cluster) as running:
        running.said("WARNING")
        running.said("serving the kubelet")
        assert "has policy static" in running.text


@pytest.mark.fault("A25", "A10")
def test_a_signal_while_claims_are_read_from_an_api_server_that_hangs_ends_it_soon(companion: Companion) -> None:
    uids = [f"11111111-2222-4333-8444-{number:012}" for number in range(30)]
    with apiserver() as server:
        server.faults.append(Fault("GET", "/one", hang=True, lasting=True))
        with companion.started(*arguments(companion, server)) as running:
            running.said("serving the kubelet")
            request = dra_pb2.NodePrepareResourcesRequest(
                claims=[dra_pb2.Claim(uid=each, namespace="default", name="one") for each in uids]
            )
            with grpc.insecure_channel(f"unix:{companion.socket}") as channel:
                raw: Any = channel.unary_unary(f"{SERVICE}PrepareResources")
                call = raw.future(request.SerializeToString(), timeout=60, wait_for_ready=True)
                wait_until("reads", lambda: len(server.requests) > 2)
                assert running.end() == 0  # in less than the 30 s that a pod has
                assert running.lines[-1].endswith("stopped; prepared claims keep their CPUs\n")
                errors = [each.error for each in answers(call)]
                assert len(errors) == len(uids)
                assert len([error for error in errors if error.endswith(STOPS)]) > 20
                assert all(errors)
    assert companion.prepared() == {}
    assert sockets(companion) == []


def answers(call: Any) -> list[dra_pb2.NodePrepareResourceResponse]:
    return [*dra_pb2.NodePrepareResourcesResponse.FromString(call.result()).claims.values()]


@pytest.mark.fault("A25")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_starts_ends_it_also_when_a_program_for_credentials_hangs(
    companion: Companion, number: signal.Signals
) -> None:
    mark = companion.directory / "called"
    plugin = executes(companion, "http://127.0.0.1:1", f"echo > {mark}; {hangs(companion)}")
    with companion.started(*plugin) as running:
        wait_until("the program", mark.exists)
        assert running.end(number) == 0
        assert "ended by a signal before it served" in running.text
    assert not companion.checkpoint.exists()


@pytest.mark.fault("A25", "K4")
def test_a_signal_while_it_serves_ends_it_also_when_a_program_for_credentials_hangs(companion: Companion) -> None:
    called, mark = companion.directory / "calls", companion.directory / "called"
    ended = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"token": "x", "expirationTimestamp": ended}
    printed = json.dumps({"apiVersion": EXEC, "kind": "ExecCredential", "status": status})
    # It is asked twice at the start, since what it gives has ended.
    hang = f"if [ $(wc -l < {called}) -gt 2 ]; then echo > {mark}; {hangs(companion)}; fi"
    with apiserver() as server:
        plugin = executes(companion, server.url, f"echo >> {called}; {hang}; echo '{printed}'")
        config = companion.directory / "config.yaml"
        config.write_text(NO_PLUGIN)
        with companion.started(*plugin, "--config", str(config)) as running:
            running.said("serving the kubelet")
            wait_until("the program", mark.exists)
            assert running.end() == 0
            assert running.lines[-1].endswith("stopped; prepared claims keep their CPUs\n")


def hangs(companion: Companion) -> str:
    """Shell that waits for as long as the directory of the kubelet is there."""
    return f"while [ -e {companion.kubelet_root} ]; do sleep 0.1; done"


def executes(companion: Companion, server: str, script: str) -> tuple[str, str]:
    """Arguments for `server` and a user whom a program speaks for."""
    config = companion.directory / "exec.conf"
    execute = {"apiVersion": EXEC, "command": "sh", "interactiveMode": "Never", "args": ["-c", script]}
    content = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "users": [{"name": "a", "user": {"exec": execute}}],
    }
    config.write_text(json.dumps(content))
    return "--kubeconfig", str(config)


def test_with_a_plain_kubeconfig_the_kubernetes_client_is_not_imported(
    companion: Companion, cluster: list[str]
) -> None:
    with companion.started(*cluster, before="import sys\nsys.modules['kubernetes'] = None") as running:
        running.said("serving the kubelet")  # an import would have failed
        assert companion.call("Prepare", UID)[UID].error == ""
        assert running.end() == 0


@pytest.mark.fault("K7", "A32")
def test_sockets_that_somebody_removes_are_served_anew_and_the_kubelet_finds_it_again(
    companion: Companion, cluster: list[str]
) -> None:
    kubelet = FakeKubelet(companion.kubelet_root)
    with kubelet.running(), companion.started(*cluster) as running:
        kubelet.plugin("dra.cpu")
        running.said("has registered")
        before = len(running.lines)
        registration = companion.kubelet_root / "plugins_registry/dra.cpu-reg.sock"
        for path in (registration, companion.socket):
            path.unlink()
        running.said(f"somebody has removed the socket {registration}: it is served anew", before)
        running.said(f"somebody has removed the socket {companion.socket}: it is served anew", before)
        running.said("the kubelet has registered dra.cpu", before)
        assert companion.call("Prepare", UID)[UID].error == ""
        assert running.end() == 0
    assert sockets(companion) == []


def test_with_claims_from_files_it_does_not_register_and_health_is_served(companion: Companion) -> None:
    companion.checkpoint.parent.mkdir()
    lock = FileLock(companion.checkpoint.with_name("synchronized.lock"))
    assert lock.acquire()
    (companion.claims / "one.json").write_text(json.dumps(manifest()))
    kubelet = FakeKubelet(companion.kubelet_root)
    with kubelet.running(), companion.started("--claims-dir", str(companion.claims)) as running:
        with health(companion.socket) as stream:
            wait_until("the first report", lambda: stream.reports)
        assert companion.call("Prepare", UID)[UID].error == ""
        assert sockets(companion) == ["dra.sock"]
        assert running.end() == 0
    lock.release()
    assert (kubelet.registered, kubelet.failures) == ({}, [])


@pytest.mark.fault("K7", "K9")
def test_sockets_of_a_killed_instance_are_taken_over_and_those_of_an_earlier_pod_removed(
    companion: Companion, cluster: list[str]
) -> None:
    with companion.started(*cluster, "--pod-uid", ONE) as running:
        running.said("claims come from the API server")
        wait_until("both sockets", lambda: sockets(companion)[1:])
        running.end(signal.SIGKILL)
    for socket in companion.kubelet_root.rglob("*"):
        if socket.is_socket():
            os.utime(socket, (0, 0))  # it was long ago
    with companion.started(*cluster) as running:
        wait_until("our sockets only", lambda: sockets(companion) == ["dra.cpu-reg.sock", "dra.sock"] or None)
        running.end(signal.SIGKILL)
    with companion.started(*cluster) as running:
        running.said("serving the kubelet")
        assert running.end() == 0
    assert sockets(companion) == []


@pytest.mark.fault("A31")
@pytest.mark.parametrize("text", ["", "x", "$(POD_UID)", "../../../etc", ONE.upper().replace("1", "A"), ONE + "0"])
def test_what_is_no_uid_of_a_pod_is_refused(companion: Companion, cluster: list[str], text: str) -> None:
    with companion.started(*cluster, "--pod-uid", text) as running:
        assert running.ended() == 2
    assert running.lines[-1].startswith("dra-cpu: --pod-uid ")
    assert "is no UID of a pod: give what the downward API has in metadata.uid" in running.lines[-1]


def test_a_registry_that_is_no_directory_is_one_line_and_leaves_no_socket(
    companion: Companion, cluster: list[str]
) -> None:
    (companion.kubelet_root / "plugins_registry").write_text("")
    with companion.started(*cluster) as running:
        assert running.ended() == 1
    assert running.lines[-1].startswith(
        f"dra-cpu: the socket {companion.kubelet_root}/plugins_registry/dra.cpu-reg.sock"
    )
    assert "Traceback" not in running.text
    assert sockets(companion) == []

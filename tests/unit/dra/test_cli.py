"""Promises of dra-cpu run: a process that serves, ends and starts again, configured by flags and file."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dra.kubelet import dra_pb2 as pb
from hack.wait import wait_until
from nri_cpu.checkpoint.cdi import read_specs
from nri_cpu.checkpoint.files import read_checkpoint
from nri_cpu.checkpoint.locks import FileLock
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.apiserver import apiserver
from tests.unit.dra.companion import SERVICE, Companion
from tests.unit.dra.manifests import UID, manifest, result, uid
from tests.unit.topology.machines import box


def end(process: "subprocess.Popen[str]", number: int) -> int:
    process.send_signal(number)
    return process.wait(30)


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
            assert end(process, signal.SIGTERM) == 128 + signal.SIGTERM
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


def test_json_logs_are_json(companion: Companion) -> None:
    with companion.running("--claims-dir", str(companion.claims), "--log-format", "json") as process:
        process.terminate()
        assert process.stderr
        messages = [json.loads(line)["record"]["message"] for line in process.stderr]
        assert messages[-1] == "stopped; prepared claims keep their CPUs"

"""Promises of the DRA service as a kubelet sees it: real gRPC over a real socket, literal method paths and bytes."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra.kubelet import dra_pb2 as pb
from dra.kubelet.server import ServerError, UnixServer, refuse_served
from dra.kubelet.service import DRAService
from nri_cpu.cpuset import CPUSet
from tests.unit.dra.manifests import NODE, result, uid
from tests.unit.dra.rig import Rig

PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
UNPREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"


class Kubelet:
    """A client of the socket, as the kubelet is one: insecure, 45 s for a call."""

    def __init__(self, path: Path) -> None:
        self.channel = grpc.insecure_channel(f"unix:{path}")
        self._raw: dict[str, Any] = {name: self.channel.unary_unary(name) for name in (PREPARE, UNPREPARE)}

    def call(self, method: str, request: bytes, timeout: float = 45) -> bytes:
        return bytes(self._raw[method](request, timeout=timeout, wait_for_ready=True))

    def prepare(self, *refs: Any, timeout: float = 45) -> pb.NodePrepareResourcesResponse:
        request = pb.NodePrepareResourcesRequest(claims=map(claim, refs))
        return pb.NodePrepareResourcesResponse.FromString(self.call(PREPARE, request.SerializeToString(), timeout))

    def unprepare(self, *refs: Any) -> pb.NodeUnprepareResourcesResponse:
        request = pb.NodeUnprepareResourcesRequest(claims=map(claim, refs))
        return pb.NodeUnprepareResourcesResponse.FromString(self.call(UNPREPARE, request.SerializeToString()))


def claim(ref: Any) -> pb.Claim:
    return pb.Claim(namespace=ref.namespace, uid=ref.uid, name=ref.name)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dra/dra.sock"


@pytest.fixture
def server(rig: Rig, path: Path) -> Iterator[UnixServer]:
    server = UnixServer(path, [DRAService(rig.preparer).handler()])
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kubelet(server: UnixServer, path: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(path)
    yield kubelet
    kubelet.channel.close()


def field(number: int, value: bytes) -> bytes:
    """A length-delimited field of the wire format, by hand."""
    size = len(value)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + value


def test_the_bytes_are_those_of_the_kubelet(rig: Rig, kubelet: Kubelet) -> None:
    ref = rig.claim(1, result("cpudevnuma000", "2", "cpus/big"))
    named = field(1, field(1, b"default") + field(2, ref.uid.encode()) + field(3, b"c1"))
    ids = [f"dra.k8s.io/cpu=claim-{ref.uid}-cpudevnuma000", f"dra.k8s.io/cpu=claim-{ref.uid}"]
    device = (
        field(1, b"cpus")
        + field(2, NODE.encode())
        + field(3, b"cpudevnuma000")
        + b"".join(field(4, cdi.encode()) for cdi in ids)
    )
    assert kubelet.call(PREPARE, named) == field(1, field(1, ref.uid.encode()) + field(2, field(1, device)))
    assert kubelet.call(UNPREPARE, named) == field(1, field(1, ref.uid.encode()) + field(2, b""))
    assert rig.recorded == {}


def test_share_id_is_set_only_when_the_allocation_has_one(rig: Rig, kubelet: Kubelet) -> None:
    with_, without = rig.claim(1, result(shareID=uid(9))), rig.claim(2)
    answer = kubelet.prepare(with_, without)
    assert answer.claims[with_.uid].devices[0].share_id == uid(9)
    assert not answer.claims[without.uid].devices[0].HasField("share_id")


@pytest.mark.fault("K4")
def test_errors_are_per_claim(rig: Rig, kubelet: Kubelet) -> None:
    good, bad = rig.claim(1), rig.claim(2, cpus="500m")
    answer = kubelet.prepare(good, bad)
    assert [device.device_name for device in answer.claims[good.uid].devices] == ["cpudevnuma000"]
    assert "it must be a whole number of CPUs" in answer.claims[bad.uid].error
    assert not answer.claims[bad.uid].devices
    assert rig.recorded == {good.uid: CPUSet.parse("0,8")}


@pytest.mark.fault("K4")
@pytest.mark.parametrize("name", ["\ud800", "a\nb\x1b[31m", "x" * 100_000])
def test_what_a_manifest_says_can_not_spoil_the_answer(rig: Rig, kubelet: Kubelet, name: str) -> None:
    good, bad = rig.claim(1), rig.claim(2, result(name))
    answer = kubelet.prepare(good, bad)
    assert answer.claims[good.uid].devices
    error = answer.claims[bad.uid].error
    assert error.startswith(f"claim {bad}: device ")
    assert error.isprintable()
    assert len(error) < 1024


def test_each_claim_has_exactly_one_answer(rig: Rig, kubelet: Kubelet) -> None:
    ref, missing = rig.claim(1), rig.claim(2)
    rig.claims.manifests.pop("c2")
    assert not kubelet.prepare().claims
    assert set(kubelet.prepare(ref, ref, missing).claims) == {ref.uid, missing.uid}
    assert not kubelet.unprepare().claims
    answer = kubelet.unprepare(ref, ref, missing)
    assert {uid_: entry.error for uid_, entry in answer.claims.items()} == {ref.uid: "", missing.uid: ""}


def test_ten_thousand_claims_in_one_call_have_ten_thousand_answers(rig: Rig, kubelet: Kubelet) -> None:
    refs = [rig.claim(number) for number in range(10_000)]
    answer = kubelet.prepare(*refs)
    assert set(answer.claims) == {ref.uid for ref in refs}
    assert sum(not entry.error for entry in answer.claims.values()) == len(rig.recorded) == 8
    assert "2 CPUs requested, 0 free" in answer.claims[refs[-1].uid].error
    assert len(kubelet.unprepare(*refs).claims) == 10_000
    assert rig.recorded == {}


def test_a_claim_without_our_devices_has_an_empty_answer(rig: Rig, kubelet: Kubelet) -> None:
    ref = rig.claim(1, {"driver": "gpu.example"})
    answer = kubelet.prepare(ref)
    assert (len(answer.claims[ref.uid].devices), answer.claims[ref.uid].error) == (0, "")


def test_fields_of_a_newer_kubelet_do_no_harm(rig: Rig, kubelet: Kubelet) -> None:
    ref = rig.claim(1)
    named = field(1, claim(ref).SerializeToString() + field(15, b"more")) + field(14, b"new")
    assert pb.NodePrepareResourcesResponse.FromString(kubelet.call(PREPARE, named)).claims[ref.uid].devices


def test_what_is_no_message_is_a_status_and_the_server_lives_on(rig: Rig, kubelet: Kubelet) -> None:
    with pytest.raises(grpc.RpcError):
        kubelet.call(PREPARE, b"\xff\xff\xff")
    assert kubelet.prepare(rig.claim(1)).claims


def test_the_kubelet_s_deadline_is_ours(rig: Rig, kubelet: Kubelet) -> None:
    seen: list[float] = []
    reader = rig.claims.reader

    def watched(deadline: float) -> Any:
        seen.append(deadline - time.monotonic())
        return reader(deadline)

    rig.claims.reader = watched  # type: ignore[method-assign]
    kubelet.prepare(rig.claim(1), timeout=20)
    assert 0 < seen[0] < 20  # gRPC rounds up


@pytest.mark.fault("K4")
def test_a_call_that_waits_holds_up_no_other(rig: Rig, kubelet: Kubelet) -> None:
    slow, quick = rig.claim(1), rig.claim(2)
    go, reading = threading.Event(), threading.Event()

    def wait(ref: Any) -> None:
        if ref == slow:
            reading.set()
            assert go.wait(30)

    rig.claims.before = wait
    thread = threading.Thread(target=kubelet.prepare, args=(slow,))
    thread.start()
    assert reading.wait(30)
    assert kubelet.prepare(quick).claims[quick.uid].devices
    go.set()
    thread.join(30)
    assert set(rig.recorded) == {slow.uid, quick.uid}


@pytest.mark.fault("K7")
def test_a_stale_socket_is_replaced_and_ours_is_removed_at_the_end(rig: Rig, path: Path) -> None:
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = UnixServer(path, [DRAService(rig.preparer).handler()])
    server.start()
    kubelet = Kubelet(path)
    assert kubelet.prepare(rig.claim(1)).claims
    kubelet.channel.close()
    server.stop()
    assert not path.exists()


@pytest.mark.fault("K7")
def test_a_socket_that_somebody_serves_is_left_alone(
    rig: Rig, server: UnixServer, kubelet: Kubelet, path: Path
) -> None:
    for ask in (UnixServer(path, []).start, lambda: refuse_served(path)):
        with pytest.raises(ServerError, match=r"another process serves .*dra.sock: end it first"):
            ask()
    assert kubelet.prepare(rig.claim(1)).claims


@pytest.mark.fault("K7")
def test_asking_whether_somebody_serves_changes_nothing(path: Path) -> None:
    refuse_served(path)
    assert not path.parent.exists()
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    refuse_served(path)
    assert path.is_socket()


def test_a_socket_that_takes_no_more_connections_is_not_taken_for_a_stale_one(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(path))
        busy.listen(0)
        first.connect(str(path))
        with pytest.raises(ServerError, match=r"whether a process serves .*dra.sock is unknown: "):
            refuse_served(path)
    assert path.is_socket()


def test_a_socket_that_another_instance_made_meanwhile_is_not_removed(rig: Rig, path: Path) -> None:
    server = UnixServer(path, [])
    server.start()
    path.unlink()
    path.write_text("not ours")
    server.stop()
    assert path.exists()


@pytest.mark.fault("A31")
def test_a_path_that_is_too_long_is_told_in_bytes(tmp_path: Path) -> None:
    root = Path("/" + "ä" * 36)  # 73 bytes: what is left for the root beside the longest socket
    UnixServer(root / "plugins_registry/dra.cpu-reg.sock", [])
    with pytest.raises(ServerError, match=r"has 108 bytes, 1 more than a socket's may have: give .* --root-dir"):
        UnixServer(Path(f"{root}x") / "plugins_registry/dra.cpu-reg.sock", [])


@pytest.mark.parametrize("name", ["with blank", "100%41", "ä", "a#b?c"])
def test_any_name_of_a_directory_will_do(rig: Rig, tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "dra.sock"
    server = UnixServer(path, [DRAService(rig.preparer).handler()])
    server.start()
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
    server.stop()
    assert list(path.parent.iterdir()) == []


def test_what_is_no_socket_is_not_removed(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(ServerError, match=r"dra.sock is no socket: remove it"):
        UnixServer(path, []).start()
    assert path.read_text() == "mine"


def test_a_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerError, match=r"file/plugins/dra.sock can't be made: Not a directory"):
        UnixServer(tmp_path / "file/plugins/dra.sock", []).start()

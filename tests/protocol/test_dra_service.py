"""Promises of the DRA service as a kubelet sees it: real gRPC over a real socket, literal method paths and bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra.claims import ClaimError
from dra.kubelet import dra_pb2 as pb
from dra.kubelet.server import UnixServer
from dra.kubelet.service import DRAService
from hack.wait import wait_until
from nri_cpu.cpuset import CPUSet
from tests.protocol.wire import field, fields
from tests.unit.dra.manifests import NODE, result, uid
from tests.unit.dra.rig import Rig

PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
UNPREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
V1BETA1_PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources"
V1BETA1_UNPREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources"


class Kubelet:
    """A client of the socket, as the kubelet is one: insecure, 45 s for a call."""

    def __init__(self, path: Path, options: list[tuple[str, Any]] | None = None) -> None:
        self.channel = grpc.insecure_channel(f"unix:{path}", options)

    def call(self, method: str, request: bytes, timeout: float = 45) -> bytes:
        raw: Any = self.channel.unary_unary(method)
        return bytes(raw(request, timeout=timeout, wait_for_ready=True))

    def begin(self, method: str, ref: Any) -> Any:
        """A call whose answer is not waited for."""
        raw: Any = self.channel.unary_unary(method)
        return raw.future(field(1, claim(ref).SerializeToString()), timeout=45)

    def prepare(self, *refs: Any, timeout: float = 45) -> pb.NodePrepareResourcesResponse:
        request = pb.NodePrepareResourcesRequest(claims=map(claim, refs))
        return pb.NodePrepareResourcesResponse.FromString(self.call(PREPARE, request.SerializeToString(), timeout))

    def unprepare(self, *refs: Any) -> pb.NodeUnprepareResourcesResponse:
        request = pb.NodeUnprepareResourcesRequest(claims=map(claim, refs))
        return pb.NodeUnprepareResourcesResponse.FromString(self.call(UNPREPARE, request.SerializeToString()))


def claim(ref: Any) -> pb.Claim:
    return pb.Claim(namespace=ref.namespace, uid=ref.uid, name=ref.name)


def refused(kubelet: Kubelet, method: str, request: bytes) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        kubelet.call(method, request)
    error: Any = caught.value
    return f"{error.code().name}: {error.details()}"


def keys(answer: bytes) -> set[bytes]:
    """The UIDs of the claims that an answer is about."""
    entries = fields(answer).get(1, [])
    return {cast("bytes", fields(cast("bytes", entry)).get(1, [b""])[0]) for entry in entries}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dra/dra.sock"


@pytest.fixture
def server(rig: Rig, path: Path) -> Iterator[UnixServer]:
    server = UnixServer(path, DRAService(rig.preparer).handlers())
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kubelet(server: UnixServer, path: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(path)
    yield kubelet
    kubelet.channel.close()


@pytest.mark.parametrize(
    ("prepare", "unprepare"),
    [(PREPARE, UNPREPARE), (V1BETA1_PREPARE, V1BETA1_UNPREPARE)],
    ids=["v1", "v1beta1"],
)
def test_the_bytes_are_those_of_the_kubelet(rig: Rig, kubelet: Kubelet, prepare: str, unprepare: str) -> None:
    share = uid(9)
    ref = rig.claim(1, result("cpudevnuma000", "2", "cpus/big", shareID=share))
    named = field(1, field(1, "default") + field(2, ref.uid) + field(3, "c1"))
    device = (
        field(1, "cpus")
        + field(2, NODE)
        + field(3, "cpudevnuma000")
        + field(4, f"dra.k8s.io/cpu=claim-{ref.uid}-cpudevnuma000")
        + field(4, f"dra.k8s.io/cpu=claim-{ref.uid}")
        + field(4, f"dra.cpu/metadata={ref.uid}_cpus")
        + (field(5, share) if prepare == PREPARE else b"")
    )
    assert kubelet.call(prepare, named) == field(1, field(1, ref.uid) + field(2, field(1, device)))
    assert kubelet.call(unprepare, named) == field(1, field(1, ref.uid) + field(2, b""))
    assert rig.recorded == {}


def test_share_id_is_set_only_when_the_allocation_has_one(rig: Rig, kubelet: Kubelet) -> None:
    ref = rig.claim(1)
    named = field(1, claim(ref).SerializeToString())
    for method in (PREPARE, V1BETA1_PREPARE):
        entry = fields(cast("bytes", fields(kubelet.call(method, named))[1][0]))
        device = fields(cast("bytes", fields(cast("bytes", entry[2][0]))[1][0]))
        assert device.keys() == {1, 2, 3, 4}


def test_what_one_version_prepares_the_other_unprepares(rig: Rig, kubelet: Kubelet) -> None:
    ref = rig.claim(1)
    kubelet.call(V1BETA1_PREPARE, field(1, claim(ref).SerializeToString()))
    assert set(rig.recorded) == {ref.uid}
    assert kubelet.unprepare(ref).claims[ref.uid].error == ""
    assert rig.recorded == {}


@pytest.mark.parametrize("method", ["v1alpha4.Node/NodePrepareResources", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/X"])
def test_what_is_not_served_is_told_as_such(kubelet: Kubelet, method: str) -> None:
    assert refused(kubelet, f"/{method}", b"").startswith("UNIMPLEMENTED")


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


@pytest.mark.parametrize("method", [PREPARE, UNPREPARE, V1BETA1_PREPARE, V1BETA1_UNPREPARE])
@pytest.mark.parametrize(
    "broken",
    [b"\xff\xff\xff", b"\x0a\x05ab", field(1, field(2, b"\xff\xfe")), field(1, b"\x12"), b"\x0a" + b"\xff" * 11],
    ids=["no field", "cut off", "no text", "cut off inside", "no number"],
)
def test_what_is_no_message_is_told_as_such_and_the_server_lives_on(
    rig: Rig, kubelet: Kubelet, caplog: pytest.LogCaptureFixture, method: str, broken: bytes
) -> None:
    assert refused(kubelet, method, broken).startswith(
        f"INVALID_ARGUMENT: the request has {len(broken)} bytes that are no Node"
    )
    assert kubelet.prepare(rig.claim(1)).claims
    assert not caplog.records  # gRPC would print a traceback


@given(
    st.binary(max_size=60) | st.lists(st.binary(max_size=20)).map(lambda parts: b"".join(field(1, p) for p in parts))
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_have_an_answer_for_each_claim_or_are_told_to_be_none(kubelet: Kubelet, data: bytes) -> None:
    for method in (PREPARE, UNPREPARE):
        try:
            answer = kubelet.call(method, data)
        except grpc.RpcError as error:
            failed: Any = error
            assert failed.code() is grpc.StatusCode.INVALID_ARGUMENT
            continue
        asked = {each.uid for each in pb.NodePrepareResourcesRequest.FromString(data).claims}
        assert {uid_.decode() for uid_ in keys(answer)} == asked


def test_a_request_larger_than_any_is_refused_and_the_server_lives_on(rig: Rig, kubelet: Kubelet) -> None:
    assert refused(kubelet, PREPARE, field(1, field(3, b"x" * (5 << 20)))).startswith("RESOURCE_EXHAUSTED")
    assert kubelet.prepare(rig.claim(1)).claims


@pytest.mark.fault("K4")
def test_ten_thousand_long_errors_do_not_fail_the_call_whole(rig: Rig, kubelet: Kubelet) -> None:
    def fail(ref: Any) -> None:
        raise ClaimError("ä" * 2000)

    rig.claims.before = fail
    refs = [rig.claim(number) for number in range(10_000)]
    answer = kubelet.prepare(*refs)  # a client of gRPC takes 4 MiB
    assert set(answer.claims) == {ref.uid for ref in refs}
    assert all(
        entry.error.startswith(f"claim default/c{number}")
        for number, entry in ((number, answer.claims[refs[number].uid]) for number in (0, 9_999))
    )
    assert len(kubelet.prepare(refs[0]).claims[refs[0].uid].error) > 900


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


@pytest.mark.fault("K4", "K5")
def test_an_unprepare_is_answered_while_the_prepares_of_all_pods_of_a_node_hang(rig: Rig, kubelet: Kubelet) -> None:
    ended, pods = rig.claim(200), [rig.claim(number) for number in range(110)]
    rig.prepare(ended)
    go, reading = threading.Event(), threading.Semaphore(0)

    def wait(ref: Any) -> None:
        reading.release()
        assert go.wait(60)

    rig.claims.before = wait
    calls = [kubelet.begin(PREPARE, ref) for ref in pods]
    for _ in calls:
        assert reading.acquire(timeout=30)
    assert kubelet.unprepare(ended).claims[ended.uid].error == ""
    assert rig.recorded == {}
    go.set()
    assert all(call.result() for call in calls)


@pytest.mark.fault("K3", "K9")
def test_a_call_that_the_kubelet_has_given_up_prepares_nothing_after_another_instance_has_unprepared(
    rig: Rig, kubelet: Kubelet
) -> None:
    ref = rig.claim(1)
    go, reading, decided = threading.Event(), threading.Event(), threading.Event()

    def wait(ref: Any) -> None:
        reading.set()
        assert go.wait(30)

    def transact(jobs: Any) -> None:
        before(jobs)
        decided.set()

    before, rig.ledger.transact = rig.ledger.transact, transact  # type: ignore[method-assign]
    rig.claims.before = wait
    call = kubelet.begin(PREPARE, ref)
    assert reading.wait(30)
    call.cancel()
    assert rig.another().unprepare(ref) == ""
    time_for_the_news = rig.claim(2)
    rig.claims.before = lambda ref: None
    assert kubelet.prepare(time_for_the_news).claims[time_for_the_news.uid].devices  # cancelled before on the same wire
    decided.clear()
    go.set()
    assert decided.wait(30)
    assert set(rig.recorded) == {time_for_the_news.uid}


@pytest.mark.fault("K3")
def test_a_prepare_that_nobody_waits_for_any_more_is_not_begun(rig: Rig, path: Path) -> None:
    slow, stale = rig.claim(1), rig.claim(2)
    go, reading = threading.Event(), threading.Event()

    def wait(ref: Any) -> None:
        if ref == slow:
            reading.set()
            assert go.wait(30)

    rig.claims.before = wait
    server = UnixServer(path, DRAService(rig.preparer).handlers(), workers=1)
    server.start()
    kubelet = Kubelet(path)
    first = kubelet.begin(PREPARE, slow)
    assert reading.wait(30)
    second = kubelet.begin(PREPARE, stale)  # waits for the one thread
    third = kubelet.begin(UNPREPARE, stale)
    second.cancel()
    go.set()
    assert first.result()
    assert third.result()
    assert kubelet.unprepare(slow).claims  # after all three: there is one thread
    assert stale not in rig.claims.reads
    assert rig.recorded == {}
    kubelet.channel.close()
    server.stop()


@pytest.mark.fault("K3", "K10")
def test_a_kubelet_that_gives_up_and_asks_again_has_the_same_answer(rig: Rig, kubelet: Kubelet) -> None:
    ref = rig.claim(1)
    go, reading = threading.Event(), threading.Event()

    def wait(_: Any) -> None:
        reading.set()
        assert go.wait(30)

    rig.claims.before = wait
    given_up = kubelet.begin(PREPARE, ref)
    assert reading.wait(30)
    given_up.cancel()
    again = kubelet.begin(PREPARE, ref)
    go.set()
    first = again.result()
    wait_until("it is prepared", lambda: rig.recorded)
    assert kubelet.call(PREPARE, field(1, claim(ref).SerializeToString())) == first
    assert len(rig.recorded) == 1


@pytest.mark.fault("K4", "K10")
def test_a_hundred_clients_with_one_claim_have_one_answer(rig: Rig, server: UnixServer, path: Path) -> None:
    ref = rig.claim(1)
    with ExitStack() as stack:
        kubelets = [Kubelet(path, [("number", number)]) for number in range(100)]
        for each in kubelets:
            stack.callback(each.channel.close)
        calls = [each.begin(PREPARE, ref) for each in kubelets]
        assert len({bytes(each.result()) for each in calls}) == 1
    assert set(rig.recorded) == {ref.uid}

"""Promises of claims from the API server: one GET with a time limit, and a claim error for whatever goes wrong."""

import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dra.claims import ClaimError, ClaimRef, parse_claim
from dra.kube import ApiServer, CredentialsError, claims, client
from tests.unit.dra.apiserver import FakeApiServer
from tests.unit.dra.manifests import UID, manifest
from tests.unit.dra.virtual_time import VirtualTime

REF = ClaimRef(UID, "default", "one")


def read(server: FakeApiServer, directory: Path, ref: ClaimRef = REF, seconds: float = 30) -> object:
    """In a time that passes between attempts only."""
    source = ApiServer(server.kubeconfig(directory), "dra-cpu/test", VirtualTime())
    return source.reader(seconds)(ref)


def refusal(server: FakeApiServer, directory: Path, seconds: float = 30) -> str:
    with pytest.raises(ClaimError) as caught:
        read(server, directory, seconds=seconds)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_claim_is_read_by_one_get_with_the_credentials(server: FakeApiServer, tmp_path: Path) -> None:
    path = server.put(manifest())
    assert parse_claim(read(server, tmp_path), UID).name == "one"
    ((seen, headers),) = server.seen
    assert seen == path
    assert headers["authorization"] == "Bearer secret"
    assert headers["user-agent"] == "dra-cpu/test"


def test_connections_are_kept(server: FakeApiServer, tmp_path: Path) -> None:
    server.put(manifest())
    source = ApiServer(server.kubeconfig(tmp_path), "dra-cpu/test")
    for _ in range(3):
        source.reader(time.monotonic() + 30)(REF)
    assert server.connections == 1


def test_a_kept_connection_that_the_server_closed_is_made_anew(server: FakeApiServer, tmp_path: Path) -> None:
    server.put(manifest())
    read_one = ApiServer(server.kubeconfig(tmp_path), "dra-cpu/test").reader(time.monotonic() + 30)
    assert read_one(REF) == manifest()
    server.drop_next = True
    assert read_one(REF) == manifest()
    assert len(server.seen) == 3


@pytest.mark.fault("K5")
def test_a_claim_that_is_gone_is_a_claim_error(server: FakeApiServer, tmp_path: Path) -> None:
    assert refusal(server, tmp_path) == (
        f"{server.url}/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/one answered 404 "
        '(the claim does not exist any more): resourceclaims "one" not found'
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (403, b'{"message": "nobody\\nmay"}'),
            "answered 403 (the service account needs the verb get on resourceclaims): nobody may",
        ),
        ((401, b"who"), "/kubeconfig is not accepted): who"),
        ((500, b"\xff\x00"), "answered 500: \ufffd?"),
        ((301, b"[]"), "answered 301 (redirects are not followed): []"),
        ((200, b"{"), "answered what is no JSON: b'{'"),
        ((200, b"[" * 100_000), "answered what is no JSON: b'[["),
        ((200, b" " * (9 << 20)), "can't be read: the answer is larger than 8388608 bytes"),
    ],
)
def test_any_other_answer_is_a_claim_error(
    server: FakeApiServer, tmp_path: Path, answer: tuple[int, bytes], message: str
) -> None:
    server.claims[server.put(manifest())] = answer
    assert message in refusal(server, tmp_path)


def test_a_server_that_is_not_there_is_a_claim_error(server: FakeApiServer, tmp_path: Path) -> None:
    server.url = "http://127.0.0.1:1"
    assert "can't be read: " in (text := refusal(server, tmp_path))
    assert "Connection refused" in text


@pytest.mark.fault("K4")
def test_a_server_that_does_not_answer_is_given_up(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put(manifest())
    server.hold = threading.Event()
    monkeypatch.setattr(claims, "GET_TIMEOUT", 0.2)
    assert "timed out" in refusal(server, tmp_path)


@contextmanager
def dripping(start: bytes) -> Iterator[int]:
    """A server that says `start` and then one byte after the other, each in time; its port. Ends when nobody listens,
    or when it has answered after all."""

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(start)
            for _ in range(200):
                connection.sendall(b" ")
                if gone.wait(0.02):
                    return
            connection.sendall(b"{}")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            gone.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.fault("K4")
@pytest.mark.parametrize(
    ("scheme", "start"),
    [
        ("http", b"HTTP/1.1 200 OK\r\nX: "),
        ("http", b"HTTP/1.1 200 OK\r\ncontent-length: 202\r\n\r\n"),
        ("http", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nca\r\n"),
        ("http", b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"),
        ("https", b"\x16\x03\x03\x40\x00"),
    ],
    ids=["headers", "body", "chunks", "body-to-the-end", "tls"],
)
def test_a_server_that_drips_its_answer_is_given_up(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, start: bytes
) -> None:
    monkeypatch.setattr(claims, "GET_TIMEOUT", 0.3)
    with dripping(start) as port:
        server.url = f"{scheme}://127.0.0.1:{port}"
        assert refusal(server, tmp_path).endswith("/resourceclaims/one can't be read: the answer timed out")


def test_a_chunk_of_a_length_that_is_none_is_no_way_round_the_limit(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RESPONSE_LIMIT", 20)
    with dripping(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n") as port:
        server.url = f"http://127.0.0.1:{port}"
        assert refusal(server, tmp_path).endswith("can't be read: the answer is larger than 20 bytes")


@pytest.mark.fault("K4")
def test_a_kept_connection_has_the_time_limit_too(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put(manifest())
    source = ApiServer(server.kubeconfig(tmp_path), "dra-cpu/test")
    read_one = source.reader(time.monotonic() + 30)
    assert read_one(REF) == manifest()
    server.drip = threading.Event()
    monkeypatch.setattr(claims, "GET_TIMEOUT", 0.3)
    with pytest.raises(ClaimError, match="timed out"):
        read_one(REF)
    server.drip.set()
    server.drip = None
    monkeypatch.setattr(claims, "GET_TIMEOUT", 30)
    assert read_one(REF) == manifest(), "and what was cut off is not used again"


def test_the_time_limit_costs_no_descriptors(server: FakeApiServer, tmp_path: Path) -> None:
    server.put(manifest())
    source = ApiServer(server.kubeconfig(tmp_path), "dra-cpu/test")
    gc.collect()  # descriptors that other tests left to it are not to go while these are counted
    counts = []
    for _ in range(20):
        source.reader(time.monotonic() + 30)(REF)
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counts[-1] <= counts[0]


def test_without_time_left_nothing_is_asked(server: FakeApiServer, tmp_path: Path) -> None:
    assert "no time is left" in refusal(server, tmp_path, seconds=0.1)
    assert server.seen == []


def test_names_can_not_leave_their_place_in_the_path(server: FakeApiServer, tmp_path: Path) -> None:
    with pytest.raises(ClaimError):
        read(server, tmp_path, ClaimRef(UID, "default", "a/b?c#d"))
    assert server.seen[0][0].endswith("/namespaces/default/resourceclaims/a%2Fb%3Fc%23d")


def test_a_missing_kubeconfig_is_one_line_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"--kubeconfig .*/nowhere can't be used: ") as caught:
        ApiServer(tmp_path / "nowhere", "dra-cpu/test")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "a: [", "apiVersion: v1\nkind: Config\ncurrent-context: x\n", "\0"])
def test_a_broken_kubeconfig_is_one_line_with_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    with pytest.raises(CredentialsError, match="kubeconfig can't be used: ") as caught:
        ApiServer(path, "dra-cpu/test")
    assert "\n" not in str(caught.value)


def test_outside_a_pod_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        CredentialsError, match=r"no credentials for the API server: .* --kubeconfig, or .* --claims-dir"
    ):
        ApiServer(None, "dra-cpu/test")

"""The parts of the cluster in a box that need no cluster: versions, certificates, ports, relay, proxy, command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.kube import build, control_plane, node
from hack.kube.__main__ import main
from hack.kube.certificates import Authority, Wanted
from hack.kube.control_plane import held_port
from hack.kube.egress import Egress
from hack.node import kept, tools
from hack.node.errors import BuildError, ChannelError
from hack.wait import wait_until

RELAY = Path(node.__file__).with_name("relay.py")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    tools.need(tools.TO_CERTIFY)
    made = Authority(tmp_path_factory.mktemp("kube") / "certificates")
    made.issue([Wanted("server", "kube-apiserver", server=["DNS:localhost", "IP:127.0.0.1"]), Wanted("one", "u", "g")])
    return made


def test_programs_are_told_the_version_that_they_are_built_from() -> None:
    assert f"k8s.io/kubernetes v{build.version()}\n" in (build.SOURCES.folder / "go.mod").read_text()
    major, minor, _ = build.version().split(".")
    assert f"-X k8s.io/component-base/version.gitVersion=v{build.version()} " in build.flags()
    assert f".gitMajor={major} " in build.flags()
    assert f".gitMinor={minor} " in build.flags()


def test_staging_modules_are_of_the_same_release() -> None:
    _, minor, patch = build.version().split(".")
    lines = (build.SOURCES.folder / "go.mod").read_text().splitlines()
    staging = [line.split() for line in lines if line.strip().startswith("k8s.io/") and "=>" in line]
    assert len(staging) > 20
    assert {words[-1] for words in staging} == {f"v0.{minor}.{patch}"}


def test_server_and_client_know_each_other_by_their_certificates(authority: Authority) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate("ca")))
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(authority.certificate("server"), authority.key("server"))
    client = ssl.create_default_context(cafile=str(authority.certificate("ca")))
    client.load_cert_chain(authority.certificate("one"), authority.key("one"))
    for context in (server, client):  # what newer Pythons ask by default
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()
    subject: list[object] = []

    def serve() -> None:
        with server.wrap_socket(theirs, server_side=True) as accepted:
            certificate = accepted.getpeercert()
            subject.extend(certificate["subject"] if certificate else ())
            accepted.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(ours, server_hostname="127.0.0.1") as connected:
        connected.send(b"x")
        thread.join()
    assert subject == [(("organizationName", "g"),), (("commonName", "u"),)]


def test_keys_are_for_their_owner_alone(authority: Authority) -> None:
    assert authority.directory.stat().st_mode & 0o077 == 0


def test_a_kubeconfig_has_all_that_a_client_needs(authority: Authority) -> None:
    config = json.loads(authority.kubeconfig_with_token("https://10.0.2.97", "secret"))
    assert config["clusters"][0]["cluster"]["server"] == "https://10.0.2.97"
    assert config["users"][0]["user"] == {"token": "secret"}
    assert set(json.loads(authority.kubeconfig("https://x", "one"))["users"][0]["user"]) == {
        "client-certificate-data",
        "client-key-data",
    }


def test_a_held_port_refuses_until_a_program_shares_it_and_is_nobody_elses() -> None:
    with held_port() as held, held_port() as other:
        address = held.getsockname()
        assert address != other.getsockname()
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(address)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        for _ in range(2):  # again after it has gone
            with socket.socket() as sharer:
                sharer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                sharer.bind(address)
                sharer.listen()
                for _ in range(20):
                    socket.create_connection(address).close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(20)
        yield made


def start_relay(port: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    with theirs:
        return subprocess.Popen([sys.executable, "-I", "-S", str(RELAY), str(port)], stdin=theirs.fileno()), ours


def receive_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def send_all(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def test_the_relay_carries_both_ways_and_each_end_by_itself(listener: socket.socket) -> None:
    process, ours = start_relay(listener.getsockname()[1])
    data = os.urandom(1 << 20)
    with process, ours, listener.accept()[0] as server:
        server.settimeout(20)
        sender = threading.Thread(target=send_all, args=(ours, data))
        sender.start()
        assert receive_all(server) == data
        sender.join()
        send_all(server, b"answer")
        assert receive_all(ours) == b"answer"
    assert process.returncode == 0


def test_the_relay_ends_where_nobody_listens(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    process, ours = start_relay(port)
    with process, ours:
        assert ours.recv(1) == b""
    assert process.returncode == 1


def test_the_box_may_reach_the_api_server_and_nothing_else() -> None:
    option = node.network(12345)
    assert option.startswith("guestfwd=tcp:10.0.2.97:443-cmd:")
    assert option.endswith("relay.py 12345")
    assert option.count("guestfwd") == 1


def test_gates_are_the_kubelets_too() -> None:
    assert node.kubelet_configuration({"One": True, "Two": False})["featureGates"] == {"One": True, "Two": False}


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Path]:
    """A proxy that knows node1 alone, whose every port says which one it is."""

    def connect(host: str, port: int) -> socket.socket:
        if host != "node1":
            raise ChannelError(f"there is no node {host}")
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(str(port).encode())
        return ours

    path = tmp_path / "proxy.sock"
    with Egress(path, connect):
        yield path


def ask(proxy: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(proxy))
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        return receive_all(client)


def test_the_proxy_joins_a_node_by_its_name(proxy: Path) -> None:
    request = b"CONNECT node1:10250 HTTP/1.1\r\nHost: node1:10250\r\n\r\n"
    assert ask(proxy, request + b"hello") == b"HTTP/1.1 200 OK\r\n\r\n10250"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"CONNECT node2:10250 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"CONNECT node1 HTTP/1.1\r\n\r\n",
        b"CONNECT node1:port HTTP/1.1\r\n\r\n",
        b"CONNECT node1:10250 HTTP/1.1\r\n",
        b"\xff\r\n\r\n",
        b"",
    ],
)
def test_the_proxy_hangs_up_on_all_else(proxy: Path, request_bytes: bytes) -> None:
    assert ask(proxy, request_bytes) == b""
    assert ask(proxy, b"CONNECT node1:1 HTTP/1.1\r\n\r\n") == b"HTTP/1.1 200 OK\r\n\r\n1"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Abandoned directories are removed by the next start of their kind; here that is none but the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def start_kept(tmp_path: Path, *command: str) -> tuple[kept.Kept, Path]:
    directory, lock = kept.locked_directory("nri-cpu-test-")
    made = kept.Kept(command, directory=directory, lock=lock, log=tmp_path / "log")
    os.close(lock)
    return made, directory


def test_a_kept_program_ends_with_its_directory(tmp_path: Path) -> None:
    program, directory = start_kept(tmp_path, "sh", "-c", "echo $$; exec sleep 1000")
    pid = wait_until("its word", lambda: (tmp_path / "log").read_text().strip())
    assert kept.is_kept(directory)
    assert not program.ended()
    program.close()
    program.close()
    assert not directory.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_kept_program_that_ends_by_itself_leaves_its_directory_to_be_read(tmp_path: Path) -> None:
    program, directory = start_kept(tmp_path, "sh", "-c", "echo why >&2; exit 3")
    wait_until("its end", program.ended)
    assert (directory.exists(), (tmp_path / "log").read_text()) == (True, "why\n")
    program.close()
    assert program.ended()
    assert not directory.exists()


def test_a_kept_program_that_is_not_there_has_ended(tmp_path: Path) -> None:
    program, _directory = start_kept(tmp_path, "/no/such/program")
    wait_until("its end", program.ended)
    program.close()
    assert "No such file" in (tmp_path / "log").read_text()


def test_an_abandoned_directory_is_removed_by_the_next_of_its_kind(tmp_path: Path) -> None:
    program, directory = start_kept(tmp_path, "sleep", "1000")
    os.kill(program.pid, signal.SIGKILL)
    program.close()
    assert directory.exists()
    assert not kept.is_kept(directory)
    another, lock = kept.locked_directory("nri-cpu-test-")
    assert not directory.exists()
    another.rmdir()
    os.close(lock)


@pytest.mark.parametrize("gate", ["", "One", "One=", "One=yes", "=true"])
def test_a_gate_that_is_none_is_wrong_usage(gate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["up", "--gate", gate])
    assert "is not NAME=true or NAME=false" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["down"], ["logs"], ["kubectl", "get", "pods"]])
def test_without_a_cluster_one_line_says_how_to_get_one(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control_plane, "PREFIX", "nri-cpu-no-cluster-")
    assert main(command) == 1
    assert capsys.readouterr().err == "cluster: no cluster is up: hack/cluster up\n"
    assert main(["--cluster", "/none", *command]) == 1
    assert capsys.readouterr().err == "cluster: no cluster is up in /none; hack/cluster list tells where\n"


@pytest.mark.parametrize("command", [["down"], ["logs"], ["kubectl", "get", "pods"]])
def test_among_several_clusters_one_has_to_be_named(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    locks = []
    for _ in range(2):
        directory, lock = kept.locked_directory(control_plane.PREFIX)
        (directory / "owner").write_text("1")
        locks.append(lock)
    first, _second = kept.directories(control_plane.PREFIX)
    assert main(command) == 1
    assert capsys.readouterr().err == f"cluster: several clusters are up: --cluster {first}, or another\n"
    for lock in locks:
        os.close(lock)


def test_a_control_plane_that_gets_no_certificates_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openssl").write_text("#!/bin/sh\necho no luck >&2; exit 1\n")
    (tmp_path / "openssl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(BuildError, match="no luck"):
        control_plane.ControlPlane(tmp_path, {})
    assert not kept.directories(control_plane.PREFIX)

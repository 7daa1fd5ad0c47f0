"""Promises of proxies: the one of the kubeconfig or of the environment is used, and only where it should be."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dra.claims import ClaimError
from dra.kube import CredentialsError
from dra.kube.credentials import proxy_of_environment
from hack.kube.certificates import Authority
from tests.unit.dra.apiserver import apiserver
from tests.unit.dra.kubeconfigs import config, data, read, serving, source
from tests.unit.dra.manifests import manifest


@contextmanager
def proxy(answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> Iterator[tuple[str, list[bytes]]]:
    """A proxy that connects to whatever it is told: its address, and what it was told."""
    asked: list[bytes] = []

    def carry(from_: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):  # the other one may be gone
            while part := from_.recv(65536):
                to.sendall(part)
            to.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with listener.accept()[0] as client:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += client.recv(1)
            asked.append(head)
            client.sendall(answer)
            if b" 200 " in answer:
                host, _, port = head.split()[1].decode().rpartition(":")
                with socket.create_connection((host, int(port))) as target:
                    back = threading.Thread(target=carry, args=(target, client))
                    back.start()
                    carry(client, target)
                    back.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            thread.join(10)


@pytest.mark.parametrize("tls", [True, False])
def test_a_proxy_is_used_and_told_who_asks_it(tmp_path: Path, authority: Authority, tls: bool) -> None:
    with serving(authority) as secured, apiserver() as plain, proxy() as (address, asked):
        plain.put(manifest())
        server = secured if tls else plain
        trusted = {"certificate-authority-data": data(authority.certificate("ca"))} if tls else {}
        api = source(tmp_path, config(server.url, None, {**trusted, "proxy-url": f"http://me:se%40cret@{address}/"}))
        assert read(api) == manifest()
        assert read(api) == manifest()
        target = server.url.partition("://")[2].encode()
        assert asked[0].startswith(b"CONNECT " + target + b" HTTP/1.1\r\n")
        assert b"\r\nHost: " + target + b"\r\n" in asked[0]
        assert b"Proxy-Authorization: Basic bWU6c2VAY3JldA==\r\n" in asked[0]
        assert server.connections == 1
        del api


def test_a_proxy_that_refuses_is_named(tmp_path: Path) -> None:
    with proxy(b"HTTP/1.1 407 Who are you\r\ncontent-length: 0\r\n\r\n") as (address, _):
        api = source(tmp_path, config("https://10.0.0.1", None, {"proxy-url": f"http://{address}"}))
        with pytest.raises(ClaimError, match=r"can't be read: the proxy 127\.0\.0\.1 answered 407"):
            read(api)


@pytest.mark.parametrize(
    ("server", "environment", "expected"),
    [
        ("https://10.96.0.1:443", {}, None),
        ("https://10.96.0.1:443", {"HTTPS_PROXY": "p:3128"}, "http://p:3128"),
        ("https://10.96.0.1:443", {"https_proxy": "http://p:3128/"}, "http://p:3128"),
        ("http://10.96.0.1", {"HTTPS_PROXY": "http://p"}, None),
        ("http://10.96.0.1", {"HTTP_PROXY": "http://p"}, "http://p"),
        ("https://10.96.0.1", {"HTTPS_PROXY": "http://p", "NO_PROXY": "a, 10.96.0.0/12"}, None),
        ("https://10.96.0.1", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.97.0.0/16,x/y"}, "http://p"),
        ("https://10.96.0.1", {"HTTPS_PROXY": "http://p", "no_proxy": "10.96.0.1"}, None),
        ("https://[fd00::1]:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "[fd00::1]:6443"}, None),
        ("https://[fd00::1]", {"HTTPS_PROXY": "http://p", "NO_PROXY": "fd00::/8"}, None),
        ("https://a.example.com", {"HTTPS_PROXY": "http://p", "NO_PROXY": "example.com"}, None),
        ("https://a.example.com", {"HTTPS_PROXY": "http://p", "NO_PROXY": "*.example.com"}, None),
        ("https://a.example.com", {"HTTPS_PROXY": "http://p", "NO_PROXY": ".EXAMPLE.com"}, None),
        ("https://aexample.com", {"HTTPS_PROXY": "http://p", "NO_PROXY": "example.com"}, "http://p"),
        ("https://a.example.com:1", {"HTTPS_PROXY": "http://p", "NO_PROXY": "example.com:2"}, "http://p"),
        ("https://a.example.com:2", {"HTTPS_PROXY": "http://p", "NO_PROXY": "example.com:2"}, None),
        ("https://a.example.com", {"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, None),
        ("https://127.0.0.1", {"HTTPS_PROXY": "http://p"}, None),
        ("https://localhost", {"HTTPS_PROXY": "http://p"}, None),
    ],
)
def test_the_environment_names_a_proxy_and_who_needs_none(
    server: str, environment: dict[str, str], expected: str | None
) -> None:
    assert proxy_of_environment(server, environment) == expected


def test_a_proxy_of_another_kind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CredentialsError, match="HTTPS_PROXY: 'socks5': only proxies that are spoken to by http://"):
        proxy_of_environment("https://10.0.0.1", {"HTTPS_PROXY": "socks5://p"})

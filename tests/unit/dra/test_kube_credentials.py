"""Promises of credentials: a pod's service account and a kubeconfig are used as client-go does, and stay current."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from dra.claims import ClaimError
from hack.kube.certificates import Authority, Wanted
from tests.unit.dra.apiserver import FakeApiServer, apiserver
from tests.unit.dra.kubeconfigs import authorization, config, data, problem, read, serving, source
from tests.unit.dra.manifests import manifest


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """An authority that nobody trusts."""
    return Authority(tmp_path / "stranger")


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with apiserver() as fake:
        fake.put(manifest())
        yield fake


def test_client_certificates_are_taken_from_the_kubeconfig(tmp_path: Path, authority: Authority) -> None:
    user = {
        "client-certificate-data": data(authority.certificate("client")),
        "client-key-data": data(authority.key("client")),
    }
    with serving(authority, clients=True) as server:
        trusted = {"certificate-authority-data": data(authority.certificate("ca"))}
        assert read(source(tmp_path, config(server.url, user, trusted))) == manifest()
        with pytest.raises(ClaimError, match="can't be read: "):
            read(source(tmp_path, config(server.url, {}, trusted)))


def put(authority: Authority, name: str, directory: Path, file: str) -> None:
    """Files as a controller of certificates replaces them."""
    for suffix, made in (("crt", authority.certificate(name)), ("key", authority.key(name))):
        new = directory / f"{file}.{suffix}.new"
        shutil.copy(made, new)
        new.replace(directory / f"{file}.{suffix}")


def test_certificates_in_files_are_found_beside_the_kubeconfig_and_read_again(
    tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    stranger.issue([Wanted("client", "driver")])
    put(stranger, "client", tmp_path, "client")
    put(authority, "ca", tmp_path, "ca")
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    with serving(authority, clients=True) as server:
        api = source(tmp_path, config(server.url, user, {"certificate-authority": "ca.crt"}))
        with pytest.raises(ClaimError, match="can't be read: "):
            read(api)
        put(authority, "client", tmp_path, "client")
        assert read(api) == manifest()
    with serving(authority, clients=True) as server:
        api = source(tmp_path, config(server.url, user, {"certificate-authority": "ca.crt"}))
        (tmp_path / "client.crt").write_text("half of it")
        (tmp_path / "ca.crt").unlink()
        assert read(api) == manifest(), "what can't be used is no reason to forget what could"


def test_a_new_client_certificate_is_used_at_once(tmp_path: Path, authority: Authority) -> None:
    """The server is told of it when a connection is made: one that is kept has the old one, which may have ended."""
    put(authority, "client", tmp_path, "client")
    put(authority, "ca", tmp_path, "ca")
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    with serving(authority, clients=True) as server:
        api = source(tmp_path, config(server.url, user, {"certificate-authority": "ca.crt"}))
        for _ in range(3):
            assert read(api) == manifest()
        assert server.connections == 1
        put(authority, "client", tmp_path, "client")
        for _ in range(3):
            assert read(api) == manifest()
        assert server.connections == 2


@pytest.fixture
def log() -> Iterator[list[str]]:
    """Warnings, and that they are over."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO")
    yield lines
    logger.remove(sink)


def test_a_token_that_can_not_be_read_again_is_told_once(tmp_path: Path, server: FakeApiServer, log: list[str]) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    api = source(tmp_path, config(server.url, {"tokenFile": "token"}))
    for content in ("first", None, "", "second"):
        token.unlink() if content is None else token.write_text(content)
        for _ in range(3):
            assert read(api) == manifest()
    gone = f"the token can't be read: [Errno 2] No such file or directory: '{token}'"
    empty = f"the token can't be read: {token}: holds no token"
    assert log == [*(f"{told}; what was read before stays in use" for told in (gone, empty)), f"no more: {empty}"]


def test_certificates_that_can_not_be_used_are_told_once(
    tmp_path: Path, authority: Authority, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(authority, "client", tmp_path, "client")
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    with serving(authority, clients=True) as server:
        api = source(tmp_path, config(server.url, user, {"insecure-skip-tls-verify": True}))
        for content in (None, "half of it"):
            path = tmp_path / "client.crt"
            path.unlink() if content is None else path.write_text(content)
            for _ in range(3):
                assert read(api) == manifest()
        put(authority, "client", tmp_path, "client")
        assert read(api) == manifest()
    gone, half, over = log
    assert gone == f"{path} can't be read: No such file or directory; what was read before stays in use"
    assert half.startswith(f"the client certificate and key ({path}, {tmp_path}/client.key) can't be used: ")
    assert over.startswith(f"no more: the client certificate and key ({path}")


def test_certificates_that_were_away_for_a_while_are_used_again(
    tmp_path: Path, authority: Authority, log: list[str]
) -> None:
    """As on a volume that is mounted anew: the files themselves are the same."""
    directory, away = tmp_path / "volume", tmp_path / "away"
    directory.mkdir()
    put(authority, "client", directory, "client")
    user = {"client-certificate": "volume/client.crt", "client-key": "volume/client.key"}
    with serving(authority, clients=True) as server:
        api = source(tmp_path, config(server.url, user, {"insecure-skip-tls-verify": True}))
        directory.rename(away)
        assert read(api) == manifest()
        away.rename(directory)
        assert read(api) == manifest()
    told = f"{directory}/client.crt can't be read: No such file or directory"
    assert log == [f"{told}; what was read before stays in use", f"no more: {told}"]


def test_a_server_that_nobody_vouches_for_is_not_spoken_to(
    tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    with serving(authority) as server:
        for trusted in ({"certificate-authority-data": data(stranger.certificate("ca"))}, {}):
            with pytest.raises(ClaimError, match=r"can't be read: .*certificate verify failed"):
                read(source(tmp_path, config(server.url, None, trusted)))
        assert server.seen == []
        assert read(source(tmp_path, config(server.url, None, {"insecure-skip-tls-verify": True}))) == manifest()


def test_the_name_that_a_server_is_known_by_can_be_given(tmp_path: Path, authority: Authority) -> None:
    with serving(authority, "named") as server:
        trusted = {"certificate-authority-data": data(authority.certificate("ca"))}
        with pytest.raises(ClaimError, match="certificate verify failed"):
            read(source(tmp_path, config(server.url, None, trusted)))
        assert read(
            source(tmp_path, config(server.url, None, {**trusted, "tls-server-name": "kubernetes.default.svc"}))
        )


def test_a_token_in_a_file_is_read_again_when_it_changes(tmp_path: Path, server: FakeApiServer) -> None:
    token = tmp_path / "sub/token"
    token.parent.mkdir()
    token.write_text("first\n")
    api = source(tmp_path, config(server.url, {"tokenFile": "sub/token", "token": "never"}))
    for now, said in (("first", "first"), ("second", "second"), (None, "second"), ("", "second"), ("third", "third")):
        new = tmp_path / "new"
        if now is None:
            token.unlink()
        else:
            new.write_text(now)
            new.replace(token)
        assert read(api) == manifest()
        assert authorization(server) == f"Bearer {said}", f"after {now!r}"


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({}, None),
        ({"token": "abc"}, "Bearer abc"),
        ({"token": 123456}, "Bearer 123456"),
        ({"token": "abc", "username": "u", "password": "p"}, "Bearer abc"),
        ({"username": "u", "password": "p\u00e4"}, "Basic dTpww6Q="),
    ],
)
def test_who_asks_is_told_as_the_kubeconfig_says(
    tmp_path: Path, server: FakeApiServer, user: dict[str, Any], said: str | None
) -> None:
    assert read(source(tmp_path, config(server.url, user))) == manifest()
    assert authorization(server) == said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"current-context": None}, "current-context is missing"),
        ({"current-context": ["c"]}, "current-context is no string"),
        ({"current-context": "x"}, "contexts has none with the name 'x'"),
        ({"contexts": None}, "contexts has none with the name 'c'"),
        ({"contexts": {}}, "contexts has none with the name 'c'"),
        ({"contexts": ["c"]}, "contexts[0] is missing, or is no mapping"),
        ({"contexts": [{"name": "c"}]}, "contexts[c].context is missing, or is no mapping"),
        ({"contexts": [{"name": "c", "context": {}}]}, "contexts[c].context.cluster is missing"),
        ({"clusters": []}, "clusters has none with the name 'k'"),
        (
            {"clusters": [{"name": "k", "cluster": {}}]},
            "clusters[k].cluster.server: '' is no URL like https://host:port",
        ),
        ({"users": []}, "users has none with the name 'u'"),
        ({"users": [{"name": "u", "user": None}]}, "users[u].user is missing, or is no mapping"),
    ],
)
def test_what_a_kubeconfig_lacks_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    assert words in problem(tmp_path, config("http://127.0.0.1:1") | change)


@pytest.mark.parametrize(
    "server", ["", "127.0.0.1:1", "ftp://a", "https://", "https://a:b", "https://a:99999", "https://a b", "https://a?b"]
)
def test_what_is_no_address_is_named(tmp_path: Path, server: str) -> None:
    assert f"clusters[k].cluster.server: {server!r} is no URL like https://host:port" in problem(
        tmp_path, config(server)
    )


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"tokenFile": "nowhere"}, "the token can't be read: [Errno 2] No such file or directory: "),
        ({"tokenFile": []}, "users[u].user.tokenFile is no string"),
        ({"token": "a b"}, "users[u].user.token: holds no token"),
        ({"token": "a\nX-Header: b"}, "users[u].user.token: holds no token"),
        ({"client-certificate": "a"}, "users[u].user needs client-certificate and client-key, or none of them"),
        ({"client-key-data": "a"}, "users[u].user.client-key-data is no base64"),
        (
            {"client-certificate-data": "YQ==", "client-key-data": "YQ=="},
            "the client certificate and key can't be used",
        ),
        ({"client-certificate": "a", "client-key": "b"}, "/a can't be read: No such file or directory"),
        ({"as": "somebody"}, "users[u].user.as: acting as somebody else is not supported"),
    ],
)
def test_what_is_wrong_with_a_user_is_named(tmp_path: Path, user: dict[str, Any], words: str) -> None:
    assert words in problem(tmp_path, config("https://127.0.0.1:1", user))


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"certificate-authority": "nowhere"}, "/nowhere can't be read: No such file or directory"),
        ({"certificate-authority": "kubeconfig"}, "the certificate authority ("),
        ({"certificate-authority-data": "YQ=="}, "the certificate authority can't be used: "),
        ({"insecure-skip-tls-verify": "yes"}, "clusters[k].cluster.insecure-skip-tls-verify is neither true nor false"),
        (
            {"proxy-url": "socks5://a"},
            "clusters[k].cluster.proxy-url: 'socks5': only proxies that are spoken to by",
        ),
        ({"proxy-url": "http://me:secret@a:b"}, "clusters[k].cluster.proxy-url: 'a:b' is no URL"),
        ({"server": "https://me:secret@a"}, "clusters[k].cluster.server: names and passwords belong into users"),
        ({"proxy-url": "http://"}, "clusters[k].cluster.proxy-url: 'http://' is no URL"),
    ],
)
def test_what_is_wrong_with_a_cluster_is_named(tmp_path: Path, cluster: dict[str, Any], words: str) -> None:
    assert words in problem(tmp_path, config("https://127.0.0.1:1", None, cluster))


def test_encrypted_keys_are_refused_without_asking(tmp_path: Path) -> None:
    key = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGb\n-----END ENCRYPTED PRIVATE KEY-----\n"
    user = {"client-certificate-data": base64.b64encode(key.encode()).decode()}
    user["client-key-data"] = user["client-certificate-data"]
    assert "the client certificate and key can't be used: " in problem(tmp_path, config("https://127.0.0.1:1", user))

"""Promises of credentials: a pod's service account and a kubeconfig are used as client-go does, and stay current."""

import base64
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.claims import ClaimError
from dra.kube import ApiServer, CredentialsError, credentials
from hack.kube.certificates import Authority, Wanted
from tests.unit.dra.apiserver import FakeApiServer, apiserver
from tests.unit.dra.kubeconfigs import authorization, config, data, read, serving, source
from tests.unit.dra.manifests import manifest


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates") / "pki")
    made.issue(
        [
            Wanted("server", "apiserver", server=("IP:127.0.0.1",)),
            Wanted("named", "apiserver", server=("DNS:kubernetes.default.svc",)),
            Wanted("client", "driver", group="drivers"),
        ]
    )
    return made


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """An authority that nobody trusts."""
    return Authority(tmp_path / "stranger")


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with apiserver() as fake:
        fake.put(manifest())
        yield fake


def problem(directory: Path, content: dict[str, Any]) -> str:
    with pytest.raises(CredentialsError) as caught:
        source(directory, content)
    text = str(caught.value)
    assert text.startswith(f"--kubeconfig {directory}/kubeconfig can't be used: ")
    assert "\n" not in text
    return text


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


def program(directory: Path, *lines: str) -> dict[str, Any]:
    """A user whom a program speaks for."""
    path = directory / "program"
    path.write_text("\n".join(("#!/bin/sh", *lines)))
    path.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path), "interactiveMode": "Never"}}


def test_a_program_can_give_the_token(tmp_path: Path, server: FakeApiServer) -> None:
    answer = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "made"}}'
    api = source(tmp_path, config(server.url, program(tmp_path, f"echo '{answer}'")))
    assert read(api) == manifest()
    assert authorization(server) == "Bearer made"


def test_a_program_that_gives_no_token_is_named_as_the_problem(tmp_path: Path, server: FakeApiServer) -> None:
    text = problem(tmp_path, config(server.url, program(tmp_path, "exit 3")))
    assert "the program or plugin that it names for its user gave no token; try it with kubectl" in text


def test_only_programs_and_plugins_need_the_kubernetes_client(
    tmp_path: Path, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)  # importing it is a ModuleNotFoundError
    assert read(source(tmp_path, config(server.url, {"token": "abc"}))) == manifest()
    text = problem(tmp_path, config(server.url, program(tmp_path, "exit 3")))
    assert "Python's package kubernetes is not there: " in text
    assert "(pip install kubernetes)" in text


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


def mounted(directory: Path, token: str, ca: bytes) -> None:
    """A service account as the kubelet mounts it, or renews it: by one link that is swapped."""
    versions = len(list(directory.glob("..20*")))
    new = directory / f"..20{versions}"
    new.mkdir(parents=True)
    (new / "token").write_text(token)
    (new / "ca.crt").write_bytes(ca)
    (directory / "..new").symlink_to(new.name)
    (directory / "..new").rename(directory / "..data")
    for name in ("token", "ca.crt"):
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process, as in a pod, finds its service account."""
    directory = tmp_path / "serviceaccount"
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", directory)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    return directory


def test_in_a_pod_its_service_account_is_used_and_followed(
    pod: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = authority.certificate("ca").read_bytes()
    mounted(pod, "first", ca)
    with serving(authority) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        server.tokens = {"first"}
        api = ApiServer(None, "dra-cpu/test")
        assert read(api) == manifest()
        server.tokens = {"second"}
        with pytest.raises(ClaimError, match=r"answered 401 \(the credentials are not accepted\)"):
            read(api)
        mounted(pod, "second\n", ca)
        assert read(api) == manifest()
        assert read(api) == manifest()
        assert server.connections == 2, "a new token needs no new connection; after a refusal there is one"


def test_in_a_pod_with_addresses_of_version_6(pod: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(pod, "x", authority.certificate("ca").read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert ApiServer(None, "dra-cpu/test").client.server == "https://[fd00::1]:443"


@pytest.mark.parametrize(
    ("host", "token", "ca", "words"),
    [
        ("", "x", None, "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"),
        ("127.0.0.1", "", None, "/token: holds no token"),
        ("127.0.0.1", "\u00e4", None, "the token can't be read: "),
        ("127.0.0.1", "x", b"", "/ca.crt) can't be used: "),
        ("127.0.0.1", "x", b"\xff", "/ca.crt) can't be used: "),
        ("a b", "x", None, "'https://a b:443' is no URL"),
    ],
)
def test_what_a_pod_lacks_is_named_with_the_way_out(
    pod: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    token: str,
    ca: bytes | None,
    words: str,
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    mounted(pod, token, authority.certificate("ca").read_bytes() if ca is None else ca)
    with pytest.raises(CredentialsError) as caught:
        ApiServer(None, "dra-cpu/test")
    assert words in str(caught.value)
    assert "--kubeconfig" in str(caught.value)
    assert "--claims-dir" in str(caught.value)
    assert "\n" not in str(caught.value)

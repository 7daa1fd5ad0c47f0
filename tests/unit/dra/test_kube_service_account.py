"""Promises of a pod's service account: found where the kubelet mounts it, followed as it renews it."""

from pathlib import Path

import pytest

from dra.claims import ClaimError
from dra.kube import ApiServer, CredentialsError, credentials
from hack.kube.certificates import Authority
from tests.unit.dra.kubeconfigs import read, serving
from tests.unit.dra.manifests import manifest


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
        with pytest.raises(ClaimError, match=rf"answered 401 \(the token in {pod}/token is not accepted\)"):
            read(api)
        mounted(pod, "second\n", ca)
        assert read(api) == manifest()
        assert read(api) == manifest()
        assert server.connections == 2, "it is mounted with a new file of certificates"


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

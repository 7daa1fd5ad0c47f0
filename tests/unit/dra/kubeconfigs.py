"""Kubeconfigs, and API servers with TLS, for tests of how the API server is reached."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra.claims import ClaimRef
from dra.kube import ApiServer, CredentialsError
from hack.kube.certificates import Authority
from tests.unit.dra.apiserver import FakeApiServer, apiserver
from tests.unit.dra.manifests import UID, manifest
from tests.unit.dra.virtual_time import VirtualTime

REF = ClaimRef(UID, "default", "one")


@contextmanager
def serving(authority: Authority, name: str = "server", clients: bool = False) -> Iterator[FakeApiServer]:
    """A server with TLS, which has one claim; with `clients` only those with certificates may come."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate(name), authority.key(name))
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.certificate("ca"))
    with apiserver(context) as server:
        server.put(manifest())
        yield server


def config(
    server: str, user: Mapping[str, Any] | None = None, cluster: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "other"}, {"name": "k", "cluster": {"server": server, **(cluster or {})}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "users": [{"name": "u", "user": {} if user is None else dict(user)}],
    }


def source(directory: Path, content: dict[str, Any]) -> ApiServer:
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return ApiServer(path, "dra-cpu/test", VirtualTime())


def read(api: ApiServer) -> object:
    """Within a second, which is time for a second attempt."""
    return api.reader(api._clock.now() + 1)(REF)


def authorization(server: FakeApiServer) -> str | None:
    return server.seen[-1][1].get("authorization")


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def problem(directory: Path, content: dict[str, Any]) -> str:
    """Why the kubeconfig with this content is refused: one line that names it."""
    with pytest.raises(CredentialsError) as caught:
        source(directory, content)
    text = str(caught.value)
    assert text.startswith(f"--kubeconfig {directory}/kubeconfig can't be used: ")
    assert "\n" not in text
    return text

"""Credentials from a kubeconfig: the cluster and the user of its current context. Values are paths or in the file.

Users of an auth-provider, which client-go has given up for programs but for one, are left to the Kubernetes client;
nothing else here imports it, since it costs 20 MiB and 0.15 s. The one place that does.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dra.kube.bounded import Bounded
from dra.kube.credentials import (
    Authorization,
    Credentials,
    CredentialsError,
    Pem,
    Tls,
    TlsFacts,
    TokenFile,
    basic,
    bearer,
    checked_proxy,
    checked_url,
    proxy_of_environment,
)
from dra.kube.program import Program
from nri_cpu import plain_yaml

_EVENT_LIMIT = 20_000
_SIZE_LIMIT = 4 << 20
_LOAD_LIMIT = 30.0

T = TypeVar("T")


def from_kubeconfig(path: Path) -> Credentials:
    """What kubectl would use, by client-go's rules (tools/clientcmd). Raises CredentialsError.

    Data in the file goes before a path, a token's file before a token; paths begin where the kubeconfig is.
    """
    try:
        return _Reader(path).credentials()
    except CredentialsError as error:
        raise CredentialsError(f"--kubeconfig {path} can't be used: {error}") from error


class _Reader:
    def __init__(self, path: Path) -> None:
        self._directory = path.absolute().parent
        self._path = path
        try:
            with path.open("rb") as file:
                content = file.read(_SIZE_LIMIT + 1)
            if len(content) > _SIZE_LIMIT:
                raise CredentialsError(f"it has more than {_SIZE_LIMIT} bytes")
            documents = plain_yaml.parse(content.decode(), _EVENT_LIMIT)
        except (OSError, ValueError) as error:  # PlainYamlError and UnicodeDecodeError are ValueErrors
            raise CredentialsError(" ".join(str(error).split())) from error
        self._root = _mapping(documents[0] if len(documents) == 1 else None, "the file")

    def credentials(self) -> Credentials:
        name = _text(self._root, "current-context", "")
        if not name:
            raise CredentialsError("current-context is missing")
        context = self._named("contexts", "context", name)
        where = f"contexts[{name}].context"
        cluster_name, user_name = (_text(context, key, where) for key in ("cluster", "user"))
        if not cluster_name:
            raise CredentialsError(f"{where}.cluster is missing")
        cluster = self._named("clusters", "cluster", cluster_name)
        user = self._named("users", "user", user_name) if user_name else {}
        where = f"clusters[{cluster_name}].cluster"
        server = checked_url(_text(cluster, "server", where), f"{where}.server")
        proxy = _text(cluster, "proxy-url", where)
        of_user = f"users[{user_name}].user"
        facts = self._tls(cluster, user, where, of_user)
        tls = Tls(facts) if server.startswith("https:") else None
        authorization = self._authorization(user, of_user, cluster, where)
        return Credentials(
            server,
            tls,
            authorization,
            checked_proxy(proxy, f"{where}.proxy-url") if proxy else proxy_of_environment(server),
            authorization.origin if isinstance(authorization, TokenFile) else f"{of_user} of {self._path}",
        )

    def _named(self, section: str, part: str, name: str) -> dict[str, Any]:
        entries = self._root.get(section)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            if _text(_mapping(entry, f"{section}[{index}]"), "name", f"{section}[{index}]") == name:
                return _mapping(entry.get(part), f"{section}[{name}].{part}")
        raise CredentialsError(f"{section} has none with the name {name!r}")

    def _tls(self, cluster: dict[str, Any], user: dict[str, Any], where: str, of_user: str) -> TlsFacts:
        insecure = cluster.get("insecure-skip-tls-verify") or False
        if not isinstance(insecure, bool):
            raise CredentialsError(f"{where}.insecure-skip-tls-verify is neither true nor false")
        certificate = self._pem(user, "client-certificate", of_user)
        key = self._pem(user, "client-key", of_user)
        if (certificate is None) != (key is None):
            raise CredentialsError(f"{of_user} needs client-certificate and client-key, or none of them")
        return TlsFacts(
            authority=self._pem(cluster, "certificate-authority", where),
            certificate=certificate,
            key=key,
            verify=not insecure,
            server_name=_text(cluster, "tls-server-name", where) or None,
        )

    def _pem(self, section: dict[str, Any], key: str, where: str) -> Pem | None:
        if data := _text(section, f"{key}-data", where):
            try:
                return Pem(content=base64.b64decode(data))
            except (binascii.Error, ValueError):
                raise CredentialsError(f"{where}.{key}-data is no base64") from None
        path = _text(section, key, where)
        return Pem(file=self._directory / path) if path else None

    def _authorization(self, user: dict[str, Any], where: str, cluster: dict[str, Any], at: str) -> Authorization:
        for key in ("as", "as-uid", "as-groups", "as-user-extra"):
            if user.get(key):
                raise CredentialsError(f"{where}.{key}: acting as somebody else is not supported")
        if path := _text(user, "tokenFile", where):
            return TokenFile(self._directory / path)
        token, name = _text(user, "token", where), _text(user, "username", where)
        if token or name:
            value = bearer(token, f"{where}.token") if token else basic(name, _text(user, "password", where))
            return lambda _: value
        if program := user.get("exec"):
            where = f"{where}.exec"
            return Program(_mapping(program, where), where, self._directory, self._told(cluster, at))
        if user.get("auth-provider"):
            return _provider(self._path)
        return lambda _: None

    def _told(self, cluster: dict[str, Any], where: str) -> dict[str, Any]:
        """What programs are told of the cluster: client.authentication.k8s.io, Cluster."""
        fields = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
        told = {field: cluster[field] for field in fields if cluster.get(field)}
        if authority := self._pem(cluster, "certificate-authority", where):
            try:
                told["certificate-authority-data"] = base64.b64encode(authority.read()).decode()
            except OSError as error:
                raise CredentialsError(f"{error.filename} can't be read: {error.strerror}") from error
        extensions = cluster.get("extensions")
        for entry in extensions if isinstance(extensions, list) else ():
            if isinstance(entry, dict) and entry.get("name") == "client.authentication.k8s.io/exec":
                told["config"] = entry.get("extension")
        return told


def _provider(path: Path) -> Authorization:
    """Tokens by the auth-provider that the kubeconfig names, renewed when they end; by the Kubernetes client."""
    try:
        from kubernetes import config
        from kubernetes.client.configuration import Configuration
    except ModuleNotFoundError as error:
        raise CredentialsError(
            f"Python's package {error.name} is not there: a user with auth-provider needs the Kubernetes client "
            "(pip install kubernetes); one with exec does not"
        ) from error
    loaders: Any = config  # not typed
    configuration = Configuration()

    def token() -> str | None:
        value = configuration.auth_settings().get("BearerToken", {}).get("value")
        return str(value).strip() if value else None

    def authorization(ends: float) -> str | None:
        return _answered(token, ends - time.monotonic())

    _answered(lambda: loaders.load_kube_config(str(path), client_configuration=configuration), _LOAD_LIMIT)
    if not authorization(time.monotonic() + _LOAD_LIMIT):
        raise CredentialsError("the auth-provider that it names for its user gave no token; try it with kubectl")
    return authorization


def _answered(call: Callable[[], T], seconds: float) -> T:
    try:
        return Bounded[T]().call(call, seconds)
    except TimeoutError:
        raise CredentialsError(f"the auth-provider has not answered within {seconds:.0f} s") from None
    except Exception as error:  # the loaders raise what plugins and parsers raise
        raise CredentialsError(" ".join(str(error).split()) or type(error).__name__) from error


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CredentialsError(f"{where} is missing, or is no mapping")
    return value


def _text(section: dict[str, Any], key: str, where: str) -> str:
    """A string, or a number that was meant as one; "" when missing."""
    value = section.get(key)
    if value is None or value == "":
        return ""
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    raise CredentialsError(f"{where + '.' if where else ''}{key} is no string")

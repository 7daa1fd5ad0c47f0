"""Credentials from a kubeconfig: the cluster and the user of its current context. Values are paths or in the file.

It is read once; only the files that it names are followed.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

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
from dra.kube.plugin import Plugin
from nri_cpu import plain_yaml

_EVENT_LIMIT = 20_000
_SIZE_LIMIT = 4 << 20


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
        authorization = self._authorization(user, of_user)
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

    def _authorization(self, user: dict[str, Any], where: str) -> Authorization:
        for key in ("as", "as-uid", "as-groups", "as-user-extra"):
            if user.get(key):
                raise CredentialsError(f"{where}.{key}: acting as somebody else is not supported")
        if path := _text(user, "tokenFile", where):
            return TokenFile(self._directory / path)
        token, name = _text(user, "token", where), _text(user, "username", where)
        if token or name:
            value = bearer(token, f"{where}.token") if token else basic(name, _text(user, "password", where))
            return lambda _: value
        if user.get("exec") or user.get("auth-provider"):
            return Plugin(self._path, where)
        return lambda _: None


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

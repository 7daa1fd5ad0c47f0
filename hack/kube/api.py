"""A client of the API server for tests and tools: JSON objects, named by kind, over TLS with a client certificate."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from hack.kube.errors import ApiError, ClusterError
from hack.wait import wait_until

Object = dict[str, Any]

_TIMEOUT = 30.0
_LIMIT = 120.0
_MANAGER = "hack-kube"

_APPLY = "application/apply-patch+yaml"
_MERGE_PATCH, _JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class Resource:
    """Where objects of a kind are: /api/v1 or /apis/<group>/<version>, the name in the path."""

    prefix: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "", sub: str = "") -> str:
        inside = f"/namespaces/{quote(namespace, '')}" if self.namespaced and namespace else ""
        last = "".join(f"/{quote(part, '')}" for part in (name, sub) if part)
        return f"{self.prefix}{inside}/{self.plural}{last}"


class Api:
    """The API server at a loopback port. Threads may use it at the same time: each request has its own connection.

    Kinds are Kubernetes' own ("Pod"), or kind and group ("Event.events.k8s.io") where several groups have one. Objects
    of a namespace are meant in `default` where none is named. Every method raises ApiError with the server's words, or
    ClusterError when there is no answer; those that wait TimeoutError.
    """

    def __init__(self, port: int, authority: Path, certificate: Path, key: Path) -> None:
        self.port = port
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._tls.load_cert_chain(certificate, key)
        self._resources: dict[str, Resource] = {}
        self._lock = threading.Lock()

    def ready(self) -> bool:
        """Whether the server says that it is."""
        try:
            return self._exchange("GET", "/readyz", None, {}, timeout=5)[0] == 200
        except ClusterError:
            return False

    def request(
        self, method: str, path: str, body: object = None, content: str = "application/json", **query: str
    ) -> Any:
        """Any request; the answer's JSON."""
        where = f"{path}?{urlencode(query)}" if query else path
        headers = {"Accept": "application/json", "Content-Type": content}
        status, answer = self._exchange(method, where, body, headers)
        try:
            found = json.loads(answer)
        except ValueError:
            found = {"message": answer.decode(errors="replace")[:500]}
        if status >= 300:
            raise ApiError(f"{method} {where}", status, str(found.get("reason", "")), str(found.get("message", "")))
        return found

    def text(self, path: str) -> str:
        """What is served at a path that is no object's, such as /metrics."""
        status, answer = self._exchange("GET", path, None, {})
        if status != 200:
            raise ApiError(f"GET {path}", status, "", answer.decode(errors="replace")[:500])
        return answer.decode()

    def get(self, kind: str, name: str, namespace: str = "default", sub: str = "") -> Object:
        found: Object = self.request("GET", self._resource(kind).path(namespace, name, sub))
        return found

    def find(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        """The object, or None when there is none."""
        try:
            return self.get(kind, name, namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def list(self, kind: str, namespace: str = "", **query: str) -> Sequence[Object]:
        """All objects, of one namespace or (without) of all; `labelSelector` and `fieldSelector` choose."""
        listed = self.request("GET", self._resource(kind).path(namespace), **query)
        same = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
        return [{**same, **item} for item in listed["items"]]

    def create(self, manifest: Object, namespace: str = "default", sub: str = "") -> Object:
        """Create an object, or with `sub` what is created of one: an Eviction, a TokenRequest."""
        return self._send("POST", manifest, namespace, sub=sub)

    def apply(self, manifest: Object, namespace: str = "default") -> Object:
        """Server-side apply; what another has set is overruled."""
        return self._send(
            *("PATCH", manifest, namespace), content=_APPLY, query={"fieldManager": _MANAGER, "force": "true"}
        )

    def replace(self, manifest: Object, namespace: str = "default", sub: str = "") -> Object:
        """Update the whole object; its resourceVersion, if any, must be the current one."""
        return self._send("PUT", manifest, namespace, sub=sub)

    def patch(
        self, kind: str, name: str, change: Object | Sequence[Object], namespace: str = "default", sub: str = ""
    ) -> Object:
        """A merge patch (a mapping) or a JSON patch (a list)."""
        path = self._resource(kind).path(namespace, name, sub)
        content = _JSON_PATCH if isinstance(change, Sequence) else _MERGE_PATCH
        found: Object = self.request("PATCH", path, change, content)
        return found

    def delete(self, kind: str, name: str, namespace: str = "default", **options: object) -> None:
        """Ask for its deletion (`options` of DeleteOptions: gracePeriodSeconds=0, ...); fine if there is none."""
        try:
            self.request("DELETE", self._resource(kind).path(namespace, name), options or None)
        except ApiError as error:
            if error.status != 404:
                raise

    def delete_all(self, kind: str, namespace: str, **options: object) -> None:
        """Ask for the deletion of all objects of a kind in a namespace."""
        self.request("DELETE", self._resource(kind).path(namespace), options or None)

    def wait(
        self,
        kind: str,
        name: str,
        until: Callable[[Object], object],
        namespace: str = "default",
        limit: float = _LIMIT,
    ) -> Object:
        """Wait until the object is there and `until` is true of it; TimeoutError has the object."""
        last: Object | None = None

        def now() -> bool:
            nonlocal last
            last = self.find(kind, name, namespace)
            return last is not None and bool(until(last))

        try:
            wait_until(f"{kind} {name}", now, limit, pause=0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it is {json.dumps(last)[:6000]}") from None
        assert last is not None
        return last

    def wait_gone(self, kind: str, name: str, namespace: str = "default", limit: float = _LIMIT) -> None:
        """Wait until there is no such object."""
        gone = f"the end of {kind} {name}"
        wait_until(gone, lambda: self.find(kind, name, namespace) is None, limit, pause=0.1)

    def _send(
        self, method: str, manifest: Object, namespace: str, *, sub: str = "", content: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Object:  # fmt: skip
        metadata = manifest["metadata"]
        group = manifest["apiVersion"].rpartition("/")[0]
        resource = self._resource(f"{manifest['kind']}.{group}" if group else manifest["kind"], manifest["apiVersion"])
        name = "" if method == "POST" and not sub else metadata["name"]
        path = resource.path(metadata.get("namespace", namespace), name, sub)
        found: Object = self.request(method, path, manifest, content, **(query or {}))
        return found

    def _resource(self, kind: str, version: str = "") -> Resource:
        """By discovery, which is done once, and again for a kind that was not there then (a new CRD)."""
        wanted = f"{kind} {version}".strip()
        with self._lock:
            if wanted not in self._resources:
                self._resources = self._discover()
            if wanted in self._resources:
                return self._resources[wanted]
        raise ClusterError(f"the API server has no {wanted}")

    def _discover(self) -> dict[str, Resource]:
        """All resources, by "Kind", "Kind.group", and each with " group/version"; the preferred version is first."""
        found: dict[str, Resource] = {}
        accept = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
        for root in ("/api", "/apis"):
            status, answer = self._exchange("GET", root, None, accept)
            if status != 200:
                raise ApiError(f"GET {root}", status, "", answer.decode(errors="replace"))
            for group in json.loads(answer)["items"]:
                name = group["metadata"].get("name", "")
                for served in group["versions"]:
                    version = f"{name}/{served['version']}" if name else served["version"]
                    for item in served["resources"]:
                        kind = item["responseKind"]["kind"]
                        resource = Resource(f"{root}/{version}", item["resource"], item["scope"] == "Namespaced")
                        for key in (kind, f"{kind}.{name}", f"{kind} {version}", f"{kind}.{name} {version}"):
                            found.setdefault(key, resource)
        return found

    def _exchange(
        self, method: str, path: str, body: object, headers: Mapping[str, str], timeout: float = _TIMEOUT
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self._tls)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ClusterError(f"{method} {path}: no answer of the API server: {error!r}") from error
        finally:
            connection.close()

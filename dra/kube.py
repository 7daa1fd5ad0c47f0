"""Claims from the API server: one GET for each, with a time limit. The only module that imports the Kubernetes client.

Of the client only its configuration and connection pool are used: credentials in a pod or from a kubeconfig, TLS,
proxies. The object stays the JSON that came, since typed models cost memory and lose unknown fields.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import urllib3
from kubernetes import config
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from urllib3.exceptions import HTTPError, ProtocolError

from dra.claims import ClaimError, ClaimRef

# The kubelet waits 45 s for all claims of a pod; a healthy API server answers in milliseconds.
GET_TIMEOUT = 10.0
_SHORTEST_TIMEOUT = 0.5
# etcd takes no object above 1.5 MiB.
_RESPONSE_LIMIT = 8 << 20
_CHUNK = 1 << 16
_TOO_LATE = "the answer timed out"


class CredentialsError(Exception):
    """No way to the API server; the message says what was looked for and what to do."""


class ApiServer:
    """The API server as a source of claims; may be used by several threads at once.

    `kubeconfig`: a file, or None for the service account of the pod. Raises CredentialsError.
    """

    def __init__(self, kubeconfig: Path | None, user_agent: str) -> None:
        self._configuration = _configuration(kubeconfig)
        self._user_agent = user_agent
        # Only the pool: the client's own request method repeats what failed, each time with the full time limit.
        self._pool = _watch_connections(RESTClientObject(self._configuration).pool_manager)

    def reader(self, deadline: float) -> Callable[[ClaimRef], object]:
        def read(ref: ClaimRef) -> object:
            left = deadline - time.monotonic()
            if left < _SHORTEST_TIMEOUT:
                raise ClaimError("no time is left to read it from the API server; the kubelet tries again")
            return self._get(ref, min(left, GET_TIMEOUT))

        return read

    def _get(self, ref: ClaimRef, timeout: float) -> object:
        path = f"/apis/resource.k8s.io/v1/namespaces/{quote(ref.namespace, '')}/resourceclaims/{quote(ref.name, '')}"
        url = self._configuration.host.rstrip("/") + path
        ends = time.monotonic() + timeout
        try:
            try:
                status, body = self._request(url, ends)
            except ProtocolError:
                # The server closed a kept connection in the moment of its use: a fresh one tells.
                status, body = self._request(url, ends)
        except (HTTPError, OSError) as error:
            raise ClaimError(f"{url} can't be read: {_reason(error)}") from error
        if status != 200:
            raise ClaimError(_refusal(url, status, body))
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise ClaimError(f"{url} answered what is no JSON: {body[:60]!r}") from None

    def _request(self, url: str, ends: float) -> tuple[int, bytes]:
        limit = max(ends - time.monotonic(), 0.001)
        deadline = _Deadline(limit)
        try:
            with deadline:
                response = self._pool.request(
                    "GET",
                    url,
                    headers=self._headers(),
                    timeout=urllib3.Timeout(total=limit),
                    retries=False,
                    redirect=False,
                    preload_content=False,
                )
                try:
                    body = _body(response)
                except BaseException:
                    response.close()  # what is left unread must not be taken for the next answer
                    raise
        except (HTTPError, OSError) as error:
            if deadline.passed:
                raise HTTPError(_TOO_LATE) from error
            raise
        if deadline.passed:  # headers and bodies without a length end where the connection does
            response.close()
            raise HTTPError(_TOO_LATE)
        response.release_conn()
        return response.status, body

    def _headers(self) -> dict[str, str]:
        headers = {"accept": "application/json", "user-agent": self._user_agent}
        for setting in self._configuration.auth_settings().values():  # looks for a new token in the pod's file
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"].strip()  # token files end in a newline
        return headers


def _body(response: urllib3.BaseHTTPResponse) -> bytes:
    body = b""
    for part in response.stream(_CHUNK):
        body += part
        if len(body) > _RESPONSE_LIMIT:
            raise HTTPError(f"the answer is larger than {_RESPONSE_LIMIT} bytes")
    return body


class _Deadline:
    """Ends the connections of one request, whatever they are at, `seconds` after its start.

    The pool's own time limits start anew with each byte that comes.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._over = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._pass)
        self._timer.daemon = True

    def __enter__(self) -> None:
        _of_thread.deadline = self
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        _of_thread.deadline = None
        self._timer.cancel()
        with self._lock:
            self._over = True
            for each in self._sockets:
                each.close()

    def watch(self, descriptor: int) -> None:
        # A duplicate: TLS takes the socket over, and the client closes its own while the body is still read.
        duplicate = socket.socket(fileno=os.dup(descriptor))
        with self._lock:
            self._sockets.append(duplicate)
            if self.passed:
                _shut(duplicate)

    def _pass(self) -> None:
        with self._lock:
            if not self._over:
                self.passed = True
                for each in self._sockets:
                    _shut(each)


_of_thread = threading.local()  # .deadline: of the request that this thread makes


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the peer may have ended it
        connection.shutdown(socket.SHUT_RDWR)


class _Watched:
    """What is put before a connection class of the pool, so that the deadline knows the sockets."""

    sock: Any

    def _new_conn(self) -> Any:
        made = super()._new_conn()  # type: ignore[misc]  # of the class behind
        _of_thread.deadline.watch(made.fileno())  # before the handshakes with proxy and server
        return made

    def request(self, *arguments: Any, **options: Any) -> None:
        if self.sock is not None:  # a kept one, or one that was made for TLS
            _of_thread.deadline.watch(self.sock.fileno())
        super().request(*arguments, **options)  # type: ignore[misc]


def _watch_connections(manager: urllib3.PoolManager) -> urllib3.PoolManager:
    """`manager`, whose connections tell the deadline of the request about their sockets."""
    watched: dict[str, Any] = {}
    pools: dict[str, Any] = manager.pool_classes_by_scheme
    for scheme, pool in pools.items():
        connection = type("Connection", (_Watched, pool.ConnectionCls), {})
        watched[scheme] = type("Pool", (pool,), {"ConnectionCls": connection})
    manager.pool_classes_by_scheme = watched
    return manager


def _configuration(kubeconfig: Path | None) -> Any:
    configuration = Configuration()
    loaders: Any = config  # not typed
    try:
        if kubeconfig is None:
            loaders.load_incluster_config(client_configuration=configuration)
        else:
            kubeconfig.stat()  # of a missing file the loader says that its content is wrong
            loaders.load_kube_config(str(kubeconfig), client_configuration=configuration)
    except Exception as error:  # the loaders raise what their parsers raise
        if kubeconfig is None:
            raise CredentialsError(
                f"no credentials for the API server: {error} Outside a pod name a file with --kubeconfig, "
                "or read claims from files with --claims-dir"
            ) from error
        raise CredentialsError(f"--kubeconfig {kubeconfig} can't be used: {_reason(error)}") from error
    return configuration


def _reason(error: BaseException) -> str:
    """The innermost reason in one line."""
    inner = getattr(error, "reason", None)
    text = str(inner if isinstance(inner, Exception) else error) or type(error).__name__
    return " ".join(text.split())[:300]


def _refusal(url: str, status: int, body: bytes) -> str:
    try:
        message = json.loads(body)["message"]
    except (ValueError, TypeError, KeyError, RecursionError):
        message = body[:100].decode("utf-8", "replace")
    hints = {
        401: "the credentials are not accepted",
        403: "the service account needs the verb get on resourceclaims",
        404: "the claim does not exist any more",
    }
    hint = f" ({hints[status]})" if status in hints else ""
    return f"{url} answered {status}{hint}: {' '.join(str(message).split())[:300]}"

"""A kubelet as far as a DRA plugin sees one: it finds sockets in its plugins_registry and registers who serves them.

What it does and how long it waits is that of a real one (dra-protocol 1.4): a socket that appears is asked who serves
it, what it says is checked, it is told the outcome; any failure, and all is tried again. Its bytes are made by hand.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from inotify_simple import INotify, flags

from hack.wait import wait_until
from tests.protocol.wire import field, fields, texts

GET_INFO = "/pluginregistration.Registration/GetInfo"
NOTIFY = "/pluginregistration.Registration/NotifyRegistrationStatus"
DRA = {
    "v1.DRAPlugin": "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/",
    "v1beta1.DRAPlugin": "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/",
}
HEALTH = {
    "v1.DRAResourceHealth": "/v1.DRAResourceHealth/NodeWatchResources",
    "v1alpha1.DRAResourceHealth": "/v1alpha1.DRAResourceHealth/NodeWatchResources",
}
# Seconds, as a kubelet has them.
_GET_INFO = 1
_NOTIFY = 5
# Milliseconds between two looks, without an event.
_RETRY = 50


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin as it says it is."""

    socket: Path
    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


class RefusedError(Exception):
    """The kubelet does not take the plugin; the message is what it tells it."""


class FakeKubelet:
    """The kubelet at `root`, between start and stop; it can start again, and then knows nothing of earlier.

    `understands`: the DRA services that it knows; `refusal`: words with which it refuses everybody, None: it does not.
    """

    def __init__(self, root: Path, understands: Sequence[str] = tuple(DRA), refusal: str | None = None) -> None:
        self.registry = root / "plugins_registry"
        self.registry.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.understands = understands
        self.refusal = refusal
        self.registered: dict[Path, Plugin] = {}
        self.failures: list[tuple[Path, str]] = []
        self._end = threading.Event()
        self._thread = threading.Thread()

    def start(self) -> None:
        self._end.clear()
        self.registered = {}
        self._thread = threading.Thread(target=self._watch, name="fake kubelet")
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeKubelet]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def plugin(self, name: str) -> Plugin:
        """The plugin, once it is registered; the latest, if several are."""
        found = wait_until(
            f"{name} is registered (failed: {self.failures[-3:]})",
            lambda: [plugin for plugin in list(self.registered.values()) if plugin.name == name],
        )
        return found[-1]

    def failure(self, words: str) -> str:
        """Why a registration failed, once one fails with these words."""
        return wait_until(words, lambda: next((text for _, text in list(self.failures) if words in text), None))

    def service(self, plugin: Plugin) -> str:
        """The DRA service by which it would prepare: the first of the plugin's that it knows; raises RefusedError."""
        for version in plugin.versions:
            if version in self.understands:
                return version
        raise RefusedError(f"none of {plugin.versions} is known")

    def _watch(self) -> None:
        with INotify() as events:
            events.add_watch(self.registry, flags.CREATE | flags.DELETE)
            while not self._end.is_set():
                self._reconcile()
                events.read(timeout=_RETRY)

    def _reconcile(self) -> None:
        there = {path for path in self.registry.iterdir() if path.is_socket() and not path.name.startswith(".")}
        for gone in self.registered.keys() - there:
            del self.registered[gone]
        for path in sorted(there - self.registered.keys()):
            try:
                self._register(path)
            except (grpc.RpcError, RefusedError, ValueError) as error:
                self.registered.pop(path, None)
                self.failures.append((path, _words(error)))

    def _register(self, path: Path) -> None:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            plugin = get_info(channel, path, _GET_INFO)
            try:
                self._check(plugin)
            except RefusedError as error:
                call(channel, NOTIFY, (field(2, str(error)) if str(error) else b""), _NOTIFY)
                raise
            self.registered[path] = plugin  # before the plugin knows
            call(channel, NOTIFY, field(1, 1), _NOTIFY)

    def _check(self, plugin: Plugin) -> None:
        if self.refusal is not None:
            raise RefusedError(self.refusal)
        if plugin.type != "DRAPlugin":
            raise RefusedError(f"no handler for {plugin.type}")
        self.service(plugin)
        if any(other.endpoint == plugin.endpoint for other in self.registered.values()):
            raise RefusedError(f"endpoint {plugin.endpoint} already registered")


def get_info(channel: grpc.Channel, path: Path, timeout: float = 30) -> Plugin:
    """Who serves the socket; raises grpc.RpcError, and ValueError for an answer that is none."""
    answer = fields(call(channel, GET_INFO, b"", timeout))
    if unknown := answer.keys() - {1, 2, 3, 4}:
        raise ValueError(f"fields {unknown} are not known")
    kind, name, endpoint = (texts(answer[number])[0] for number in (1, 2, 3))
    return Plugin(path, kind, name, endpoint, tuple(texts(answer.get(4, []))))


def call(channel: grpc.Channel, method: str, request: bytes, timeout: float) -> bytes:
    """One request, one answer; raises grpc.RpcError."""
    raw: Any = channel.unary_unary(method)
    return bytes(raw(request, timeout=timeout))


def _words(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        failed: Any = error
        return f"{failed.code().name}: {failed.details()}"
    return str(error)

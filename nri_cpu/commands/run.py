"""nri-cpu run: serves the container runtime until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf.internal import api_implementation
from loguru import logger

from nri_cpu.bystander import Bystander
from nri_cpu.checkpoint.errors import CheckpointError
from nri_cpu.checkpoint.watch import DirectoryWatch
from nri_cpu.command import UsageError, configuration, host_root, reserved_cpus
from nri_cpu.cpuset import CPUSet
from nri_cpu.node_files import Files, Places
from nri_cpu.nri.endpoint import Endpoint, InheritedFd, SocketPath
from nri_cpu.nri.errors import EndpointError, IdentityError
from nri_cpu.nri.runner import serve
from nri_cpu.nri.session import check_identity
from nri_cpu.plugin import Plugin

# A standby looks this often, in seconds, whether the nri-cpu before it has ended.
_STANDBY = 0.5
# A plugin that the runtime has started looks so often, this many seconds apart.
_HANDOVERS = 20
_HANDOVER = 0.05


@dataclass(frozen=True, slots=True)
class Settings:
    """What `nri-cpu run` needs to know, from defaults, file and arguments, in this order."""

    endpoint: Endpoint
    name: str
    index: str
    places: Places
    reserved: CPUSet


def main(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Raises UsageError, CheckpointError, EndpointError or TopologyError."""
    asyncio.run(_run(settings_of(options, env)))
    return 0


def settings_of(options: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """Raises UsageError."""
    config = configuration(options.config)
    places = Places(host=host_root(env)).configured(config)
    if options.checkpoint:
        places = replace(places, checkpoint=options.checkpoint)
    reserved = reserved_cpus(options.reserved_cpus, config)
    endpoint = _endpoint(options, env)
    try:
        check_identity(options.name, options.index)
    except IdentityError as error:
        raise UsageError(str(error)) from None
    return Settings(endpoint, options.name, options.index, places, reserved)


def _socket(path: str) -> SocketPath:
    try:
        return SocketPath(path)
    except EndpointError as error:
        raise UsageError(f"--socket: {error}") from None


def _endpoint(options: argparse.Namespace, env: Mapping[str, str]) -> Endpoint:
    inherited = env.get("NRI_PLUGIN_SOCKET")
    if inherited is None:
        return _socket(options.socket)
    if not inherited.isascii() or not inherited.isdigit():
        raise UsageError(
            f"NRI_PLUGIN_SOCKET={inherited!r} is not a file descriptor: the container runtime sets it when it starts "
            "a plugin; unset it to connect to a socket"
        )
    options.name = env.get("NRI_PLUGIN_NAME") or options.name
    options.index = env.get("NRI_PLUGIN_IDX") or options.index
    return InheritedFd(int(inherited))


async def _run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; a second one kills, by the signal's own effect."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def end() -> None:
        stop.set()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)

    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, end)
    loop.set_exception_handler(_log_fault)
    _warn_of_slow_protobuf()
    files = Files(settings.places)
    launched = isinstance(settings.endpoint, InheritedFd)
    alone = await (_take_over(files) if launched else _stand_by(files, stop))
    if stop.is_set():
        return
    if alone:
        await _decide(files, settings, stop)
    else:
        await serve(Bystander(), settings.endpoint, name=settings.name, index=settings.index, stop=stop)


def _warn_of_slow_protobuf() -> None:
    """Without its C part (a missing libstdc++ is enough) protobuf is slow without a word, and a big node may take
    longer to read than its runtime waits."""
    if api_implementation.Type() == "python":
        logger.warning(
            "protobuf runs without its C part, many times slower: install libstdc++6, or protobuf's own wheel"
        )


def _log_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a callback of ours let through must be in the log, wherever that is, and must not end the plugin."""
    logger.opt(exception=context.get("exception")).error("a fault of nri-cpu itself: {}", context.get("message"))


async def _decide(files: Files, settings: Settings, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    plugin = Plugin(files, settings.reserved, loop.call_later)
    follower = _Follower(plugin, loop)
    plugin.moved = follower.watch
    follower.watch(settings.places.checkpoint.parent)
    try:
        await serve(plugin, settings.endpoint, name=settings.name, index=settings.index, stop=stop)
    finally:
        follower.end()
        plugin.close()


class _Follower:
    """Lets the plugin know at once of a new checkpoint; without inotify it notices at the runtime's next event."""

    def __init__(self, plugin: Plugin, loop: asyncio.AbstractEventLoop) -> None:
        self._plugin = plugin
        self._loop = loop
        self._watch: DirectoryWatch | None = None

    def watch(self, directory: Path) -> None:
        self.end()
        try:
            self._watch = DirectoryWatch(directory)
        except CheckpointError as error:
            logger.warning("{}; a new checkpoint is noticed at the runtime's next event", error)
        else:
            self._loop.add_reader(self._watch.fileno(), self._changed, self._watch)

    def end(self) -> None:
        if self._watch:
            self._loop.remove_reader(self._watch.fileno())
            self._watch.close()
            self._watch = None

    def _changed(self, watch: DirectoryWatch) -> None:
        try:
            news = watch.read()
        except CheckpointError as error:
            logger.warning("{}; a new checkpoint is noticed at the runtime's next event", error)
            self.end()
            news = True
        if news:
            self._plugin.look()


async def _take_over(files: Files) -> bool:
    """Whether a plugin that the runtime has started is the only one. The one before it may just be ending, but the
    runtime waits for this one."""
    for _ in range(_HANDOVERS):
        if files.running.acquire():
            return True
        await asyncio.sleep(_HANDOVER)
    logger.error(
        "another nri-cpu holds {}, so this one does nothing: end it, or take this one out of its runtime",
        files.places.running_lock,
    )
    return False


async def _stand_by(files: Files, stop: asyncio.Event) -> bool:
    """Wait, without touching the runtime, until no other nri-cpu is connected: an update without a gap (fault K9)."""
    told = False
    while not stop.is_set() and not files.running.acquire():
        if not told:
            logger.info("another nri-cpu holds {}: waiting as standby", files.places.running_lock)
            told = True
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _STANDBY)
    return True

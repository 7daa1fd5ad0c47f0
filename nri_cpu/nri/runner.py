"""A plugin's connection to its runtime, made again and again, until the plugin is told to stop (faults R6, N7)."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from loguru import logger

from nri_cpu.nri import backoff, memory
from nri_cpu.nri.connection import Connection
from nri_cpu.nri.endpoint import Endpoint, InheritedFd, open_socket
from nri_cpu.nri.errors import UnreachableError
from nri_cpu.nri.hooks import Hooks
from nri_cpu.nri.session import Session, check_identity

# Seconds. A try that finds nobody costs next to nothing, and while a runtime that is back has no plugin, containers are
# created without it. One that takes us in and then fails is left alone for longer.
LONGEST_UNREACHED: Final = 2.0


async def serve(hooks: Hooks, endpoint: Endpoint, *, name: str, index: str, stop: asyncio.Event) -> None:
    """Serve the runtime at `endpoint` until `stop` is set, then close the connection and return, in whatever state.

    Nothing that a runtime does, or a missing one, ends it: each connection has a fresh session, and the wait before the
    next one doubles from half a second to half a minute (two seconds, where nobody listens), beginning anew once a
    session has synchronized. Only an
    inherited connection can't be made again: serve returns at its end. A reason for having no session is logged when it
    changes, not at every try.

    Raises IdentityError for a name or index that no runtime takes, EndpointError for a descriptor that is no
    connection.
    """
    check_identity(name, index)
    memory.keep_freed()
    # Event.wait() can't fail, and this one waits for nothing else.
    stopping = asyncio.create_task(stop.wait(), name="stop of the NRI plugin")
    try:
        await _serve(hooks, endpoint, name, index, stop, stopping)
    finally:
        stopping.cancel()


async def _serve(
    hooks: Hooks, endpoint: Endpoint, name: str, index: str, stop: asyncio.Event, stopping: asyncio.Task[bool]
) -> None:
    known = ""  # the reason that has been logged
    delays = backoff.delays()
    while not stop.is_set():
        session = Session(hooks, name, index, launched=isinstance(endpoint, InheritedFd))
        longest = backoff.LONGEST
        try:
            reason = await _converse(session, open_socket(endpoint), stopping)
        except (UnreachableError, OSError) as error:
            reason = str(error)
            longest = LONGEST_UNREACHED
        if stop.is_set():
            return
        if isinstance(endpoint, InheritedFd):
            logger.warning("{}: this plugin was started by the runtime and cannot connect again", reason)
            return
        if session.synchronized:
            delays = backoff.delays()
        if session.synchronized or reason != known:
            logger.warning("{}; trying again, at least every {:.0f} s", reason, longest)
            known = reason
        await asyncio.wait({stopping}, timeout=min(next(delays), longest))


async def _converse(session: Session, connected: socket.socket, stopping: asyncio.Task[bool]) -> str:
    """Let the session live on the socket. Returns why it ended."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_unix_connection(lambda: Connection(session), sock=connected)
    try:
        either: set[asyncio.Future[Any]] = {stopping, connection.ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        connection.close("the plugin stops")  # nothing, when it has ended
        return await connection.ended
    finally:
        connection.abort("the plugin was cancelled")  # likewise

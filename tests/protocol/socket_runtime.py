"""A runtime on a socket, in the plugin's own event loop; what it does with each connection is a function."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

from google.protobuf.message import Message

from nri_cpu.nri import nri_pb2 as pb
from nri_cpu.nri.methods import PLUGIN_SERVICE
from nri_cpu.ttrpc.client import Answer
from nri_cpu.ttrpc.codes import Code
from nri_cpu.ttrpc.errors import LocalError
from nri_cpu.ttrpc.server import Call
from nri_cpu.ttrpc.trunk import Trunk
from tests.protocol.memory_runtime import CONFIGURE, synchronize


class RuntimeConnection(asyncio.Protocol):
    """The runtime's end of one connection."""

    def __init__(self, behave: Behaviour) -> None:
        self._behave = behave
        self._trunk = Trunk(server_id=2, client_id=1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._work: list[asyncio.Future[None]] = []
        self.transport: asyncio.Transport
        self.registration: Call | None = None
        self.lost = False
        self.synchronized = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        for event in self._trunk.receive(data):
            if isinstance(event, Call):
                assert event.method == "RegisterPlugin"
                self.registration = event
                self._work.append(asyncio.ensure_future(_guarded(self._behave, self)))
            else:
                self._waiting.pop(event.stream).set_result(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        for future in self._waiting.values():
            future.cancel()

    def accept(self) -> None:
        assert self.registration is not None
        self._trunk.answer(self.registration.stream, b"")
        self.flush()

    def refuse(self, text: str) -> None:
        assert self.registration is not None
        self._trunk.refuse(self.registration.stream, Code.UNKNOWN, text)
        self.flush()

    async def ask(self, method: str, request: Message | None = None) -> Answer:
        """The plugin's answer; cancelled when the connection ends before."""
        payload = b"" if request is None else request.SerializeToString()
        stream = self._trunk.call(PLUGIN_SERVICE, method, payload, 2.0)
        self._waiting[stream] = asyncio.get_running_loop().create_future()
        self.flush()
        return await self._waiting[stream]

    def flush(self) -> None:
        self.transport.write(self._trunk.data_to_send())


Behaviour = Callable[[RuntimeConnection], Awaitable[None]]


async def _guarded(behave: Behaviour, connection: RuntimeConnection) -> None:
    try:
        await behave(connection)
    except asyncio.CancelledError:
        assert connection.lost  # by the plugin, which tests look at from its own side
    except LocalError:
        assert connection.lost


async def take_in(connection: RuntimeConnection, containers: Sequence[str] = ("c0",)) -> None:
    """Register, configure and synchronize the plugin, as a runtime does."""
    connection.accept()
    await connection.ask("Configure", CONFIGURE)
    answer = await connection.ask("Synchronize", synchronize(["p0"], containers))
    connection.synchronized = answer.error is None


async def stay_silent(connection: RuntimeConnection) -> None:
    """Accept the connection, answer nothing."""


async def only_register(connection: RuntimeConnection) -> None:
    connection.accept()


async def only_configure(connection: RuntimeConnection) -> None:
    connection.accept()
    await connection.ask("Configure", CONFIGURE)


async def stop_between_parts(connection: RuntimeConnection) -> None:
    """Configure, send a first part of Synchronize, and no more."""
    await only_configure(connection)
    await connection.ask("Synchronize", synchronize(["gone"], ["gone"], more=True))


async def refuse(connection: RuntimeConnection) -> None:
    connection.refuse("invalid plugin name")


async def hang_up(connection: RuntimeConnection) -> None:
    connection.transport.close()


class SocketRuntime:
    """Listens at `path` between start() and stop(); `behave` may be changed in between."""

    def __init__(self, path: Path, behave: Behaviour = take_in) -> None:
        self.path = path
        self.behave = behave
        self.connections: list[RuntimeConnection] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """As a runtime does: remove what lies at the path, listen anew."""
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.get_running_loop().create_unix_server(self._accept, str(self.path))

    def stop(self) -> None:
        """Close listener and connections; the path stays, as after a crash."""
        assert self._server is not None
        self._server.close()
        self._server = None
        for connection in self.connections:
            connection.transport.abort()
        if not self.path.exists():  # newer Pythons remove it
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(self.path))

    @property
    def last(self) -> RuntimeConnection:
        return self.connections[-1]

    def synchronized(self) -> bool:
        """Whether a plugin is connected and synchronized."""
        return any(c.synchronized and not c.lost for c in self.connections)

    def _accept(self) -> RuntimeConnection:
        connection = RuntimeConnection(self.behave)
        self.connections.append(connection)
        return connection


CREATE = pb.CreateContainerRequest(pod=pb.PodSandbox(id="p"), container=pb.Container(id="c"))

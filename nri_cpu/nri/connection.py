"""A session on a transport: what is read goes in, what is owed goes out in one write, and the end is told once."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from loguru import logger

from nri_cpu.nri import memory
from nri_cpu.nri.errors import SessionError
from nri_cpu.nri.session import REGISTRATION_TIMEOUT, Session
from nri_cpu.ttrpc.errors import ProtocolError

# Answers that wait for a runtime that does not read; the longest one has 4 MiB, and a runtime asks one thing at a time.
MAX_UNWRITTEN: Final = 64 << 20

# Seconds between Configure and Synchronize. The runtime may have to wait that long for its lock; but before NRI 0.7 one
# whose state is too long for a message keeps the connection and never tries again, though the state may shrink
# (nri#102; fault N4).
SYNCHRONIZE_TIMEOUT: Final = 300.0

# The most that is read at once, in bytes: a little over what a socket holds (208 KiB, net.core.wmem_default). A buffer
# for all reads, since asyncio's own reads make one of this size each time, which the C library maps and unmaps anew as
# long as nothing larger was ever freed: a third of a hook's time on a node of a hundred containers.
READ_SIZE: Final = 256 << 10

# Seconds for the last answer to leave, once the connection is given up.
LINGER: Final = 0.5


class Connection(asyncio.BufferedProtocol):
    """One session's transport. `ended` becomes the reason for its end."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._buffer = memoryview(bytearray(READ_SIZE))
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reason: str | None = None  # why it is being closed
        self._timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[str] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=MAX_UNWRITTEN)
        self._timer = self._loop.call_later(REGISTRATION_TIMEOUT, self._expect_configure)
        memory.put_off()
        self._session.start()
        self._transport.write(self._session.data_to_send())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        reason = None
        try:
            self._session.receive(self._buffer[:nbytes])
        except ProtocolError as error:
            reason = f"the runtime broke the protocol: {error}"
        except SessionError as error:
            reason = str(error)
        except Exception as error:
            # A mistake of ours must not end the plugin, and asyncio would only mention it.
            logger.exception("a message of the runtime could not be handled")
            reason = f"internal error ({type(error).__name__})"
        owed = self._session.data_to_send()
        if owed and self._transport is not None:
            self._transport.write(owed)
            if self._session.unannounced and self._session.written():
                self._loop.call_soon(memory.settle)
        if reason is not None:
            self.close(reason)

    def pause_writing(self) -> None:
        """The transport holds more than MAX_UNWRITTEN bytes."""
        self.abort(f"the runtime does not read: over {MAX_UNWRITTEN} bytes of answers wait for it")

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._reason
        if reason is None:
            reason = f"the connection broke: {exc}" if exc else "the runtime closed the connection"
        self._give_up(reason)
        memory.resume()
        if self._timer is not None:
            self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(reason)

    def close(self, reason: str) -> None:
        """End the connection after what is owed has been written, but not later than LINGER seconds from now."""
        if self._reason is None and self._transport is not None:
            self._give_up(reason)
            self._transport.close()
            self._timer = self._loop.call_later(LINGER, self._transport.abort)

    def abort(self, reason: str) -> None:
        """End the connection now."""
        self._give_up(reason)
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            if self._timer is not None:
                self._timer.cancel()
            self._session.lost(reason)

    def _expect_configure(self) -> None:
        if self._session.configured:
            self._timer = self._loop.call_later(SYNCHRONIZE_TIMEOUT, self._expect_synchronize)
        else:
            self.close(f"the runtime has not configured this plugin within {REGISTRATION_TIMEOUT:.0f} s")

    def _expect_synchronize(self) -> None:
        if not self._session.synchronized and not self._session.launched:  # a launched plugin has but one connection
            self.close(
                f"the runtime has configured this plugin, and not synchronized it within {SYNCHRONIZE_TIMEOUT:.0f} s"
            )

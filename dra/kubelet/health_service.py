"""The health of devices as the kubelet watches it: streams of reports, versions v1 and v1alpha1 (features.md D8).

A stream gets all devices at its start, at each change, and every 10 s; what it was told holds until 20 s after somebody
looked. While nobody can look nothing is told, so that the kubelet says Unknown (dra-protocol 2.2). A stream that does
not read holds up nobody: each has a thread, and finds the newest report when it is ready, not all that it missed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import grpc
from loguru import logger

from dra.health import DeviceHealth
from dra.kubelet import health_pb2 as pb

# By the names that the kubelet is told (dra-protocol 1.3).
SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
# Seconds. Below the 30 s after which a kubelet forgets, so that one report may be late (fault B10).
RESEND = 10.0
LEASE = 20
# Streams at once; a kubelet has one, while it restarts two. Each holds a thread of the server.
MAX_STREAMS = 8


class HealthBoard:
    """Where the health of devices is put up, and the service that tells the kubelet.

    `set` and `close` may be called by any thread. `looked_at`: when somebody last saw whether devices are healthy
    (time.monotonic, seconds). `resend`: seconds between two reports on a stream.
    """

    def __init__(self, looked_at: Callable[[], float], resend: float = RESEND) -> None:
        self._looked_at = looked_at
        self._resend = resend
        self._changed = threading.Condition()
        self._devices: tuple[DeviceHealth, ...] | None = None
        self._version = 0
        self._closed = False
        # Oldest first: what they are, by an object of their own.
        self._streams: dict[object, grpc.ServicerContext] = {}

    def set(self, devices: tuple[DeviceHealth, ...]) -> None:
        """Tell all streams the health of all devices, if it is news. Waits for nobody."""
        with self._changed:
            if devices == self._devices:
                return
            self._devices = devices
            self._version += 1
            self._changed.notify_all()

    def close(self) -> None:
        """End all streams and take no more; call it before the server stops, which else waits for them."""
        with self._changed:
            self._closed = True
            streams = list(self._streams.values())
        for context in streams:
            context.cancel()

    @property
    def streams(self) -> int:
        """How many there are."""
        with self._changed:
            return len(self._streams)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Both versions as gRPC wants them; they are the same on the wire (dra-protocol 2.2)."""
        # The request is empty: there is nothing to read in it.
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "NodeWatchResources": grpc.unary_stream_rpc_method_handler(self._watch)
        }
        return [grpc.method_handlers_generic_handler(name, methods) for name in SERVICES]

    def _watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        stream = self._open(context)
        version = 0
        while (found := self._next(stream, version)) is not None:
            devices, version, age = found
            yield _report(devices, age)

    def _next(self, stream: object, version: int) -> tuple[tuple[DeviceHealth, ...], int, int] | None:
        """What a stream that was told `version` is told next, when it is time, with its version and its age in seconds;
        None at its end."""

        def due() -> bool:
            return stream not in self._streams or self._version != version

        with self._changed:
            while True:
                self._changed.wait_for(due, self._resend)
                if stream not in self._streams:
                    return None
                version = self._version
                # Before the first `set` nothing is known: an empty report would say that there are no devices.
                if self._devices is not None and (age := int(time.monotonic() - self._looked_at())) < LEASE:
                    return self._devices, version, age

    def _open(self, context: grpc.ServicerContext) -> object:
        """Make room for one more stream; aborts the call after `close`."""
        stream = object()
        with self._changed:
            closed = self._closed
            oldest = None
            if not closed:
                self._streams[stream] = context
                if len(self._streams) > MAX_STREAMS:
                    oldest = self._streams.pop(next(iter(self._streams)))
        if closed:
            context.abort(grpc.StatusCode.UNAVAILABLE, "dra-cpu stops")
        if oldest:
            logger.warning("more than {} clients watch the health of devices: the oldest is cut off", MAX_STREAMS)
            oldest.cancel()
        if not context.add_callback(lambda: self._end(stream)):
            self._end(stream)  # it has ended before it began
        return stream

    def _end(self, stream: object) -> None:
        with self._changed:
            self._streams.pop(stream, None)
            self._changed.notify_all()


def _report(devices: tuple[DeviceHealth, ...], age: int) -> bytes:
    looked = int(time.time()) - age
    return pb.NodeWatchResourcesResponse(
        devices=[
            pb.DeviceHealth(
                device=pb.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
                health=pb.HEALTHY if device.healthy else pb.UNHEALTHY,
                last_updated_time=looked,
                health_check_timeout_seconds=LEASE - age,  # it counts from the arrival
                message=device.message,
            )
            for device in devices
        ]
    ).SerializeToString()

"""A small API server for tests, on loopback: objects with versions, watches, and all that can go wrong on the way.

Claims are answered from a table; Nodes, ResourceSlices and other claims are kept as a real server keeps them
(objects.py). `faults` are what the next requests meet instead.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.unit.dra.objects import Object, Objects, StatusError, status_of

_PATIENCE = 30.0


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Fault:
    """What one request meets: `method` and the end of its `path`. `raw`: bytes that are sent instead of an answer, and
    then the connection is closed, or reset. `status`: an answer with `headers` and `body`. `hang`: no answer until the
    server ends. `mangle`: the object of the answer, or of each watch event, as it is sent. `lasting`: each such one."""

    method: str = ""
    path: str = ""
    raw: bytes | None = None
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang: bool = False
    mangle: Callable[[Object], Any] | None = None
    lasting: bool = False

    def meets(self, request: Request) -> bool:
        return request.method.startswith(self.method) and request.path.endswith(self.path)


@dataclass
class FakeApiServer:
    """`claims`: path -> what is answered, an object with status 200, or (status, bytes). `seen`: (path, headers)."""

    url: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list, repr=False)
    requests: list[Request] = field(default_factory=list, repr=False)
    objects: Objects = field(default_factory=Objects)
    faults: list[Fault] = field(default_factory=list)
    tokens: set[str] | None = None  # those that are accepted; None: all, and none too
    hold: threading.Event | None = None  # answers wait for it
    drip: threading.Event | None = None  # answers come byte by byte, each in time, until it is set or they are whole
    drop_next: bool = False  # the next request gets its connection closed
    cut: threading.Event = field(default_factory=threading.Event)  # ends watches under way, without their last chunk
    ended: threading.Event = field(default_factory=threading.Event)
    connections: int = 0  # that were ever made
    watches: int = 0  # under way

    def put(self, claim: dict[str, Any]) -> str:
        metadata = claim["metadata"]
        path = f"/apis/resource.k8s.io/v1/namespaces/{metadata['namespace']}/resourceclaims/{metadata['name']}"
        self.claims[path] = claim
        return path

    def kubeconfig(self, directory: Path, token: str = "secret") -> Path:
        path = directory / "kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def fault_of(self, request: Request) -> Fault | None:
        for fault in self.faults:
            if fault.meets(request):
                if not fault.lasting:
                    self.faults.remove(fault)
                return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes, of which the second would wait 40 ms for the first
    fake: FakeApiServer

    def handle(self) -> None:
        self.fake.connections += 1
        with contextlib.suppress(OSError):  # clients that give up are what some tests want
            super().handle()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", "0")))
        request = Request(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
        self.fake.requests.append(request)
        self.fake.seen.append((self.path, headers))
        fault = self.fake.fault_of(request)
        if self.fake.drop_next or (fault and fault.raw is not None):
            self.fake.drop_next = False
            self.close_connection = True
            self.wfile.write((fault and fault.raw) or b"")
            return
        if self.fake.hold:
            self.fake.hold.wait(_PATIENCE)
        if fault and fault.hang:
            self.fake.ended.wait(_PATIENCE)
            self.close_connection = True
        elif fault and fault.status:
            self._answer(fault.status, fault.body, fault.headers)
        else:
            self._serve(request, (fault and fault.mangle) or (lambda found: found))

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815  # names of http.server

    def _serve(self, request: Request, mangle: Callable[[Object], Any]) -> None:
        fake = self.fake
        if fake.tokens is not None and request.headers.get("authorization", "").split(" ")[-1] not in fake.tokens:
            self._answer(401, json.dumps(status_of(401, "Unauthorized")).encode())
        elif request.path in fake.claims:
            found = fake.claims[request.path]
            self._answer(*(found if isinstance(found, tuple) else (200, json.dumps(found).encode())))
        else:
            try:
                if request.query.get("watch"):
                    self._watch(request, mangle)
                    return
                status, answer = self._object(request)
            except StatusError as error:
                status, answer = error.code, error.body
            self._answer(status, json.dumps(mangle(answer)).encode())

    def _object(self, request: Request) -> tuple[int, Object]:
        objects = self.fake.objects
        collection, _, name = request.path.removesuffix("/status").rpartition("/")
        if name in ("resourceslices", "nodes", "resourceclaims"):
            if request.method == "POST":
                return 201, objects.create(request.path, json.loads(request.body))
            return 200, objects.listing(request.path, _selector(request))
        match request.method:
            case "GET":
                return 200, objects.get(collection, name)
            case "PUT":
                return 200, objects.update(collection, name, json.loads(request.body))
            case _:
                return 200, objects.delete(collection, name, json.loads(request.body or b"{}"))

    def _watch(self, request: Request, mangle: Callable[[Object], Any]) -> None:
        objects, fake = self.fake.objects, self.fake
        version = int(request.query["resourceVersion"])
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        ends = time.monotonic() + int(request.query["timeoutSeconds"])
        expired = version < objects.oldest
        if expired:
            self._chunk({"type": "ERROR", "object": status_of(410, f"too old resource version: {version}")}, mangle)
        fake.watches += 1
        try:
            while not (expired or fake.ended.is_set() or fake.cut.is_set() or time.monotonic() > ends):
                with objects.changed:
                    version, events = objects.after(version, request.path, _selector(request))
                    if not events:
                        objects.changed.wait(0.05)
                for event in events:
                    self._chunk(event, mangle)
        finally:
            fake.watches -= 1
        self.close_connection = True
        if not fake.cut.is_set():
            self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event: Object, mangle: Callable[[Object], Any]) -> None:
        found = mangle(event)
        content = found if isinstance(found, bytes) else json.dumps(found).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        drip = self.fake.drip
        for at in range(len(body) if drip else 0):
            self.wfile.write(body[at : at + 1])
            if drip and drip.wait(0.02):
                return
        self.wfile.write(b"" if drip else body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def _selector(request: Request) -> dict[str, str]:
    return dict(part.split("=") for part in filter(None, request.query.get("fieldSelector", "").split(",")))


@contextlib.contextmanager
def apiserver(tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[FakeApiServer]:
    """`port`: of the loopback; 0: any that is free."""
    fake = FakeApiServer()

    handler: Any = type("Handler", (_Handler,), {"fake": fake})

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def finish_request(self, request: Any, client_address: Any) -> None:
            """In the request's own thread: a handshake holds up nobody else."""
            if tls:
                request = tls.wrap_socket(request, server_side=True)
            handler(request, client_address, self)
            if tls:
                request.close()

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that give up are what some tests want."""

    server = Server(("127.0.0.1", port), handler)
    fake.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield fake
    finally:
        for event in filter(None, (fake.hold, fake.drip, fake.ended)):
            event.set()
        server.shutdown()
        thread.join()
        server.server_close()

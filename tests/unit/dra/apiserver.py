"""A small API server for tests: answers GET of ResourceClaims from a table, on loopback, and can misbehave."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml


@dataclass
class FakeApiServer:
    """`claims`: path -> what is answered, an object with status 200, or (status, bytes). `seen`: (path, headers)."""

    url: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    hold: threading.Event | None = None  # answers wait for it
    drip: threading.Event | None = None  # answers come byte by byte, each in time, until it is set or they are whole
    drop_next: bool = False  # the next request gets its connection closed

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


@contextlib.contextmanager
def apiserver() -> Iterator[FakeApiServer]:
    fake = FakeApiServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fake.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            if fake.drop_next:
                fake.drop_next = False
                self.close_connection = True
                return
            if fake.hold:
                fake.hold.wait(30)
            found = fake.claims.get(self.path, (404, b'{"kind": "Status", "message": "not found"}'))
            status, body = found if isinstance(found, tuple) else (200, json.dumps(found).encode())
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                drip = fake.drip
                for at in range(len(body) if drip else 0):
                    self.wfile.write(body[at : at + 1])
                    if drip and drip.wait(0.02):
                        return
                self.wfile.write(b"" if drip else body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that give up are what some tests want."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield fake
    finally:
        for event in filter(None, (fake.hold, fake.drip)):
            event.set()
        server.shutdown()
        thread.join()
        server.server_close()

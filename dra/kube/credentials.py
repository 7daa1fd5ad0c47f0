"""How the API server is reached: its address, TLS, the header that says who asks, and a proxy on the way.

In a pod that is what the kubelet mounts for the service account. Tokens and certificates are files that others replace
(the kubelet renews a pod's token long before it ends), so each use looks whether they are still the ones read.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from loguru import logger

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class CredentialsError(Exception):
    """No way to the API server; the message says what was looked for and what to do."""


# How a request waits for what has no time limit of its own: gives what that gives. Raises TimeoutError at the request's
# end, and OSError where another thread ends the request.
Wait = Callable[[Callable[[], str]], str]

# What stands in the header Authorization, asked for each request. Raises CredentialsError, and what Wait raises.
Authorization = Callable[[Wait], str | None]


@dataclass(frozen=True, slots=True)
class Pem:
    """Certificates or keys: in a file, which is read again when another is there, or as bytes."""

    file: Path | None = None
    content: bytes = b""

    def signature(self) -> tuple[int, ...]:
        return _signature(self.file) if self.file else ()

    def read(self) -> bytes:
        return self.file.read_bytes() if self.file else self.content


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """`authority`: None for those that the system trusts. `certificate`, `key`: the client's. `server_name`: what the
    certificate of the server must be for, where that is not the host of its address."""

    authority: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    verify: bool = True
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """`server`: the URL without a slash at its end. `tls`: None for http. `proxy`: URL of an HTTP proxy, or None.
    `origin`: what to look at when the server does not accept them, for people."""

    server: str
    tls: Tls | None
    authorization: Authorization
    proxy: str | None
    origin: str


def service_account(environment: Mapping[str, str] | None = None, directory: Path | None = None) -> Credentials:
    """The credentials of the pod that this process runs in. Raises CredentialsError.

    As rest.InClusterConfig of client-go finds them: address in the environment, token and ca.crt in a directory.
    """
    environment = os.environ if environment is None else environment
    directory = directory or SERVICE_ACCOUNT
    host, port = (environment.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not host or not port:
        raise CredentialsError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    server = checked_url(f"https://{f'[{host}]' if ':' in host else host}:{port}", "KUBERNETES_SERVICE_HOST and _PORT")
    token = TokenFile(directory / "token")
    tls = Tls(TlsFacts(authority=Pem(directory / "ca.crt")))
    return Credentials(server, tls, token, proxy_of_environment(server, environment), token.origin)


def checked_url(url: str, where: str) -> str:
    """`url` of a server, without the slash at its end. Raises CredentialsError, which begins with `where`."""
    if "@" in url:
        raise CredentialsError(f"{where}: names and passwords belong into users, not into the address")
    return _checked(url, where)


def checked_proxy(url: str, where: str) -> str:
    """`url` of a proxy, which may have a name and a password. Raises CredentialsError, which begins with `where`."""
    if not url.startswith("http://"):
        kind = url.partition("://")[0][:20]
        raise CredentialsError(f"{where}: {kind!r}: only proxies that are spoken to by http:// can be used")
    return _checked(url, where)


def _checked(url: str, where: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable or not url.isascii() or not url.isprintable() or any(each in url for each in " ?#"):
        shown = url.rpartition("@")[2]  # no password in the log
        raise CredentialsError(f"{where}: {shown!r} is no URL like https://host:port")
    return url.rstrip("/")


class Trouble:
    """What is wrong with what can't be read again: told when it begins, changes and ends."""

    def __init__(self) -> None:
        self._told = ""

    def tell(self, problem: str) -> None:
        """ "" when all is well. Of several threads at once each may tell it."""
        if problem == self._told:
            return
        before, self._told = self._told, problem
        if problem:
            logger.warning("{}; what was read before stays in use", problem)
        else:
            logger.info("no more: {}", before)


class TokenFile:
    """An Authorization: the bearer token that a file holds. The last one stays in use where the file can't be read for
    a while. Raises CredentialsError where there is none to begin with."""

    def __init__(self, path: Path) -> None:
        self.origin = f"the token in {path}"
        self._path = path
        self._trouble = Trouble()
        try:
            self._value, self._signature = self._read(())
        except (OSError, ValueError, CredentialsError) as error:
            raise CredentialsError(f"the token can't be read: {error}") from error

    def __call__(self, _: Wait) -> str:
        try:
            self._value, self._signature = self._read(self._signature)
        except (OSError, ValueError, CredentialsError) as error:
            self._trouble.tell(f"the token can't be read: {error}")
        else:
            self._trouble.tell("")
        return self._value

    def _read(self, known: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        signature = _signature(self._path)
        if signature == known:
            return self._value, known
        return bearer(self._path.read_text("ascii"), str(self._path)), signature


def bearer(token: str, where: str) -> str:
    token = token.strip()  # token files end in a newline
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CredentialsError(f"{where}: holds no token")
    return f"Bearer {token}"


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Tls:
    """The context for connections: the same one as long as its files are the same, or can't be used.

    Raises CredentialsError where there is none to begin with.
    """

    def __init__(self, facts: TlsFacts) -> None:
        self.server_name = facts.server_name
        self._facts = facts
        self._lock = threading.Lock()
        self._trouble = Trouble()
        try:
            self._signatures = self._look()
        except OSError as error:
            raise CredentialsError(_unreadable(error)) from error
        self._context = _context_of(facts)

    def context(self) -> ssl.SSLContext:
        with self._lock:
            try:
                signatures = self._look()
                if signatures != self._signatures:
                    self._signatures = signatures  # what can't be used is tried once
                    self._context = _context_of(self._facts)
                    self._trouble.tell("")
            except OSError as error:
                self._signatures = ()
                self._trouble.tell(_unreadable(error))
            except CredentialsError as error:  # also while files that belong together are replaced one by one
                self._trouble.tell(str(error))
            return self._context

    def _look(self) -> tuple[tuple[int, ...], ...]:
        pems = (self._facts.authority, self._facts.certificate, self._facts.key)
        return tuple(pem.signature() for pem in pems if pem)


def _context_of(facts: TlsFacts) -> ssl.SSLContext:
    # Not create_default_context: that refuses authorities without key usage (Python 3.13), as many clusters have them.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if not facts.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    part = "certificate authority"
    try:
        if facts.authority and facts.verify:
            context.load_verify_locations(cadata=facts.authority.read().decode("ascii"))
        elif facts.verify:
            context.load_default_certs()
        if facts.certificate and facts.key:
            part = "client certificate and key"
            _load_chain(context, facts.certificate.read() + b"\n" + facts.key.read())
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = [str(pem.file) for pem in (facts.authority, facts.certificate, facts.key) if pem and pem.file]
        where = f" ({', '.join(files)})" if files else ""
        raise CredentialsError(f"the {part}{where} can't be used: {' '.join(str(error).split())}") from error
    return context


def _load_chain(context: ssl.SSLContext, content: bytes) -> None:
    """By a file in memory, since OpenSSL's loader wants a file and a private key has no business on a disk."""
    descriptor = os.memfd_create("client", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")  # else OpenSSL asks the terminal
    finally:
        os.close(descriptor)


def proxy_of_environment(server: str, environment: Mapping[str, str] | None = None) -> str | None:
    """HTTPS_PROXY or HTTP_PROXY, unless NO_PROXY names the host: the rules of Go's httpproxy. Raises CredentialsError.

    NO_PROXY: hosts and their domains, addresses, networks (10.96.0.0/12, as clusters have it), each with a port or
    without, or `*`.
    """
    environment = os.environ if environment is None else environment
    parts = urlsplit(server)

    def value(name: str) -> str:
        return environment.get(name) or environment.get(name.lower()) or ""

    name = f"{parts.scheme.upper()}_PROXY"
    proxy = value(name)
    if not proxy or _bypassed(parts, value("NO_PROXY")):
        return None
    return checked_proxy(proxy if "://" in proxy else f"http://{proxy}", name)


def proxy_authorization(proxy: SplitResult) -> str | None:
    return basic(unquote(proxy.username), unquote(proxy.password or "")) if proxy.username else None


def _bypassed(server: SplitResult, no_proxy: str) -> bool:
    host = (server.hostname or "").lower()
    port = server.port or (443 if server.scheme == "https" else 80)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if host == "localhost" or (address and address.is_loopback):
        return True
    for entry in filter(None, (part.strip().lower() for part in no_proxy.split(","))):
        name = entry.removesuffix(f":{port}").strip("[]")
        if entry == "*" or name.removeprefix("*").removeprefix(".") == host or host.endswith("." + name.lstrip("*.")):
            return True
        try:
            if address and address in ipaddress.ip_network(name, strict=False):
                return True
        except ValueError:  # a name
            continue
    return False


def _signature(path: Path) -> tuple[int, ...]:
    """Another one when the file is replaced, also by the link that the kubelet swaps, or may be read by others."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size


def _unreadable(error: OSError) -> str:
    return f"{error.filename} can't be read: {error.strerror}"

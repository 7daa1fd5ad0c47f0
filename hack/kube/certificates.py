"""Throw-away certificates and kubeconfig files: an authority of the cluster's own, valid for a month, by openssl.

Who somebody is to Kubernetes stands in the subject: CN is the user, O a group.
(kubernetes.io: Certificate Management, PKI certificates and requirements)
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hack.node.tools import run

_DAYS = "30"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A certificate to make: file name without suffix, user, group, and the names and addresses of a server."""

    name: str
    user: str
    group: str = ""
    server: Sequence[str] = ()


class Authority:
    """Certificates in one directory: <name>.crt and <name>.key; ca.crt is the authority's own.

    Raises BuildError where openssl fails.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700)
        files = ("-keyout", self.key("ca"), "-out", self.certificate("ca"))
        # Without its usage newer Pythons refuse it (VERIFY_X509_STRICT).
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        run(["openssl", "req", "-x509", *_NEW_KEY, "-subj", "/CN=test-authority", "-days", _DAYS, *usage, *files])

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    def issue(self, wanted: Sequence[Wanted]) -> None:
        """Make certificates, several at a time."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._issue, wanted))

    def _issue(self, wanted: Wanted) -> None:
        subject = f"/O={wanted.group}/CN={wanted.user}" if wanted.group else f"/CN={wanted.user}"
        usage = "clientAuth,serverAuth" if wanted.server else "clientAuth"
        extensions = ["-addext", f"extendedKeyUsage={usage}"]
        if wanted.server:
            extensions += ["-addext", "subjectAltName=" + ",".join(wanted.server)]
        authority = ("-CA", self.certificate("ca"), "-CAkey", self.key("ca"))
        files = ("-keyout", self.key(wanted.name), "-out", self.certificate(wanted.name))
        made = ("req", "-x509", *authority, *_NEW_KEY, "-subj", subject, "-days", _DAYS, *files)
        run(["openssl", *made, "-addext", "basicConstraints=critical,CA:false", *extensions])

    def key_pair(self, name: str) -> None:
        """Make <name>.key and <name>.pub, for what is signed with no certificate: tokens of service accounts."""
        curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        run(["openssl", "genpkey", *curve, "-out", self.key(name)])
        run(["openssl", "pkey", "-in", self.key(name), "-pubout", "-out", self.directory / f"{name}.pub"])

    def kubeconfig(self, server: str, name: str) -> str:
        """The kubeconfig of who has this certificate."""
        user = {
            "client-certificate-data": _encoded(self.certificate(name)),
            "client-key-data": _encoded(self.key(name)),
        }
        return self._kubeconfig(server, user)

    def kubeconfig_with_token(self, server: str, token: str) -> str:
        return self._kubeconfig(server, {"token": token})

    def _kubeconfig(self, server: str, user: dict[str, str]) -> str:
        """As JSON, which is YAML."""
        cluster = {"server": server, "certificate-authority-data": _encoded(self.certificate("ca"))}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "box", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "box", "context": {"cluster": "box", "user": "user"}}],
            "current-context": "box",
        }
        return json.dumps(config, indent=1) + "\n"


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()

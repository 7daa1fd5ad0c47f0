"""Where our two sockets are below the kubelet's root, alone or beside another instance of ours (dra-protocol 1.1, 1.6).

With the pod's UID in their names two instances serve at once, so that one can take over from the other (fault K9). The
names are those that the Go helper for DRA drivers gives its sockets.
"""

from __future__ import annotations

import hashlib
import os
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from dra.devices import DRIVER
from dra.kubelet.server import SOCKET_PATH_LIMIT, ServerError, check_length, is_stale
from nri_cpu.checkpoint.model import is_uid

# Seconds for which a socket that takes no calls may belong to an instance that is about to listen.
_YOUNG = 10.0


@dataclass(frozen=True, slots=True)
class Sockets:
    """Paths of the sockets of one instance: the DRA service's, and that in the directory that the kubelet watches."""

    dra: Path
    registration: Path


def sockets(root: Path, pod_uid: str | None, driver: str = DRIVER) -> Sockets:
    """The sockets below the kubelet's `root`; with `pod_uid`, those of the instance in that pod.

    Names that are too long for a socket's path are shortened by a hash; raises ServerError, with the numbers, where no
    name is short enough (fault A31), and for a UID that is none.
    """
    data, watched = root / "plugins" / driver, root / "plugins_registry"
    if pod_uid is None:
        return Sockets(_first_fitting(data / "dra.sock"), _first_fitting(watched / f"{driver}-reg.sock"))
    if not is_uid(pod_uid):
        raise ServerError(f"{pod_uid!r} is no UID of a pod: give the downward API's metadata.uid")
    short = _hash(pod_uid, 8)
    return Sockets(
        _first_fitting(data / f"dra-{pod_uid}.sock", data / f"dra-{short}"),
        _first_fitting(
            watched / f"{driver}-{pod_uid}-reg.sock",
            watched / f"{driver}-{short}-reg.sock",
            watched / f"dra-{_hash(driver + chr(0) + pod_uid, 16)}-reg.sock",
        ),
    )


def remove_stale(own: Sockets, driver: str = DRIVER) -> list[Path]:
    """Remove what instances of other names left when they were killed, and return it: a kubelet tries such a socket
    for ever (fault K7), and nobody else will come to serve it. One that is served, young, or not surely ours stays.
    """
    removed = []
    for path in _ours(own, driver):
        try:
            if is_stale(path) and abs(time.time() - path.lstat().st_mtime) > _YOUNG:
                path.unlink()
                removed.append(path)
                logger.info("removed {}, which an earlier instance left", path)
        except (ServerError, OSError):
            continue  # another instance's, or no socket
    return removed


def _ours(own: Sockets, driver: str) -> Iterator[Path]:
    watched, data = own.registration.parent, own.dra.parent
    yield watched / f"{driver}-reg.sock"
    yield from watched.glob(f"{driver}-*-reg.sock")
    yield data / "dra.sock"
    yield from data.glob("dra-*")


def _first_fitting(*paths: Path) -> Path:
    """Raises ServerError for the shortest when none fits."""
    for path in paths:
        if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
            return path
    shortest = min(paths, key=lambda path: len(os.fsencode(path)))
    check_length(shortest)
    return shortest


def _hash(text: str, size: int) -> str:
    """The first `size` bytes of the text's SHA-256, as base64 for names of files."""
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).rstrip(b"=").decode()

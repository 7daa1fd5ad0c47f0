"""Where our two sockets are below the kubelet's root, alone or beside another instance of ours (dra-protocol 1.1, 1.6).

With the pod's UID in their names two instances serve at once, so that one can take over from the other (fault K9). The
names are those that the Go helper for DRA drivers gives its sockets.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from dra.devices import DRIVER
from dra.kubelet.server import MADE, SOCKET_PATH_LIMIT, ServerError, check_length, is_stale
from dra.slices.pace import Clock
from nri_cpu.cpuset import quote

# As API servers make UIDs, and as a kubelet makes those of its static pods.
_UID = r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})"
# What stands for a UID in short names: 8 bytes in base64. One without a capital letter or _ may as well be the end of
# another driver's name.
_HASH = r"(?=[a-z0-9-]{0,10}[A-Z_])[A-Za-z0-9_-]{11}"
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
    if not re.fullmatch(_UID, pod_uid):
        raise ServerError(
            f"--pod-uid {quote(pod_uid)} is no UID of a pod: give what the downward API has in metadata.uid"
        )
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


class Leftovers:
    """Has stale sockets removed, at the first look and once more when none of then can be young any more."""

    def __init__(self, own: Sockets, clock: Clock | None = None) -> None:
        self._own = own
        self._clock = clock or Clock()
        self._due = [self._clock.now(), self._clock.now() + _YOUNG + 1]

    def look(self) -> None:
        """To be called each second."""
        if self._due and self._due[0] <= self._clock.now():
            del self._due[0]
            remove_stale(self._own)


def _ours(own: Sockets, driver: str) -> Iterator[Path]:
    """What has a name of the forms above but the last one, which does not say whose it is, or one that no call has
    come to yet."""
    name = re.escape(driver)
    made = rf"{re.escape(MADE)}[0-9a-f]{{7}}"
    for directory, form in (
        (own.registration.parent, rf"{name}(?:-(?:{_UID}|{_HASH}))?-reg\.sock|{made}"),
        (own.dra.parent, rf"dra(?:-{_UID})?\.sock|dra-{_HASH}|{made}"),
    ):
        yield from (path for path in directory.glob("*") if re.fullmatch(form, path.name))


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

"""The runtime on the other end, as its Configure request describes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nri_cpu.nri.nri_pb2 import ConfigureRequest

Version = tuple[int, int, int]

# What runtimes use unless their configuration says otherwise, and the only thing known of those that do not tell
# (before NRI 0.7 both fields are absent), in milliseconds.
_DEFAULT_REGISTRATION_TIMEOUT: Final = 5000
_DEFAULT_REQUEST_TIMEOUT: Final = 2000

# NRI's lock order was made safe for plugins that call on their own in 0.12.1 (nri#301; fault N1).
_UNSOLICITED_UPDATES_SAFE: Final[Version] = (0, 12, 1)

# The NRI release in each runtime from the version on, newest first. A version newer than the newest one here has at
# least that NRI: plugins may rely on what is known to be there, not on what may have come since.
_NRI_OF: Final[dict[str, tuple[tuple[Version, Version], ...]]] = {
    "containerd": (
        ((2, 2, 1), (0, 11, 0)),
        ((2, 2, 0), (0, 10, 0)),
        ((1, 7, 26), (0, 8, 0)),
        ((1, 7, 16), (0, 6, 1)),
        ((1, 7, 14), (0, 6, 0)),
        ((1, 7, 7), (0, 4, 0)),
        ((1, 7, 0), (0, 3, 0)),
    ),
    "cri-o": (
        ((1, 35, 0), (0, 11, 0)),
        ((1, 34, 0), (0, 10, 0)),
        ((1, 32, 0), (0, 9, 0)),
        ((1, 31, 0), (0, 6, 1)),
        ((1, 29, 2), (0, 6, 0)),
        ((1, 29, 0), (0, 5, 0)),
        ((1, 26, 2), (0, 3, 0)),
        ((1, 26, 0), (0, 2, 0)),
    ),
}
# Early releases of containerd 2 take their name from the last part of a Go package path.
_OTHER_NAMES: Final = {"v2": "containerd"}

_VERSION = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})(-)?")


@dataclass(frozen=True, slots=True)
class Runtime:
    """Name and version as the runtime gives them; timeouts in seconds; `nri_version` None when it can't be told."""

    name: str
    version: str
    nri_version: Version | None
    registration_timeout: float
    request_timeout: float
    synchronizes_launched: bool
    """Whether it synchronizes plugins that it has started itself, too: since NRI 0.7, which brought the timeouts
    (nri#43). Before, they meet what runs one by one."""

    @classmethod
    def from_configure(cls, request: ConfigureRequest) -> Runtime:
        """The runtime that sent `request`. Never fails: whatever is absent or senseless counts as not told."""
        nri_version = _parse(request.NRI_version)
        if nri_version is None or nri_version == (0, 0, 0):
            nri_version = _inferred(request.runtime_name, request.runtime_version)
        return cls(
            name=request.runtime_name,
            version=request.runtime_version,
            nri_version=nri_version,
            registration_timeout=_seconds(request.registration_timeout, _DEFAULT_REGISTRATION_TIMEOUT),
            request_timeout=_seconds(request.request_timeout, _DEFAULT_REQUEST_TIMEOUT),
            synchronizes_launched=request.request_timeout > 0,
        )

    @property
    def unsolicited_updates_safe(self) -> bool:
        """Whether UpdateContainers may be called at all; before NRI 0.12.1 it can stop the runtime (fault N1)."""
        return self.nri_version is not None and self.nri_version >= _UNSOLICITED_UPDATES_SAFE

    def __str__(self) -> str:
        nri = ".".join(map(str, self.nri_version)) if self.nri_version else "of unknown version"
        return f"{self.name or 'a runtime without a name'} {self.version or 'of unknown version'} (NRI {nri})"


def _parse(text: str) -> Version | None:
    """The version that `text` begins with, or None. What precedes a release counts as the one before it.

    Go names a commit after v0.12.0 v0.12.1-0.<time>-<hash>: what 0.12.1 mended may be missing there.
    """
    found = _VERSION.match(text)
    if not found:
        return None
    major, minor, patch = int(found[1]), int(found[2]), int(found[3])
    return major, minor, patch - 1 if found[4] and patch else patch


def _inferred(name: str, version: str) -> Version | None:
    parsed = _parse(version)
    if parsed is None:
        return None
    table = _NRI_OF.get(_OTHER_NAMES.get(name, name), ())
    return next((nri for since, nri in table if parsed >= since), None)


def _seconds(milliseconds: int, default: int) -> float:
    return (milliseconds if milliseconds > 0 else default) / 1000

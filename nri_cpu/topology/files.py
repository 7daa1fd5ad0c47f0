"""Small files and directories of sysfs under a root, with those of an overlay in their place.

Nothing here fails: what can't be read is None or empty. HOST_ROOT may name any folder, so what is read has a size that
ends, each file and all together; directories have so many entries; and a FIFO, a loop of links or a device costs its
own value only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from nri_cpu.cpuset import EMPTY, MAX_CPUS, CPUSet, CPUSetError
from nri_cpu.topology.overlay import Overlay

CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"

# Bytes. A list of 8192 CPUs with every second one missing has 23 KiB, a mask of as many CPUs 2 KiB.
_READ_LIMIT = 65536
# What a kernel gives for one read() of a file that may be longer: a page of the smallest size that there is.
_PAGE = 4096
# Entries of a directory that have a name of those that are looked for: as many as CPUs at most.
_MATCH_LIMIT = 2 * MAX_CPUS
# All its entries, so that one directory full of other files hides nothing, and leaves some of the total for others.
ENTRY_LIMIT = 1 << 18

# The same for all that is read. 8192 CPUs with masks of 2 KiB in several files each have 40 MiB, and a few hundred
# thousand entries; links may make a hundred times as much of a small folder, which would take minutes.
TOTAL_READ_LIMIT = 64 << 20
TOTAL_ENTRY_LIMIT = 1 << 20

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


class Sysfs:
    """Reads files by their path on the machine (/sys/...), wherever its root is."""

    def __init__(self, root: Path, overlay: Overlay | None = None) -> None:
        self._root = os.fspath(root).rstrip("/")
        self._files = overlay.files if overlay else {}
        self._entries = overlay.entries if overlay else {}
        self._bytes_left = TOTAL_READ_LIMIT
        self._entries_left = TOTAL_ENTRY_LIMIT
        self._cut = False

    @property
    def ended(self) -> bool:
        """Whether so much was read that the rest is passed over, of a directory or of all: from then on what is not
        found may still be there."""
        return self._cut or self._bytes_left <= 0

    def text(self, path: str) -> str | None:
        """The stripped text of a file; None when it can't be read or is too long to be one of a kernel's. Old kernels
        end node lists with a NUL."""
        if self._files and path in self._files:
            return self._files[path].strip("\0 \t\n")
        if self._bytes_left <= 0:
            return None
        try:
            # O_NONBLOCK: opening a FIFO must not hang the start.
            file = os.open(self._root + path, _FLAGS)
        except OSError:
            return None
        try:
            data = os.read(file, _PAGE)
            if len(data) == _PAGE:
                data += _rest(file)
        except OSError:  # a directory, a FIFO that somebody holds
            return None
        finally:
            os.close(file)
        self._bytes_left -= len(data)
        return data.decode("ascii", "replace").strip("\0 \t\n") if len(data) < _READ_LIMIT else None

    def refusal(self, path: str) -> PermissionError | None:
        """The error with which the machine refuses to open a file or a directory to this user; None when it doesn't."""
        try:
            os.close(os.open(self._root + path, _FLAGS))
        except PermissionError as error:
            return error
        except OSError:
            pass
        return None

    def matching(self, directory: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        """The names in a directory that match as a whole, not more of them than a kernel can have put there; none when
        it can't be read."""
        try:
            with os.scandir(self._root + directory) as entries:
                found = self._matching(entries, pattern)
        except OSError:
            found = []
        added = map(pattern.fullmatch, self._entries.get(directory, ()))
        return [*found, *(match for match in added if match)]

    def _matching(self, entries: Iterator[os.DirEntry[str]], pattern: re.Pattern[str]) -> list[re.Match[str]]:
        found: list[re.Match[str]] = []
        left = min(ENTRY_LIMIT, self._entries_left)
        for entry in entries:
            if not left or len(found) == _MATCH_LIMIT:
                self._cut = True
                break
            left -= 1
            self._entries_left -= 1
            if match := pattern.fullmatch(entry.name):
                found.append(match)
        return found

    def numbered(self, directory: str, prefix: str) -> list[int]:
        """The numbers N of a directory's entries prefixN, ascending, as far as they are possible for CPUs."""
        found = self.matching(directory, re.compile(rf"{prefix}(0|[1-9][0-9]{{0,3}})"))
        return sorted({number for match in found if (number := int(match[1])) < MAX_CPUS})

    def cpu_list(self, path: str) -> CPUSet | None:
        """The CPUs that a file lists, such as 0-3,8; None when it is missing or can't be understood."""
        return parsed(self.text(path))

    def cpu_mask(self, path: str) -> CPUSet | None:
        """The CPUs of a file in the kernel's mask format, 32-bit hexadecimal words: kernels that lack lists have it."""
        digits = (self.text(path) or "").replace(",", "")
        # Masks are as long as the kernel's limit of CPUs, which may be above ours.
        if not digits or not _HEXADECIMAL.issuperset(digits) or len(digits.lstrip("0")) > MAX_CPUS // 4:
            return None
        return CPUSet.from_mask(int(digits, 16))


def parsed(text: str | None) -> CPUSet | None:
    """The CPUs of a list; None when there is none, or it can't be understood."""
    if text is None:
        return None
    try:
        return CPUSet.parse(text) if text else EMPTY
    except CPUSetError:
        return None


def integer(text: str | None) -> int | None:
    """The number that a file holds; None when it holds anything else."""
    return int(text) if text and _INTEGER.fullmatch(text) else None


def _rest(file: int) -> bytes:
    parts = b""
    while len(parts) < _READ_LIMIT and (part := os.read(file, _READ_LIMIT)):
        parts += part
    return parts

"""The sysfs overlay: a YAML file whose keys are absolute sysfs paths and whose values are what stands in these files.

It is dra-driver-cpu's, with its rules: an overlay's file takes the place of the machine's or comes on top, keys make
the directories above them, an empty string may stand for a directory such as /sys/devices/system/cpu/cpu0/node0.
It is for machines whose sysfs is not the truth, such as a virtual machine that hides its NUMA nodes. A value is the
text that is written there, but whole numbers, true, false and null need quotes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nri_cpu.cpuset import quote
from nri_cpu.regular import NotRegularError, read_regular
from nri_cpu.topology.errors import TopologyError

# Bytes. 512 CPUs with all files that are read have 0.6 MiB.
MAX_OVERLAY_BYTES = 16 << 20
# The same in keys and values: 50 a CPU, of which a machine has 8192 at most.
_MAX_VALUES = 500_000
# The same in files and directories: 50 a CPU.
_MAX_ENTRIES = 500_000
# Characters, and directories, of a path; each makes all directories above it. The deepest that is read has 10.
_MAX_PATH = 1024
_MAX_DEPTH = 32

_ONLINE = "/sys/devices/system/cpu/online"
_EXAMPLE = rf'{_ONLINE}: "0-3\n"'


@dataclass(frozen=True, slots=True)
class Overlay:
    """`files`: path -> text. `entries`: directory -> names in it."""

    files: Mapping[str, str]
    entries: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, files: Mapping[str, str], source: str = "sysfs overlay") -> Overlay:
        """The overlay of these files; raises TopologyError when one is the directory of another, or directories are so
        many that making them takes long."""
        entries: dict[str, dict[str, None]] = {}
        left = _MAX_ENTRIES
        for path in files:
            child = path
            while (parent := posixpath.dirname(child)) != "/":
                if parent in files:
                    shown, inside = quote(parent, 200), quote(path, 200)
                    raise TopologyError(f"{source}: {shown} is a file and the directory of {inside}")
                names = entries.setdefault(parent, {})
                name = posixpath.basename(child)
                if name in names:
                    break
                if not left:
                    raise TopologyError(f"{source}: has more than {_MAX_ENTRIES} files and directories: take it apart")
                left -= 1
                names[name] = None
                child = parent
        return cls(files, {directory: tuple(names) for directory, names in entries.items()})


def load_overlay(path: Path) -> Overlay:
    """The overlay in the file at `path`. Raises TopologyError that names the file, and the key or the line."""
    try:
        raw = read_regular(path, MAX_OVERLAY_BYTES)
    except NotRegularError:
        raise TopologyError(f"sysfs overlay {path}: is no regular file; name one") from None
    except OSError as error:
        raise TopologyError(f"sysfs overlay {path}: can't be read: {error.strerror}; check the path") from error
    if len(raw) > MAX_OVERLAY_BYTES:
        raise TopologyError(f"sysfs overlay {path}: is larger than {MAX_OVERLAY_BYTES} bytes")
    try:
        return parse_overlay(raw.decode("utf-8-sig"), f"sysfs overlay {path}")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise TopologyError(f"sysfs overlay {path}:{line}: is not UTF-8: {error.reason}") from None


def parse_overlay(text: str, source: str = "sysfs overlay") -> Overlay:
    """The overlay that `text` holds; `source` stands for it in messages. Raises TopologyError."""
    from nri_cpu import plain_yaml  # 15 ms, which only an overlay takes

    try:
        documents = plain_yaml.parse(text, _MAX_VALUES)
    except plain_yaml.PlainYamlError as error:
        raise TopologyError(f"{source}: {error}") from None
    if len(documents) > 1:
        raise TopologyError(f"{source}: has {len(documents)} documents; leave one")
    found = documents[0] if documents else None
    if found is None:  # nothing, or comments only
        return Overlay.of({}, source)
    if not isinstance(found, dict):
        raise TopologyError(f"{source}: is no mapping of paths to texts, such as {_EXAMPLE}")
    files: dict[str, str] = {}
    for path, content in found.items():
        where = f"{source}: {quote(path, 200)}"
        if not _is_path(path):
            raise TopologyError(f"{where} is no path of sysfs, such as {_ONLINE}")
        if not isinstance(content, str):
            raise TopologyError(f'{where} needs a text for a value, in quotes, such as "0-3\\n"')
        files[path] = content
    return Overlay.of(files, source)


def _is_path(key: str) -> bool:
    return (
        key.startswith("/sys/")
        and posixpath.normpath(key) == key
        and "\0" not in key
        and len(key) <= _MAX_PATH
        and key.count("/") <= _MAX_DEPTH
    )

"""The sysfs overlay: a YAML file whose keys are absolute sysfs paths and whose values are what stands in these files.

It is dra-driver-cpu's, with its rules: an overlay's file takes the place of the machine's or comes on top, keys make
the directories above them, an empty string may stand for a directory such as /sys/devices/system/cpu/cpu0/node0.
It is for machines whose sysfs is not the truth, such as a virtual machine that hides its NUMA nodes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nri_cpu.cpuset import quote
from nri_cpu.topology.errors import TopologyError

# Bytes. 512 CPUs with all files that are read have 0.6 MiB.
MAX_OVERLAY_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Overlay:
    """`files`: path -> text. `entries`: directory -> names in it."""

    files: Mapping[str, str]
    entries: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, files: Mapping[str, str], source: str = "sysfs overlay") -> Overlay:
        """The overlay of these files; raises TopologyError when one is the directory of another."""
        entries: dict[str, dict[str, None]] = {}
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
                names[name] = None
                child = parent
        return cls(files, {directory: tuple(names) for directory, names in entries.items()})


def load_overlay(path: Path) -> Overlay:
    """The overlay in the file at `path`. Raises TopologyError that names the file, the line and the key."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_OVERLAY_BYTES + 1)
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
    files: dict[str, str] = {}
    for line, key, value in _pairs(text, source):
        where = f"{source}:{line}: {quote(key, 200)}"
        if not key.startswith("/sys/") or posixpath.normpath(key) != key or "\0" in key:
            raise TopologyError(f"{where} is no path of sysfs, such as /sys/devices/system/cpu/online")
        if key in files:
            raise TopologyError(f"{where} stands there twice: remove one")
        if value is None:
            raise TopologyError(f'{where} needs a text for a value, in quotes, such as "0-3\\n"')
        files[key] = value
    return Overlay.of(files, source)


def _pairs(text: str, source: str) -> Iterator[tuple[int, str, str | None]]:
    """Line, key and value of the one flat mapping in `text`; None is a value that is not a text."""
    import yaml

    # The loader in C is ten times faster; not every PyYAML has it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from _Walk(yaml.parse(text, loader), source).pairs()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise TopologyError(f"{source}{line}: is not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # ValueError: of int() and chr() in the scanner
        raise TopologyError(f"{source}: is not YAML: {' '.join(str(error).split())}") from None


class _Walk:
    """Goes through a parser's events: nothing is built, nothing recurses, no alias is expanded."""

    def __init__(self, events: Iterator[Any], source: str) -> None:
        from yaml import nodes, resolver

        self._events = events
        self._source = source
        self._resolve: Any = resolver.Resolver().resolve
        self._scalar = nodes.ScalarNode

    def pairs(self) -> Iterator[tuple[int, str, str | None]]:
        from yaml import events as kinds

        documents = 0
        for event in self._events:
            if isinstance(event, kinds.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise TopologyError(f"{self._source}:{_line(event)}: has a second document; remove it")
            elif isinstance(event, kinds.MappingStartEvent):
                while not isinstance(event := next(self._events), kinds.MappingEndEvent):
                    key = self._text(event)
                    if key is None:
                        raise TopologyError(f"{self._source}:{_line(event)}: has a key that is no path of sysfs")
                    yield _line(event), key, self._text(next(self._events))
            elif isinstance(event, kinds.NodeEvent) and getattr(event, "value", "?") not in ("", "~", "null"):
                raise TopologyError(f"{self._source}:{_line(event)}: is no mapping of paths to texts")

    def _text(self, event: Any) -> str | None:
        """The text that starts with `event`; None for anything else, whose events are skipped."""
        from yaml import events as kinds

        if isinstance(event, kinds.CollectionStartEvent):
            depth = 1
            while depth:
                following = next(self._events)
                depth += isinstance(following, kinds.CollectionStartEvent)
                depth -= isinstance(following, kinds.CollectionEndEvent)
            return None
        if not isinstance(event, kinds.ScalarEvent):
            return None
        tag = event.tag or self._resolve(self._scalar, event.value, event.implicit)
        return str(event.value) if tag in ("!", "tag:yaml.org,2002:str") else None


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1

"""One manifest file, JSON or YAML, as plain values: dict, list, str, int, bool, None, and of JSON also float.

Anybody's file may lie in the directory, so that nothing is built that can explode or run: of YAML the parser's events
are walked. Tags, aliases and keys that are no scalars are refused, numbers that are not whole stay text as written.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml import AliasEvent, DocumentStartEvent, MappingEndEvent, ScalarEvent, SequenceEndEvent, SequenceStartEvent

from dra.claims import ClaimError

# A claim has some 3 KiB, and etcd takes no object above 1.5 MiB; the file is read for each call of the kubelet.
FILE_LIMIT = 1 << 20
# A claim has some 100 values. It is values that take time, not bytes.
EVENT_LIMIT = 100_000
_NESTING_LIMIT = 64
_NULL = ("", "~", "null", "Null", "NULL")
_SWITCHES = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def documents(path: Path) -> list[object]:
    """The documents of the file at `path`; raises ClaimError for whatever is wrong with it."""
    text = _text(path)
    return [_from_json(text)] if path.suffix == ".json" else _from_yaml(text)


def _text(path: Path) -> str:
    try:
        # O_NONBLOCK: opening a FIFO that someone put there must not hang a call.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ClaimError("is no regular file")
            raw = file.read(FILE_LIMIT + 1)
    except OSError as error:
        raise ClaimError(f"can't be read: {error.strerror}") from error
    if len(raw) > FILE_LIMIT:
        raise ClaimError(f"is larger than {FILE_LIMIT} bytes: take it apart")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ClaimError(f"is no UTF-8 text at byte {error.start}") from None


def _from_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClaimError(f"is no JSON: {error}") from None


def _from_yaml(text: str) -> list[object]:
    try:
        return list(_built(_plain(yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ClaimError(f"is no YAML{where}: {getattr(error, 'problem', None) or 'it can not be parsed'}") from None
    except (ValueError, OverflowError) as error:  # of int() and chr(), which the scanner does not look after
        raise ClaimError(f"is no YAML: {error}") from None


def _plain(events: Iterator[Any]) -> Iterator[Any]:
    """The events, of which none has a tag or is an alias, and no more than the limit."""
    for number, event in enumerate(events):
        if isinstance(event, AliasEvent) or getattr(event, "tag", None):
            what = "an alias" if isinstance(event, AliasEvent) else "a tag"
            raise ClaimError(f"has {what} in line {event.start_mark.line + 1}, which is not supported: write it out")
        if number > EVENT_LIMIT:
            raise ClaimError(f"has more than {EVENT_LIMIT} values: take it apart")
        yield event


def _built(events: Iterator[Any]) -> Iterator[object]:
    for event in events:
        if isinstance(event, DocumentStartEvent):
            yield _value(next(events), events, 0)


def _value(event: Any, events: Iterator[Any], depth: int) -> object:
    """The value that starts with `event`; its other events are taken from `events`, whose parser keeps them paired."""
    if isinstance(event, ScalarEvent):
        return _scalar(event.value) if event.implicit[0] else event.value
    if depth == _NESTING_LIMIT:
        raise ClaimError(f"is nested too deep in line {event.start_mark.line + 1}")
    if isinstance(event, SequenceStartEvent):
        items = []
        while not isinstance(item := next(events), SequenceEndEvent):
            items.append(_value(item, events, depth + 1))
        return items
    found: dict[str, object] = {}
    while not isinstance(key := next(events), MappingEndEvent):
        if not isinstance(key, ScalarEvent):
            raise ClaimError(f"has a key that is no text in line {key.start_mark.line + 1}")
        found[key.value] = _value(next(events), events, depth + 1)
    return found


def _scalar(plain: str) -> object:
    """What text without quotes means. Other YAML 1.1 forms (yes, 0x1F, 10:30, dates) are text: no field of ours has
    a use for them."""
    if plain in _NULL:
        return None
    if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", plain):
        return int(plain)
    return _SWITCHES.get(plain, plain)

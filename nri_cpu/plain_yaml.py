"""YAML as plain values: dict, list, str, int, bool, None. It may be of unknown origin.

When it is read nothing is built that can explode or run: the parser's events are walked. Tags, aliases, keys that are
no scalars and keys that are there twice are refused, numbers that are not whole stay text as written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml import AliasEvent, DocumentStartEvent, MappingEndEvent, ScalarEvent, SequenceEndEvent, SequenceStartEvent

from nri_cpu.cpuset import quote

_NESTING_LIMIT = 64
_NULL = ("", "~", "null", "Null", "NULL")
_SWITCHES = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


class PlainYamlError(ValueError):
    """Text that is not such YAML; the message says what is wrong and in which line."""


def parse(text: str, limit: int) -> list[object]:
    """The documents of `text`, which may have `limit` events (values, keys, ends). Raises PlainYamlError.

    It is events that take time, not bytes.
    """
    try:
        return list(_built(_plain(yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), limit)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        # The reader of characters has a reason and no line, the scanner and the parser have both.
        what = getattr(error, "problem", None) or getattr(error, "reason", None)
        raise PlainYamlError(f"is no YAML{where}: {what or 'it can not be parsed'}") from None
    except PlainYamlError:
        raise
    except (ValueError, OverflowError) as error:  # of int() and chr(), which the scanner does not look after
        raise PlainYamlError(f"is no YAML: {error}") from None


def dump(value: object) -> str:
    """One YAML document, which begins with its mark so that several can follow one another; no aliases in it."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=1 << 20)
    return text


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # which one is known at run time
    def ignore_aliases(self, data: object) -> bool:
        return True


def _plain(events: Iterator[Any], limit: int) -> Iterator[Any]:
    """The events, of which none has a tag or is an alias, and no more than the limit."""
    for number, event in enumerate(events):
        if isinstance(event, AliasEvent) or getattr(event, "tag", None):
            what = "an alias" if isinstance(event, AliasEvent) else "a tag"
            raise PlainYamlError(f"has {what} in line {_line(event)}, which is not supported: write it out")
        if number > limit:
            raise PlainYamlError(f"has more than {limit} values: take it apart")
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
        raise PlainYamlError(f"is nested too deep in line {_line(event)}")
    if isinstance(event, SequenceStartEvent):
        items = []
        while not isinstance(item := next(events), SequenceEndEvent):
            items.append(_value(item, events, depth + 1))
        return items
    found: dict[str, object] = {}
    while not isinstance(key := next(events), MappingEndEvent):
        if not isinstance(key, ScalarEvent):
            raise PlainYamlError(f"has a key that is no text in line {_line(key)}")
        if key.value in found:
            raise PlainYamlError(f"has the key {quote(key.value)} a second time in line {_line(key)}: remove one")
        found[key.value] = _value(next(events), events, depth + 1)
    return found


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def _scalar(plain: str) -> object:
    """What text without quotes means. Other YAML 1.1 forms (yes, 0x1F, 10:30, dates) are text: no field of ours has
    a use for them."""
    if plain in _NULL:
        return None
    if _INTEGER.fullmatch(plain):
        return int(plain)
    return _SWITCHES.get(plain, plain)

"""One manifest file, JSON or YAML, as plain values: dict, list, str, int, bool, None, and of JSON also float.

Anybody's file may lie in the directory, so that of YAML only the plain is read: no tags, no aliases.
"""

from __future__ import annotations

import json
from pathlib import Path

from dra.claims import ClaimError
from nri_cpu import plain_yaml
from nri_cpu.regular import NotRegularError, read_regular

# A claim has some 3 KiB, and etcd takes no object above 1.5 MiB; the file is read for each call of the kubelet.
FILE_LIMIT = 1 << 20
# A claim has some 100 values. It is values that take time, not bytes.
EVENT_LIMIT = 100_000


def documents(path: Path) -> list[object]:
    """The documents of the file at `path`; raises ClaimError for whatever is wrong with it."""
    text = _text(path)
    return [_from_json(text)] if path.suffix == ".json" else _from_yaml(text)


def _text(path: Path) -> str:
    try:
        raw = read_regular(path, FILE_LIMIT)
    except NotRegularError:
        raise ClaimError("is no regular file") from None
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
        return plain_yaml.parse(text, EVENT_LIMIT)
    except plain_yaml.PlainYamlError as error:
        raise ClaimError(str(error)) from None

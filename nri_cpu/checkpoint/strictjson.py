"""JSON read without its leniencies: UTF-8 only, no duplicate keys, only finite numbers, one error class for any bytes.

What `loads` accepts `dumps` can write again with the same meaning.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise

from nri_cpu.checkpoint.errors import CheckpointUnwritable, Corrupt
from nri_cpu.cpuset import quote


def loads(raw: bytes | str) -> object:
    """The value that `raw` stands for; raises Corrupt for everything that is not exactly one JSON value.

    Nesting is limited by the interpreter's own recursion limit, the digits of an integer by its conversion limit.
    """
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
        # Without the name "utf-8", json guesses UTF-16 and UTF-32 from zero bytes.
        value: object = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    # `from None`: the errors below carry the whole text, preparations included, to whoever prints the chain.
    except Corrupt:
        raise
    except json.JSONDecodeError as error:
        raise Corrupt(f"is not JSON: {error.msg} at character {error.pos} of {len(text)}") from None
    except UnicodeDecodeError as error:
        raise Corrupt(f"is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise Corrupt("is nested too deep") from None
    except ValueError:
        raise Corrupt("has a number of too many digits") from None
    return value


def dumps(value: object) -> str:
    """Compact ASCII JSON; raises CheckpointUnwritable for what JSON has no form for."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointUnwritable(f"has no form in JSON: {type(error).__name__}") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        keys = sorted(key for key, _ in pairs)
        twice = next(key for key, following in pairwise(keys) if key == following)
        raise Corrupt(f"has the key {quote(twice)} twice in one object")
    return fields


def _no_constant(name: str) -> object:
    raise Corrupt(f"has the number {name}, which JSON does not know")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Corrupt(f"has the number {quote(text)}, which is too large")
    return value

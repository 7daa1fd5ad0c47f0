"""Values of unknown origin in messages."""

from __future__ import annotations

from nri_cpu.cpuset import quote

_LARGE = 10**18


def shown(value: object) -> str:
    """A plain value (of JSON or YAML) for a message, on one line and short."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < _LARGE else "a number of very many digits"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return "missing or null" if value is None else repr(value)

"""What a slice says: one text for specs that mean the same to the API, whatever they look like. Pure.

Quantities count by their value; null, false, empty and absent are one where the API has it so (as in the comparison of
Kubernetes' own resourceslice controller). Nothing is taken for granted: what is of no expected type counts as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from dra.claims import parse_quantity

_Reader = Callable[[object], object]

# Stands for what can't be read, since it is nested too deeply; no spec of ours is.
_UNREADABLE = ""


def content(spec: object) -> str:
    """Equal for specs that say the same, `pool` aside: its generation and count are no news by themselves.

    Order counts for devices, since the scheduler takes them in order, and for the values of lists.
    """
    try:
        return json.dumps(_fields(spec, {"pool": lambda _: None, "devices": _devices}), sort_keys=True)
    except RecursionError:
        return _UNREADABLE


def _devices(value: object) -> object:
    readers = {"attributes": _attributes, "capacity": _capacities, "nodeAllocatableResources": _node_resources}
    return [_fields(device, readers) for device in value] if isinstance(value, list) else value


def _attributes(value: object) -> object:
    # false is a value here
    return _each(value, lambda kinds: _fields(kinds, {}, empty=(None,)))


def _capacities(value: object) -> object:
    return _each(value, lambda capacity: _fields(capacity, {"value": _quantity}))


def _node_resources(value: object) -> object:
    factors: Mapping[str, _Reader] = {"capacityMultiplier": _quantity, "deviceMultiplier": _quantity}
    return _each(value, lambda entry: _fields(entry, {"mapping": lambda mapping: _fields(mapping, factors)}))


def _quantity(value: object) -> object:
    try:
        return str(parse_quantity(value))
    except ValueError:
        return value


def _each(value: object, read: _Reader) -> object:
    return {name: read(entry) for name, entry in value.items()} if isinstance(value, Mapping) else value


def _fields(value: object, readers: Mapping[str, _Reader], empty: tuple[object, ...] = (None, False, [], {})) -> object:
    """An object without the fields that hold what counts as absent; `readers`: of the fields that need one."""
    if not isinstance(value, Mapping):
        return value
    read = {name: readers[name](found) if name in readers else found for name, found in value.items()}
    return {name: found for name, found in read.items() if found or not _is_one_of(found, empty)}


def _is_one_of(value: object, values: tuple[object, ...]) -> bool:
    return any(type(value) is type(other) and value == other for other in values)  # 0 equals false in Python

"""What the API takes of ResourceSlices: the limits of Kubernetes' validation, held against manifests of one pool. Pure.

Source: k8s.io/api/resource/v1 and its validation, 1.34 to 1.37; where versions differ the narrower limit counts.
Looked at is what this driver writes; fields that it never writes are reported, not checked.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dra.devices import LABEL, MAX_STRING, MAX_VALUES, SUBDOMAIN

MAX_DEVICES = 128
MAX_DEVICES_WITH_LISTS = 64
_MAX_ATTRIBUTES = 32  # and capacities, together
_MAX_DOMAIN = 63
_MAX_IDENTIFIER = 32
_MAX_DRIVER = 63
_MAX_POOL = 253
# etcd takes no request of more than 1.5 MiB; the rest is for what the server adds (owner, managed fields).
_MAX_BYTES = 1 << 20

_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
_LISTS = {"ints": int, "bools": bool, "strings": str, "versions": str}
_SCALARS = {"int": int, "bool": bool, "string": str, "version": str}
_DEVICE_FIELDS = {"name", "attributes", "capacity", "allowMultipleAllocations", "nodeAllocatableResources"}


def check(slices: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the API server, or a consumer of the pool, would refuse; each with the object and the numbers."""
    problems = []
    for index, manifest in enumerate(slices):
        problems += [f"slice {index}: {problem}" for problem in _slice(manifest, len(slices))]
    for field in ("generation", "name"):
        if len(values := {manifest["spec"]["pool"][field] for manifest in slices}) > 1:
            problems.append(f"the slices of one pool differ in pool.{field}: {sorted(values)}")
    names = Counter(device["name"] for manifest in slices for device in manifest["spec"]["devices"])
    problems += [f"device {name} is there {number} times" for name, number in names.items() if number > 1]
    generated = Counter(manifest["metadata"]["generateName"].partition("-")[0] for manifest in slices)
    problems += [f"index {index} is that of {number} slices" for index, number in generated.items() if number > 1]
    return problems


def _slice(manifest: Mapping[str, Any], count: int) -> Iterator[str]:
    devices, pool = manifest["spec"]["devices"], manifest["spec"]["pool"]
    yield from _names(manifest)
    if pool["resourceSliceCount"] != count:
        yield f"resourceSliceCount is {pool['resourceSliceCount']}, the pool has {count}"
    if pool["generation"] < 0:
        yield f"generation {pool['generation']} is negative"
    lists = any(_LISTS.keys() & value.keys() for device in devices for value in device["attributes"].values())
    limit = MAX_DEVICES_WITH_LISTS if lists else MAX_DEVICES
    if len(devices) > limit:
        yield f"{len(devices)} devices, {limit} at most{' where there are list attributes' if lists else ''}"
    if (size := len(json.dumps(manifest))) > _MAX_BYTES:
        yield f"{size} bytes, {_MAX_BYTES} at most"
    for device in devices:
        yield from (f"device {device['name']}: {problem}" for problem in _device(device))


def _names(manifest: Mapping[str, Any]) -> Iterator[str]:
    spec, generated = manifest["spec"], manifest["metadata"]["generateName"]
    driver, pool, node = spec["driver"], spec["pool"]["name"], spec["nodeName"]
    if (kind := (manifest["apiVersion"], manifest["kind"])) != ("resource.k8s.io/v1", "ResourceSlice"):
        yield f"is a {kind[1]} of {kind[0]}"
    if not re.fullmatch(rf"[0-9a-f]{{5,}}-{SUBDOMAIN}", generated.rstrip("-")):
        yield f"generateName {generated!r} is no index and the beginning of a name"
    if len(driver) > _MAX_DRIVER or not re.fullmatch(SUBDOMAIN, driver):
        yield f"driver {driver!r} is no DNS subdomain of at most {_MAX_DRIVER} characters"
    if len(pool) > _MAX_POOL or not re.fullmatch(rf"{SUBDOMAIN}(?:/{SUBDOMAIN})*", pool):
        yield f"pool {pool!r} is no name of at most {_MAX_POOL} characters made of DNS subdomains"
    if len(node) > _MAX_POOL or not re.fullmatch(SUBDOMAIN, node):
        yield f"nodeName {node!r} is no DNS subdomain"


def _device(device: Mapping[str, Any]) -> Iterator[str]:
    attributes, capacity = device["attributes"], device.get("capacity", {})
    if not re.fullmatch(LABEL, device["name"]):
        yield "the name is no DNS label"
    if unknown := device.keys() - _DEVICE_FIELDS:
        yield f"has fields that are not checked here: {', '.join(sorted(unknown))}"
    if (number := len(attributes) + len(capacity)) > _MAX_ATTRIBUTES:
        yield f"{number} attributes and capacities, {_MAX_ATTRIBUTES} at most"
    if (number := sum(map(_size, attributes.values()))) > MAX_VALUES:
        yield f"{number} values of attributes, {MAX_VALUES} at most"
    for name in (*attributes, *capacity):
        if not _is_qualified(name):
            yield f"{name} is no qualified name (domain {_MAX_DOMAIN}, identifier {_MAX_IDENTIFIER} characters)"
    for name, value in attributes.items():
        yield from (f"{name}: {problem}" for problem in _attribute(value))
    yield from _capacities(capacity, device.get("nodeAllocatableResources", {}))


def _capacities(capacity: Mapping[str, Any], node_resources: Mapping[str, Any]) -> Iterator[str]:
    for name, value in capacity.items():
        if not isinstance(value["value"], str) or not re.fullmatch(r"[1-9][0-9]{0,17}", value["value"]):
            yield f"{name}: {value['value']!r} is no positive whole quantity"
    for resource, entry in node_resources.items():
        mapping = entry.get("mapping", {})
        if not ("deviceMultiplier" in mapping) ^ ({"capacityKey", "capacityMultiplier"} <= mapping.keys()):
            yield f"the mapping to {resource} is neither by device nor by capacity"
        elif (key := mapping.get("capacityKey")) is not None and key not in capacity:
            yield f"the mapping to {resource} names the capacity {key}, which it does not have"


def _is_qualified(name: str) -> bool:
    """C identifier, with a DNS subdomain and / before it or without."""
    domain, slash, identifier = name.rpartition("/")
    if len(identifier) > _MAX_IDENTIFIER or not re.fullmatch(_IDENTIFIER, identifier):
        return False
    return not slash or (len(domain) <= _MAX_DOMAIN and re.fullmatch(SUBDOMAIN, domain) is not None)


def _size(value: Mapping[str, Any]) -> int:
    """Values that an attribute counts as."""
    return sum(len(items) if kind in _LISTS else 1 for kind, items in value.items())


def _attribute(value: Mapping[str, Any]) -> Iterator[str]:
    if len(value) != 1 or not value.keys() <= _LISTS.keys() | _SCALARS.keys():
        yield f"has the values {', '.join(value) or 'none'}, not exactly one of a known type"
        return
    ((kind, found),) = value.items()
    items = found if kind in _LISTS else [found]
    wanted = _LISTS.get(kind) or _SCALARS[kind]
    if not items:
        yield f"{kind} is empty"
    for item in items:
        if type(item) is not wanted:
            yield f"{item!r} is no value for {kind}"
        elif isinstance(item, str) and len(item.encode()) > MAX_STRING:
            yield f"{item[:MAX_STRING]!r}… has {len(item.encode())} bytes, {MAX_STRING} at most"
        elif isinstance(item, int) and not -(2**63) <= item < 2**63:
            yield f"{item} is no 64-bit number"

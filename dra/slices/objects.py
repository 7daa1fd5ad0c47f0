"""ResourceSlice objects (resource.k8s.io/v1): the devices of one pool, in as many slices as are needed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra.devices import CAPACITY, DRIVER, Device, attribute_to_json
from dra.slices.limits import MAX_DEVICES, MAX_DEVICES_WITH_LISTS

# An object as JSON and YAML have it.
Manifest = dict[str, Any]

# The API server adds five characters to a generateName and cuts what would be longer than a label (apiserver, names).
_GENERATE_NAME_LIMIT = 58
# Digits of the index in a name, at least (dynamic-resource-allocation, resourceslice controller).
_INDEX_WIDTH = 5


def slices_of(
    devices: Sequence[Device], pool: str, node_allocatable_mapping: bool = False, generation: int = 1
) -> tuple[Manifest, ...]:
    """The slices of a node's one pool, which has the node's name; of no devices none (fault R9).

    No more than 128 devices in each, 64 where devices have list attributes (fault A28). The index that begins a name is
    their order, in which the scheduler takes them. `node_allocatable_mapping`: with the field of KEP-5517 (1.37), by
    which the scheduler takes claims off the node's allocatable CPUs. A publisher adds the owner, the Node object.
    """
    lists = any(isinstance(value, tuple) for device in devices for value in device.attributes.values())
    size = MAX_DEVICES_WITH_LISTS if lists else MAX_DEVICES
    chunks = [devices[start : start + size] for start in range(0, len(devices), size)]
    return tuple(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"generateName": generate_name(pool, index, len(chunks))},
            "spec": {
                "driver": DRIVER,
                "nodeName": pool,
                "pool": {"name": pool, "generation": generation, "resourceSliceCount": len(chunks)},
                "devices": [_device(device, node_allocatable_mapping) for device in chunk],
            },
        }
        for index, chunk in enumerate(chunks)
    )


def index_width(count: int) -> int:
    """Digits of the index that begins each name in a pool of `count` slices."""
    return max(_INDEX_WIDTH, len(f"{count - 1:x}"))


def generate_name(node: str, index: int, count: int) -> str:
    """The generateName of slice `index` of `count`: `<index in hexadecimal>-<driver>-<node>-`.

    Other controllers find the index by the width of the first part; a long node name is cut, as the API server would.
    """
    return f"{index:0{index_width(count)}x}-{DRIVER}-{node}"[: _GENERATE_NAME_LIMIT - 1].rstrip("-.") + "-"


def _device(device: Device, node_allocatable_mapping: bool) -> Manifest:
    found: Manifest = {
        "name": device.name,
        "attributes": {name: attribute_to_json(value) for name, value in device.attributes.items()},
    }
    if device.capacity:
        found["capacity"] = {name: {"value": str(number)} for name, number in device.capacity.items()}
    if device.allow_multiple_allocations:
        found["allowMultipleAllocations"] = True
    if node_allocatable_mapping:
        # A grouped device is so many CPUs as are consumed of it, an individual one is one.
        by_capacity = {"capacityKey": CAPACITY, "capacityMultiplier": "1"}
        mapping = by_capacity if CAPACITY in device.capacity else {"deviceMultiplier": "1"}
        found["nodeAllocatableResources"] = {"cpu": {"mapping": mapping}}
    return found

"""Fields that the API server dropped: it does so in silence with those of features that are switched off. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from dra.slices.objects import Manifest

# Fields of devices that this driver writes, and the feature gates that they take (dra-protocol.md §8).
_GATES = {
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "nodeAllocatableResources": "DRANodeAllocatableResources",
}
_LIST_GATE = "DRAListTypeAttributes"


def dropped(asked: Manifest, answered: Manifest) -> list[str]:
    """What `answered`, the server's form of the slice `asked`, lacks: field, on how many devices, and the feature gate
    that is likely off. Empty when the server took it all; what it added or wrote in another way is no loss."""
    answers = {str(device.get("name")): device for device in _objects(answered["spec"].get("devices"))}
    lost = Counter(field for device in asked["spec"]["devices"] for field in _lost(device, answers.get(device["name"])))
    return [_told(field, number) for field, number in lost.items()]


def _lost(asked: Manifest, answered: Mapping[str, object] | None) -> Iterator[tuple[str, str | None]]:
    """Field and gate, each once."""
    if answered is None:
        yield "the device itself", None
        return
    for field, value in asked.items():
        if value and not answered.get(field):
            yield field, _GATES.get(field)
    for part in ("attributes", "capacity"):
        found = answered.get(part)
        if isinstance(found, Mapping) and found:  # else it is told above
            for name, value in asked.get(part, {}).items():
                if not _has(found.get(name), value):
                    yield f"{part} {name}", _LIST_GATE if _is_list(value) else None


def _has(found: object, asked: Mapping[str, object]) -> bool:
    return isinstance(found, Mapping) and all(found.get(kind) not in (None, []) for kind in asked)


def _is_list(value: Mapping[str, object]) -> bool:
    return any(isinstance(found, list) for found in value.values())


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    if isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, Mapping))


def _told(lost: tuple[str, str | None], number: int) -> str:
    field, gate = lost
    hint = f": the feature gate {gate} is likely off" if gate else ""
    return f"{field} of {number} devices{hint}"

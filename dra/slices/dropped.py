"""What the API server does not take of slices, since a feature is switched off: fields that it drops in silence, and
list attributes, which it refuses. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dra.devices import Device
from dra.slices.objects import Manifest

# Fields of devices that this driver writes, and the feature gates that they take (dra-protocol.md §8).
_GATES = {
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "nodeAllocatableResources": "DRANodeAllocatableResources",
}
LIST_GATE = "DRAListTypeAttributes"


def dropped(pairs: Iterable[tuple[Manifest, Manifest]]) -> list[str]:
    """What the server's forms of slices lack: each field, on how many devices, and the feature gate that is likely off.

    `pairs`: slices as they were asked for and as the server answered, which may be anything that has a spec. Empty when
    the server took it all; what it added or wrote in another way is no loss.
    """
    lost = Counter(loss for asked, answered in pairs for loss in _losses(asked, answered))
    return [_told(field, gate, number) for (field, gate), number in lost.items()]


def without_lists(devices: Sequence[Device]) -> tuple[tuple[Device, ...], list[str]]:
    """The devices without list attributes (KEP-5491), and what they lose."""
    lost: Counter[str] = Counter()
    left = []
    for device in devices:
        lists = {name for name, value in device.attributes.items() if isinstance(value, tuple)}
        lost.update(lists)
        kept = {name: value for name, value in device.attributes.items() if name not in lists}
        left.append(replace(device, attributes=kept) if lists else device)
    return tuple(left), [_told(f"list attribute {name}", LIST_GATE, number) for name, number in sorted(lost.items())]


def _losses(asked: Manifest, answered: Manifest) -> Iterator[tuple[str, str | None]]:
    answers = {str(device.get("name")): device for device in _objects(answered["spec"].get("devices"))}
    for device in asked["spec"]["devices"]:
        yield from _lost(device, answers.get(device["name"]))


def _lost(asked: Manifest, answered: Mapping[str, object] | None) -> Iterator[tuple[str, str | None]]:
    """Field and gate, each once for a device."""
    if answered is None:
        yield "all", None
        return
    for field, value in asked.items():
        if value and not answered.get(field):
            yield field, _GATES.get(field)
    for part in ("attributes", "capacity"):
        found = answered.get(part)
        if isinstance(found, Mapping) and found:  # else it is told above
            for name, value in asked.get(part, {}).items():
                if not _has(found.get(name), value):
                    yield f"{part} {name}", LIST_GATE if has_list(value) else None


def _has(found: object, asked: Mapping[str, object]) -> bool:
    return isinstance(found, Mapping) and all(found.get(kind) not in (None, []) for kind in asked)


def has_list(value: Mapping[str, object]) -> bool:
    """Whether an attribute, in the form of the API, is a list attribute (KEP-5491)."""
    return any(isinstance(found, list) for found in value.values())


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    if isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, Mapping))


def _told(field: str, gate: str | None, number: int) -> str:
    hint = f": the feature gate {gate} is likely off" if gate else ""
    return f"{field} of {number} device{'' if number == 1 else 's'}{hint}"

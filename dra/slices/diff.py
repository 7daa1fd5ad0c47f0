"""The writes that make the slices on the server those of the desired pool, by the rules of dra-protocol.md §4.5. Pure.

Consumers take the slices with the highest generation for the pool, and the pool for complete when they are as many as
each of them says. So a change of one slice is one write and keeps the generation; of more, all are written with the
next one. What must go goes first: a pool that lacks slices is waited for, one with too many is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dra.devices import DRIVER
from dra.slices.content import content
from dra.slices.objects import Manifest, index_width

_MAX_GENERATION = 2**63 - 1  # an int64


@dataclass(frozen=True, slots=True)
class Owner:
    """The Node object: slices go when it goes, so that one with another UID is another owner."""

    name: str
    uid: str

    @property
    def reference(self) -> Manifest:
        return {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid, "controller": True}


@dataclass(frozen=True, slots=True)
class Deletion:
    """A slice to delete as it was seen: neither its successor of the same name nor what became of it since."""

    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes in their order: `delete`, then `update` (whole objects with their resourceVersion), then `create`."""

    delete: tuple[Deletion, ...] = ()
    update: tuple[Manifest, ...] = ()
    create: tuple[Manifest, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def is_own(manifest: Manifest, node: str) -> bool:
    """Whether a slice is this driver's on `node`: it does not say another driver or node, however mangled it is."""
    spec = manifest.get("spec")
    if not isinstance(spec, Mapping):
        return True
    return all(
        spec.get(field) == ours or not isinstance(spec.get(field), str)
        for field, ours in (("driver", DRIVER), ("nodeName", node))
    )


def removal(existing: Sequence[Manifest]) -> Plan:
    """Leaves no slice: a pool with nothing to offer has none (fault R9)."""
    return Plan(delete=tuple(map(_deletion, existing)))


def plan(existing: Sequence[Manifest], desired: Sequence[Manifest], owner: Owner) -> Plan:
    """What makes `existing` say what `desired`, slices of one pool as `slices_of` gives them, says.

    `existing`: this driver's slices on the node, each with metadata.name, uid and resourceVersion; all else in them
    may be anything. Those that are of another pool, generation or naming, or unreadable, are replaced. The generation
    of `desired` does not count. Done wholly, a second plan of the same is empty.
    """
    if not desired:
        return removal(existing)
    highest, matches = _matches(existing, desired[0]["spec"], len(desired))
    changed = {at for at, match in matches.items() if not _is_done(match, _aim(desired, at, highest), owner)}
    missing = [at for at in range(len(desired)) if at not in matches]
    generation = highest
    if missing or len(changed) > 1:
        if highest == _MAX_GENERATION:  # where somebody set it: the pool starts anew
            return replace(plan((), desired, owner), delete=removal(existing).delete)
        generation, changed = highest + 1, set(matches)
    kept = {_name(match) for match in matches.values()}
    return Plan(
        delete=tuple(_deletion(manifest) for manifest in existing if _name(manifest) not in kept),
        update=tuple(_updated(matches[at], _aim(desired, at, generation), owner) for at in sorted(changed)),
        create=tuple(_created(_aim(desired, at, generation), owner) for at in missing),
    )


def _matches(existing: Sequence[Manifest], aim: Manifest, count: int) -> tuple[int, dict[int, Manifest]]:
    """The pool's highest generation, 0 without slices; its slices that can stay, by their index."""
    generations = {_name(manifest): _generation(manifest, aim) for manifest in existing}
    highest = max((generation for generation in generations.values() if generation is not None), default=0)
    matches: dict[int, Manifest] = {}
    for manifest in sorted(existing, key=_name):
        index = _index(_name(manifest), count)
        if index is not None and generations[_name(manifest)] == highest:
            matches.setdefault(index, manifest)
    return highest, matches


def _generation(manifest: Manifest, aim: Manifest) -> int | None:
    """None where it is none of this pool, or none that can be counted on from; `aim`: any spec of the desired pool."""
    spec = manifest.get("spec")
    pool = spec.get("pool") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(pool, Mapping):
        return None
    # What can't be updated (the API's validation) is no part of this pool where it differs.
    if (
        any(spec.get(field) != aim[field] for field in ("driver", "nodeName"))
        or pool.get("name") != aim["pool"]["name"]
    ):
        return None
    generation = pool.get("generation")
    if type(generation) is not int or not 0 <= generation <= _MAX_GENERATION:
        return None
    return generation


def _index(name: str, count: int) -> int | None:
    """None for a name of another width or naming, and for an index that a pool of `count` slices does not have."""
    first = name.partition("-")[0]
    if not re.fullmatch(rf"[0-9a-f]{{{index_width(count)}}}", first) or int(first, 16) >= count:
        return None
    return int(first, 16)


def _aim(desired: Sequence[Manifest], at: int, generation: int) -> Manifest:
    manifest = desired[at]
    spec = manifest["spec"]
    pool = {**spec["pool"], "generation": generation, "resourceSliceCount": len(desired)}
    return {**manifest, "spec": {**spec, "pool": pool}}


def _is_done(found: Manifest, aim: Manifest, owner: Owner) -> bool:
    spec = found["spec"]
    return (
        _is_same_pool(spec["pool"], aim["spec"]["pool"])
        and found["metadata"].get("ownerReferences") == [owner.reference]
        and content(spec) == content(aim["spec"])
    )


def _is_same_pool(found: Mapping[str, object], aim: Mapping[str, object]) -> bool:
    return found == aim and all(type(found[field]) is type(aim[field]) for field in aim)  # 1 is neither 1.0 nor true


def _updated(found: Manifest, aim: Manifest, owner: Owner) -> Manifest:
    metadata = {**found["metadata"], "ownerReferences": [owner.reference]}
    return {"apiVersion": aim["apiVersion"], "kind": aim["kind"], "metadata": metadata, "spec": aim["spec"]}


def _created(aim: Manifest, owner: Owner) -> Manifest:
    return {**aim, "metadata": {**aim["metadata"], "ownerReferences": [owner.reference]}}


def _deletion(manifest: Manifest) -> Deletion:
    metadata = manifest["metadata"]
    return Deletion(metadata["name"], metadata["uid"], metadata["resourceVersion"])


def _name(manifest: Manifest) -> str:
    name: str = manifest["metadata"]["name"]
    return name

"""Objects as an API server keeps them, for the fake one: names, versions, conflicts, preconditions, watch events.

What is refused, and by which status, is what kube-apiserver 1.37 does; tests/cluster/test_api.py holds them together.
"""

from __future__ import annotations

import copy
import json
import random
import re
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_REASONS = {400: "BadRequest", 404: "NotFound", 409: "Conflict", 410: "Expired", 422: "Invalid"}


class StatusError(Exception):
    """An answer that is no object: a Status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def body(self) -> Object:
        return status_of(self.code, str(self))


def status_of(code: int, message: str) -> Object:
    found = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}
    return found | {"reason": _REASONS.get(code, "InternalError"), "code": code}


@dataclass
class Objects:
    """`items`: (collection, name) -> object; a collection is the path of its list. `dropped`: fields of devices that
    are not kept, as of features that are off."""

    items: dict[tuple[str, str], Object] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    version: int = 100
    oldest: int = 50  # a watch can't start before this version
    events: list[tuple[int, str, str, Object]] = field(default_factory=list)  # version, collection, kind, object
    changed: threading.Condition = field(default_factory=threading.Condition)

    def listing(self, collection: str, selector: dict[str, str]) -> Object:
        with self.changed:
            found = [each for (of, _), each in sorted(self.items.items()) if of == collection and _fits(each, selector)]
            metadata = {"resourceVersion": str(self.version)}
            return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": copy.deepcopy(found)}

    def get(self, collection: str, name: str) -> Object:
        with self.changed:
            return copy.deepcopy(self._found(collection, name))

    def create(self, collection: str, manifest: Object) -> Object:
        with self.changed:
            made = copy.deepcopy(manifest)
            self._check(collection, made)
            metadata = made.setdefault("metadata", {})
            if not metadata.get("name"):
                letters = "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
                metadata["name"] = metadata.get("generateName", "")[:58] + letters
            if (collection, metadata["name"]) in self.items:
                raise StatusError(409, f'"{metadata["name"]}" already exists')
            metadata["uid"] = str(uuid.uuid4())
            self._store(collection, made, "ADDED")
            return copy.deepcopy(made)

    def update(self, collection: str, name: str, manifest: Object) -> Object:
        with self.changed:
            old = self._found(collection, name)
            new = copy.deepcopy(manifest)
            metadata = new.setdefault("metadata", {})
            for key in ("uid", "resourceVersion"):
                if metadata.get(key, old["metadata"][key]) != old["metadata"][key]:
                    raise StatusError(409, f'"{name}": the object has been modified; please apply your changes again')
                metadata[key] = old["metadata"][key]
            self._check(collection, new)
            if new.get("spec", {}).get("nodeName") != old.get("spec", {}).get("nodeName"):
                raise StatusError(422, f'"{name}" is invalid: spec.nodeName: field is immutable')
            if new != old:
                self._store(collection, new, "MODIFIED")
            return copy.deepcopy(new)

    def delete(self, collection: str, name: str, options: Object) -> Object:
        with self.changed:
            old = self._found(collection, name)
            for key, value in (options.get("preconditions") or {}).items():
                if old["metadata"][key] != value:
                    raise StatusError(409, f"the {key} in the precondition ({value}) does not match")
            del self.items[collection, name]
            self._tell(collection, "DELETED", old)
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def bookmark(self, collection: str) -> None:
        """Tell those who watch how far they are."""
        with self.changed:
            self.version += 1
            pool = {"name": "", "generation": 0, "resourceSliceCount": 0}
            told = {"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "spec": {"driver": "", "pool": pool}}
            metadata = {"resourceVersion": str(self.version)}
            self.events.append((self.version, collection, "BOOKMARK", told | {"metadata": metadata}))
            self.changed.notify_all()

    def forget(self) -> None:
        """A watch must start from now: what was before is compacted."""
        with self.changed:
            self.version += 1
            self.oldest = self.version

    def after(self, version: int, collection: str, selector: dict[str, str]) -> tuple[int, list[Object]]:
        """Watch events after `version`, and the version reached. Call with `changed` held."""
        return self.version, [
            {"type": kind, "object": found}
            for at, of, kind, found in self.events
            if at > version and of == collection and (kind == "BOOKMARK" or _fits(found, selector))
        ]

    def _found(self, collection: str, name: str) -> Object:
        if (collection, name) not in self.items:
            raise StatusError(404, f'{collection.rpartition("/")[2]} "{name}" not found')
        return self.items[collection, name]

    def _check(self, collection: str, made: Object) -> None:
        if not collection.endswith("/resourceslices"):
            return
        devices = (made.get("spec") or {}).get("devices") or ()
        for at, device in enumerate(devices):
            if not _LABEL.fullmatch(device.get("name", "")):
                raise StatusError(422, f"spec.devices[{at}].name: Invalid value: {device.get('name')!r}")
            for dropped in self.dropped & set(device):
                del device[dropped]

    def _store(self, collection: str, made: Object, kind: str) -> None:
        made["metadata"]["resourceVersion"] = str(self.version + 1)
        self.items[collection, made["metadata"]["name"]] = made
        self._tell(collection, kind, made)

    def _tell(self, collection: str, kind: str, about: Object) -> None:
        self.version += 1
        told = copy.deepcopy(about)
        told["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, collection, kind, json.loads(json.dumps(told))))
        self.changed.notify_all()


def _fits(found: Object, selector: dict[str, str]) -> bool:
    for path, wanted in selector.items():
        value: Any = found
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value != wanted:
            return False
    return True

"""The claims that dra-cpu prepares in the bench: 256 of two CPUs, which fill the node, in files or on an API server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from dra.devices import CAPACITY, DRIVER
from dra.kubelet.dra_pb2 import Claim

NODE = "bench"
NAMESPACE = "default"
COUNT = 256
_CPUS = 2
_DEVICES = 8  # NUMA nodes of the machine, each with 64 CPUs


class Source(Protocol):
    """Where dra-cpu reads claims. `claims`: as the kubelet names them; `arguments`: what dra-cpu is told."""

    @property
    def claims(self) -> Sequence[Claim]: ...

    @property
    def arguments(self) -> Sequence[str]: ...

    def hold(self, claims: Sequence[Claim]) -> None:
        """Make these of the claims readable; others may be."""


class Files:
    """Claims from one file, which has no more than it must: dra-cpu reads all of it for each call."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "claims.json"
        directory.mkdir()
        self._objects = [allocated(number) for number in range(COUNT)]
        for each in self._objects:
            each["metadata"]["uid"] = str(uuid.uuid4())
        self._by_uid = {each["metadata"]["uid"]: each for each in self._objects}
        self.claims = [named(each) for each in self._objects]
        self.arguments = (f"--claims-dir={directory}",)

    def hold(self, claims: Sequence[Claim]) -> None:
        items = [self._by_uid[claim.uid] for claim in claims]
        self._file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def named(manifest: dict[str, Any]) -> Claim:
    """A claim as the kubelet names it."""
    metadata = manifest["metadata"]
    return Claim(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


def allocated(number: int) -> dict[str, Any]:
    """A ResourceClaim of the node's, as the scheduler leaves it, without UID."""
    asked = {"deviceClassName": DRIVER, "capacity": {"requests": {CAPACITY: str(_CPUS)}}}
    result = {
        "request": "cpus",
        "driver": DRIVER,
        "pool": NODE,
        "device": f"cpudevnuma{number % _DEVICES:03}",
        "consumedCapacity": {CAPACITY: str(_CPUS)},
        "shareID": str(uuid.uuid4()),
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"claim-{number}", "namespace": NAMESPACE},
        "spec": {"devices": {"requests": [{"name": "cpus", "exactly": asked}]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": f"pod-{number}", "uid": str(uuid.uuid4())}],
        },
    }

"""Claims from files: ResourceClaim manifests with their status.allocation, for a machine without a cluster.

Every *.yaml, *.yml and *.json file directly in the directory counts, read anew for each call. A file may hold several
documents, and lists as kubectl prints them. What is no claim is told when a claim is looked for in vain, and does not
stand in the way of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dra.claims import ClaimError, ClaimRef, printable
from dra.claims_dir.documents import documents

_SUFFIXES = {".yaml", ".yml", ".json"}
_PROBLEMS_SHOWN = 5

_Manifest = dict[str, dict[str, object]]
_Claims = dict[tuple[str, str], list[_Manifest]]  # by namespace and name


class ClaimsDir:
    """The claims of one directory. Raises ClaimError at once when there is no such directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        _files(directory)

    def reader(self, deadline: float) -> Callable[[ClaimRef], object]:  # files keep nobody waiting
        claims, problems = self.read()

        def find(ref: ClaimRef) -> object:
            found = claims.get((ref.namespace, ref.name), [])
            for claim in found:
                if claim["metadata"]["uid"] == ref.uid:
                    return claim
            if found:
                return found[0]  # its UID is another one, which is for the parser to say
            shown = problems[:_PROBLEMS_SHOWN]
            if len(problems) > _PROBLEMS_SHOWN:
                shown.append(f"and {len(problems) - _PROBLEMS_SHOWN} more files that are no claims")
            missing = f"{self._directory} has no ResourceClaim {ref.namespace}/{ref.name}"
            raise ClaimError("; ".join([missing, *shown]))

        return find

    def read(self) -> tuple[_Claims, list[str]]:
        """All claims by namespace and name, and what is wrong with the rest, each naming its file."""
        claims: _Claims = {}
        problems: list[str] = []
        try:
            paths = _files(self._directory)
        except ClaimError as error:
            return {}, [str(error)]
        for path in paths:
            try:
                for claim in map(_claim, _objects(path)):
                    key = str(claim["metadata"]["namespace"]), str(claim["metadata"]["name"])
                    claims.setdefault(key, []).append(claim)
            except ClaimError as error:
                problems.append(printable(f"{path.name}: {error}"))
            except Exception as error:  # whatever a parser raises: the file must not stand in the way of the others
                problems.append(printable(f"{path.name}: can't be used: {type(error).__name__}: {error}"))
        return claims, problems


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(
            path for path in directory.iterdir() if path.suffix in _SUFFIXES and not path.name.startswith(".")
        )
    except OSError as error:
        raise ClaimError(
            f"the claims directory {directory} can't be read: {error.strerror}; make it, or name another"
        ) from error


def _objects(path: Path) -> Iterator[object]:
    """The objects of one file; those of a list one by one."""
    for document in documents(path):
        kind = document.get("kind") if isinstance(document, dict) else None
        if isinstance(document, dict) and isinstance(kind, str) and kind.endswith("List"):
            items = document.get("items")
            if not isinstance(items, list):
                raise ClaimError("items of a List is no list")
            yield from items
        elif document is not None:  # nothing between two marks of YAML
            yield document


def _claim(document: object) -> _Manifest:
    """The document, if it is a ResourceClaim with the names that finding it takes."""
    kind, version = (document.get("kind"), document.get("apiVersion")) if isinstance(document, dict) else (None, None)
    if not isinstance(document, dict) or not isinstance(kind, str) or not isinstance(version, str):
        raise ClaimError("holds no Kubernetes object")
    if kind != "ResourceClaim" or not version.startswith("resource.k8s.io/"):
        raise ClaimError(f"holds a {kind[:60]} of {version[:60]}, not a ResourceClaim of resource.k8s.io")
    metadata = document.get("metadata")
    for name in ("namespace", "name", "uid"):
        if not isinstance(metadata, dict) or not isinstance(metadata.get(name), str):
            raise ClaimError(f"metadata.{name} is missing or no string")
    return document

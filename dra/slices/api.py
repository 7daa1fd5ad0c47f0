"""What publishing needs of an API server: calls, values and errors. Pure; dra.kube implements it.

ApiError                the call did not succeed; the message says what to do
├── NotFoundError       404: the object, or the node, is not there
├── ConflictError       409: it was changed meanwhile, it has another UID, or the name is taken
├── ExpiredError        410: the resourceVersion is too old to watch from; list again
├── InvalidError        422: the server's validation refuses the object
└── ForbiddenError      403: permissions, or an admission rule
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dra.slices.objects import Manifest


class ApiError(Exception):
    """A call that did not succeed. The message names method, URL, status, the server's words, and what to do.

    The message is the same for the same trouble, since it is logged when it changes. `retry_after`: seconds that the
    server asks to wait, None where it does not.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotFoundError(ApiError):
    """404: no such object."""


class ConflictError(ApiError):
    """409: resourceVersion or UID are not those of the object, or the name is taken."""


class ExpiredError(ApiError):
    """410: a watch can't start or go on from this resourceVersion."""


class InvalidError(ApiError):
    """422: the server's validation refuses the object."""


class ForbiddenError(ApiError):
    """403: no permission, or an admission rule refuses the object."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The Node object. `declared_features`: names in status.declaredFeatures (Kubernetes 1.35 and later)."""

    uid: str
    declared_features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SliceList:
    """The slices of this driver on this node, as of `resource_version`, from which a watch goes on.

    Each item has metadata.name, .uid and .resourceVersion, strings that are not empty. All else is as it came:
    apiVersion and kind are missing in the items of lists, and a spec may be anything.
    """

    items: tuple[Manifest, ...]
    resource_version: str


class EventKind(StrEnum):
    """The `type` of a watch event; ERROR comes as an exception."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event. `manifest` has name, uid and resourceVersion as items of a list do; a bookmark the last one only."""

    kind: EventKind
    manifest: Manifest


class Watch(Iterator[WatchEvent], Protocol):
    """Events as they come; used by one thread.

    Ends (StopIteration) when the server ends it, as it does by itself after `timeoutSeconds`, and after `close`; not
    much later than `timeoutSeconds` also on a connection that died without a word.
    `next` raises ExpiredError on 410, as status or as ERROR event, and another ApiError where no connection can be
    made, the server refuses, or what came is no event. A connection that breaks after the first byte of the answer is
    an end, no error.
    """

    def close(self) -> None:
        """Ends it at once, also from another thread and while `next` waits or connects; never blocks or raises."""


class SliceApi(Protocol):
    """ResourceSlices (resource.k8s.io/v1) of one driver and one node. Each call has a time limit; none is repeated.

    All raise ApiError, or the subclass that the status says. Used by one thread.
    """

    def node(self) -> NodeInfo:
        """The Node object; NotFoundError where there is none."""

    def list(self) -> SliceList:
        """Field selector spec.driver and spec.nodeName; the newest state (no resourceVersion in the request)."""

    def watch(self, resource_version: str) -> Watch:
        """Events after `resource_version`, same selector, with bookmarks and a random timeoutSeconds of 600 to 1200.

        Returns without asking the server: the first `next` does, so that there is something to close from the start.
        """

    def create(self, manifest: Manifest) -> Manifest:
        """POST; the object as the server has it now, with name, uid and resourceVersion as items of a list."""

    def update(self, manifest: Manifest) -> Manifest:
        """PUT to metadata.name, with the resourceVersion in it; answers as `create`."""

    def delete(self, name: str, uid: str, resource_version: str) -> None:
        """DELETE with both as preconditions; NotFoundError where it is gone already."""

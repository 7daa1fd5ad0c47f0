"""The node's pool on the API server: what is there, one reconciliation with what is wanted, and whether an event calls
for another one. Waits for nothing and repeats nothing: dra.slices.publisher says when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loguru import logger

from dra.devices import Device
from dra.slices.api import (
    ApiError,
    EventKind,
    ForbiddenError,
    InvalidError,
    NodeInfo,
    NotFoundError,
    SliceApi,
    WatchEvent,
)
from dra.slices.content import content
from dra.slices.diff import Owner, Plan, is_own, plan, removal
from dra.slices.dropped import dropped, without_lists
from dra.slices.limits import check
from dra.slices.objects import Manifest, slices_of

# What a node declares whose kubelet counts claims' CPUs as the node's own (KEP-5517, Kubernetes 1.37).
MAPPING_FEATURE = "DRANodeAllocatableResources"


class UnpublishableError(Exception):
    """The API server would refuse these slices; only other devices help."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be published. `node_allocatable_mapping`: with the field of KEP-5517, where the node supports it."""

    devices: tuple[Device, ...]
    node_allocatable_mapping: bool = False


class Pool:
    """Used by one thread. `is_complete` and `losses` may be read by others."""

    def __init__(self, api: SliceApi, node: str) -> None:
        self._api = api
        self._node = node
        self.is_complete = False  # as far as is known: the server has what the last reconciliation wanted
        self.losses: tuple[str, ...] = ()  # what the server did not take of it, for people
        self._checked: Wanted | None = None
        self._lacks_mapping = False
        self._mapping_refused = False
        self._lists_refused = False
        self._told: set[str] = set()
        self._owner = Owner(node, "")
        self._desired: tuple[Manifest, ...] = ()
        self._known: dict[str, Manifest] = {}
        # Content that was asked for -> the slice that said it, and what the server made of that.
        self._adopted: dict[str, tuple[Manifest, Manifest]] = {}
        # Own writes since the last list, to know their events by.
        self._written: set[str] = set()
        self._deleted: set[str] = set()

    @property
    def is_degraded(self) -> bool:
        """Whether the server or the node may take more when asked another time."""
        return self._lacks_mapping or bool(self.losses)

    def forget(self) -> None:
        """What the server and the node did not support is asked of them anew."""
        self._adopted.clear()
        self._mapping_refused = self._lists_refused = False

    def reconcile(self, wanted: Wanted) -> str:
        """Makes the server have what is wanted; the resourceVersion from which to watch.

        Raises ApiError, after any part of the writes, and UnpublishableError, before the first.
        """
        self._check(wanted)
        node = self._read_node() if wanted.devices else None
        if node:
            self._owner = Owner(self._node, node.uid)
        mapping = self._mapping(wanted, node)
        simpler, lists = without_lists(wanted.devices)
        self._desired = slices_of(simpler if self._lists_refused else wanted.devices, self._node, mapping)
        found = self._api.list()
        self._known = {item["metadata"]["name"]: item for item in found.items if is_own(item, self._node)}
        self._written.clear()
        self._deleted.clear()
        try:
            self._apply(self._plan())
        except ForbiddenError as error:
            if not mapping or MAPPING_FEATURE not in str(error):
                raise
            self._mapping_refused = True
            return self.reconcile(wanted)
        except InvalidError as error:
            if self._lists_refused or not lists:
                raise
            return self._reconcile_without_lists(wanted, error)
        self._take_stock(lists if self._lists_refused else [])
        if mapping:
            self._told.clear()
        self.is_complete = True
        return found.resource_version

    def is_disturbed(self, event: WatchEvent) -> bool:
        """Whether, with this event, there is something to write: somebody else changed or deleted a slice."""
        manifest = event.manifest
        if event.kind is EventKind.BOOKMARK or not is_own(manifest, self._node):
            return False
        metadata = manifest["metadata"]
        if event.kind is EventKind.DELETED:
            if metadata["uid"] in self._deleted:
                return False
            self._known.pop(metadata["name"], None)
        elif metadata["resourceVersion"] in self._written:
            return False
        else:
            self._known[metadata["name"]] = manifest
        if not self._plan():
            return False
        self.is_complete = False
        logger.warning(
            "ResourceSlice {} was {} by somebody else",
            *(metadata["name"], {EventKind.DELETED: "deleted", EventKind.ADDED: "made"}.get(event.kind, "changed")),
        )
        return True

    def _reconcile_without_lists(self, wanted: Wanted, refusal: InvalidError) -> str:
        """Where that helps: a server without them says of the attributes only that they have no value."""
        self._lists_refused = True
        try:
            version = self.reconcile(wanted)
        except InvalidError:
            self._lists_refused = False  # they are not what is wrong
            raise
        logger.debug("without list attributes it was taken: {}", refusal)
        return version

    def _check(self, wanted: Wanted) -> None:
        if wanted == self._checked:
            return
        if problems := check(slices_of(wanted.devices, self._node, wanted.node_allocatable_mapping)):
            self.is_complete = False
            raise UnpublishableError(f"the API server would refuse the slices: {'; '.join(problems)}")
        self._checked = wanted

    def _read_node(self) -> NodeInfo:
        try:
            return self._api.node()
        except NotFoundError:
            self.is_complete = False  # slices go with their node
            raise

    def _mapping(self, wanted: Wanted, node: NodeInfo | None) -> bool:
        """Whether slices are to have the mapping; why not is told once."""
        lacking = ""
        if wanted.node_allocatable_mapping and node:
            if MAPPING_FEATURE not in node.declared_features:
                lacking = f"node {self._node} does not declare {MAPPING_FEATURE}"
            elif self._mapping_refused:
                lacking = f"the API server says that node {self._node} does not support {MAPPING_FEATURE}"
        if lacking and lacking not in self._told:
            self._told.add(lacking)
            logger.warning(
                "publishNodeAllocatableResourceMapping has no effect: {}. It takes Kubernetes 1.37 or later with this "
                "feature gate on in the kubelet, the API server and the scheduler",
                lacking,
            )
        self._lacks_mapping = bool(lacking)
        return wanted.node_allocatable_mapping and not lacking

    def _plan(self) -> Plan:
        existing = tuple(self._known.values())
        if not self._desired:
            return removal(existing)
        return plan(existing, tuple(map(self._as_adopted, self._desired)), self._owner)

    def _as_adopted(self, desired: Manifest) -> Manifest:
        """As the server has it where it took less: to ask for the same again would change nothing, for ever."""
        spec = desired["spec"]
        adopted = self._adopted.get(content(spec)) if self._adopted else None
        return {**desired, "spec": {**adopted[1]["spec"], "pool": spec["pool"]}} if adopted else desired

    def _take_stock(self, refused: list[str]) -> None:
        """What the server dropped of the slices that are there now, or refused; of earlier ones it is forgotten."""
        if self._adopted:
            contents = {content(desired["spec"]) for desired in self._desired}
            self._adopted = {wanted: adopted for wanted, adopted in self._adopted.items() if wanted in contents}
        lost = [f"the API server dropped {loss}" for loss in dropped(self._adopted.values())]
        self.losses = (*lost, *(f"the API server refused {loss}" for loss in refused))

    def _apply(self, todo: Plan) -> None:
        if not todo:
            return
        self.is_complete = False
        for each in todo.delete:
            try:
                self._api.delete(each.name, each.uid, each.resource_version)
            except NotFoundError:
                logger.debug("ResourceSlice {} was gone already", each.name)
            self._deleted.add(each.uid)
            self._known.pop(each.name, None)
        for manifest in todo.update:
            self._write(self._api.update, manifest)
        for manifest in todo.create:
            self._write(self._api.create, manifest)
        devices = sum(len(manifest["spec"]["devices"]) for manifest in self._desired)
        logger.info(
            "pool {} has {} devices in {} ResourceSlices ({} deleted, {} updated, {} created)",
            *(self._node, devices, len(self._desired), len(todo.delete), len(todo.update), len(todo.create)),
        )

    def _write(self, write: Callable[[Manifest], Manifest], asked: Manifest) -> None:
        answered = write(asked)
        metadata, spec = answered["metadata"], answered.get("spec")
        if not isinstance(spec, Mapping):
            raise ApiError(f"the API server answered with ResourceSlice {metadata['name']} that has no spec")
        self._written.add(metadata["resourceVersion"])
        self._known[metadata["name"]] = answered
        if content(spec) != (wanted := content(asked["spec"])):
            self._adopted[wanted] = (asked, answered)

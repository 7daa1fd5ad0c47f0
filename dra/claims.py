"""Claims: what a ResourceClaim's allocation asks of this driver, out of the object as JSON or YAML gives it. Pure.

Only `status.allocation` counts, never the spec: classes and requests may have changed since (KEP-4381).
Nothing is taken for granted: whatever is missing or of the wrong type is a ClaimError that names its path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Protocol

from dra.devices import CAPACITY, DRIVER, LABEL, SUBDOMAIN
from nri_cpu.checkpoint.model import is_uid
from nri_cpu.cpuset import MAX_CPUS

_NAME = re.compile(SUBDOMAIN)
_REQUEST = re.compile(rf"{LABEL}(?:/{LABEL})?")

# Names of Kubernetes objects have no more characters (RFC 1123 subdomains).
NAME_LIMIT = 253


def printable(text: str, limit: int = 900) -> str:
    """`text` on one line, cut after `limit` characters: what others wrote forges no lines of the log, and neither log
    nor protobuf take every string that JSON and file names can be."""
    return "".join(char if char.isprintable() else "?" for char in text[:limit])


def base_request(request: str) -> str:
    """The name by which pods and the kubelet know a request: of `name/subrequest` that before the slash (KEP-4816)."""
    return request.partition("/")[0]


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet names it."""

    uid: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """For people. A request may hold anything; in the log it is part of one line."""
        namespace, name, uid = (printable(part, NAME_LIMIT) for part in (self.namespace, self.name, self.uid))
        return f"{namespace}/{name} ({uid})"


class ClaimSource(Protocol):
    """Where ResourceClaim objects are read, live at each Prepare."""

    def reader(self, deadline: float) -> Callable[[ClaimRef], object]:
        """A function for one call of the kubelet, which must be done at `deadline` (time.monotonic, seconds).

        It gives the object, to be taken apart by `parse_claim`, or raises ClaimError.
        """


class ClaimError(Exception):
    """A claim that can't be prepared as it is; the message names the path or device, and the numbers."""


@dataclass(frozen=True, slots=True)
class Result:
    """One allocated device of ours. `consumed_cpus`: the capacity taken of it, None where the result names none."""

    request: str
    pool: str
    device: str
    share_id: str | None = None
    consumed_cpus: int | None = None
    admin_access: bool = False


class ConfigSource(StrEnum):
    """Who wrote an entry of an allocation's config: an administrator, or the claim's user."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


@dataclass(frozen=True, slots=True)
class OpaqueConfig:
    """An entry of the allocation's config that is for this driver. `requests`: which it is for, none means all.

    `parameters` are as they were found, at `path`: only a claim that is yet to be prepared is held to them.
    """

    source: ConfigSource
    requests: tuple[str, ...]
    parameters: object
    path: str

    def is_for(self, request: str) -> bool:
        """Whether it counts for a result of `request`, which is `name` or `name/subrequest` (KEP-4816)."""
        return not self.requests or request in self.requests or base_request(request) in self.requests


@dataclass(frozen=True, slots=True)
class Claim:
    """An allocated claim. `results`: those of this driver, in order; `pod_uids`: the pods it is reserved for.

    `configs`: in their order, classes before the claim; later ones count more. `pod_claim_name`: what its pod calls a
    claim that was made from a template.
    """

    uid: str
    namespace: str
    name: str
    results: tuple[Result, ...]
    pod_uids: tuple[str, ...] = ()
    configs: tuple[OpaqueConfig, ...] = ()
    pod_claim_name: str | None = None


def parse_claim(manifest: object, uid: str) -> Claim:
    """The claim that `manifest`, a ResourceClaim of any API version, describes; it must be the one with this `uid`.

    Raises ClaimError: another UID (the claim was deleted and made anew, fault K3), no allocation, anything malformed.
    Results and configurations of other drivers are none of ours and not looked at (fault A5).
    """
    top = _object(manifest, "the claim")
    metadata = _object(top.get("metadata"), "metadata")
    found = _text(metadata.get("uid"), "metadata.uid")
    if found != uid:
        raise ClaimError(f"metadata.uid is {found}, not {uid}: the claim was replaced by another one of its name")
    if not is_uid(uid):
        raise ClaimError(f"metadata.uid {uid[:60]!r} is no UUID in lower case")
    name, namespace = _name(metadata, "name"), _name(metadata, "namespace")
    status = _object(_given(top.get("status")), "status")
    if status.get("allocation") is None:
        raise ClaimError("status.allocation is missing: the claim is not allocated")
    allocation = _object(status["allocation"], "status.allocation")
    devices = _object(_given(allocation.get("devices")), "status.allocation.devices")
    path = "status.allocation.devices.results"
    results = []
    for at, entry in enumerate(_list(devices.get("results"), path)):
        result = _object(entry, f"{path}[{at}]")
        if _text(result.get("driver"), f"{path}[{at}].driver") == DRIVER:
            results.append(_result(result, f"{path}[{at}]"))
    return Claim(
        uid=uid,
        namespace=namespace,
        name=name,
        results=tuple(results),
        pod_uids=_pod_uids(status),
        configs=_configs(devices),
        pod_claim_name=_pod_claim_name(metadata),
    )


def parse_quantity(value: object) -> Fraction:
    """The exact value of a Kubernetes quantity, a string or a number; raises ValueError for what is none.

    Forms: 2, 2.5, 2000m, 2k, 2Ki, 2e3 (apimachinery, resource.Quantity). Nothing is rounded (fault A8).
    """
    scalar = isinstance(value, int | float | str) and not isinstance(value, bool)
    text = str(value) if scalar else _kind(value)
    match = _QUANTITY.fullmatch(text) if scalar and len(text) <= _QUANTITY_LIMIT else None
    if not match:
        raise ValueError(f"{text[:_QUANTITY_LIMIT]!r} is no quantity")
    number, suffix, exponent = match.groups()
    return Fraction(number) * (Fraction(10) ** int(exponent) if exponent else _SUFFIXES[suffix or ""])


# Longer text names no number of CPUs; the limit keeps arithmetic on hostile text cheap.
_QUANTITY_LIMIT = 64
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?", re.ASCII
)
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}


def _result(result: Mapping[str, object], path: str) -> Result:
    request = _text(result.get("request"), f"{path}.request")
    if not _REQUEST.fullmatch(request):
        raise ClaimError(f"{path}.request {request[:60]!r} is no request name")
    share_id = result.get("shareID")
    if share_id is not None and not is_uid(_text(share_id, f"{path}.shareID")):
        raise ClaimError(f"{path}.shareID {str(share_id)[:60]!r} is no UUID in lower case")
    admin = result.get("adminAccess")
    if not isinstance(admin, bool | None):
        raise ClaimError(f"{path}.adminAccess is {_kind(admin)}, not true or false")
    pool, device = _text(result.get("pool"), f"{path}.pool"), _text(result.get("device"), f"{path}.device")
    try:
        consumed_cpus = _consumed_cpus(result, path)
    except ClaimError as error:
        raise ClaimError(f"device {printable(device, NAME_LIMIT)}: {error}") from None
    return Result(
        request=request,
        pool=pool,
        device=device,
        share_id=None if share_id is None else str(share_id),
        consumed_cpus=consumed_cpus,
        admin_access=bool(admin),
    )


def _consumed_cpus(result: Mapping[str, object], path: str) -> int | None:
    """The capacity that was taken of the device, None where the result names none."""
    path = f"{path}.consumedCapacity"
    consumed = _object(_given(result.get("consumedCapacity")), path)
    return _cpus(consumed[CAPACITY], f"{path}[{CAPACITY}]") if CAPACITY in consumed else None


def _configs(devices: Mapping[str, object]) -> tuple[OpaqueConfig, ...]:
    """Classes first, as the scheduler writes them; the order is the precedence, so it is not taken for granted."""
    base = "status.allocation.devices.config"
    found = []
    for at, item in enumerate(_list(devices.get("config"), base)):
        path = f"{base}[{at}]"
        entry = _object(item, path)
        if entry.get("opaque") is None:
            continue  # of a kind that is not known yet, and for no driver
        opaque = _object(entry["opaque"], f"{path}.opaque")
        if _text(opaque.get("driver"), f"{path}.opaque.driver") != DRIVER:
            continue
        source = _text(entry.get("source"), f"{path}.source")
        if source not in tuple(ConfigSource):
            raise ClaimError(f"{path}.source is {source[:60]!r}, not {' or '.join(ConfigSource)}")
        requests = tuple(
            _text(request, f"{path}.requests[{number}]")
            for number, request in enumerate(_list(entry.get("requests"), f"{path}.requests"))
        )
        parameters = f"{path}.opaque.parameters"
        found.append(OpaqueConfig(ConfigSource(source), requests, opaque.get("parameters"), parameters))
    return tuple(sorted(found, key=lambda config: config.source is ConfigSource.CLAIM))


def _cpus(value: object, path: str) -> int:
    """A positive whole number of CPUs (fault A8)."""
    try:
        number = parse_quantity(value)
    except ValueError as error:
        raise ClaimError(f"{path}: {error}") from None
    if number <= 0 or number.denominator != 1 or number > MAX_CPUS:
        raise ClaimError(f"{path} is {value}: it must be a whole number of CPUs from 1 to {MAX_CPUS}")
    return int(number)


def _pod_uids(status: Mapping[str, object]) -> tuple[str, ...]:
    path = "status.reservedFor"
    consumers = [_object(entry, f"{path}[{at}]") for at, entry in enumerate(_list(status.get("reservedFor"), path))]
    pods = [consumer.get("uid") for consumer in consumers if consumer.get("resource") == "pods"]
    return tuple(uid for uid in pods if isinstance(uid, str) and is_uid(uid))


def _pod_claim_name(metadata: Mapping[str, object]) -> str | None:
    """What the claim's pod calls it (KEP-5304). It becomes part of a path; what no pod can have says nothing: whoever
    may write annotations must not be able to stop a claim."""
    annotations = _object(_given(metadata.get("annotations")), "metadata.annotations")
    name = annotations.get("resource.kubernetes.io/pod-claim-name")
    return name if isinstance(name, str) and re.fullmatch(LABEL, name) else None


def _given(value: object) -> object:
    """An optional object: JSON null and absence are the empty one."""
    return {} if value is None else value


def _object(value: object, path: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ClaimError(f"{path} is {_kind(value)}, not an object")
    return value


def _list(value: object, path: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ClaimError(f"{path} is {_kind(value)}, not a list")
    return value


def _text(value: object, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise ClaimError(f"{path} is {_kind(value)}, not a non-empty string")
    return value


def _name(metadata: Mapping[str, object], field: str) -> str:
    """A name that can stand in the checkpoint, which refuses what can't be shown, and with it all other claims; it is
    part of a path as well."""
    name = _text(metadata.get(field), f"metadata.{field}")
    if len(name) > NAME_LIMIT or not _NAME.fullmatch(name):
        raise ClaimError(f"metadata.{field} {name[:60]!r} is no name of a Kubernetes object")
    return name


def _kind(value: object) -> str:
    if value is None:
        return "missing"
    if value == "":
        return "empty"
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")

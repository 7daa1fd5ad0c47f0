"""Device metadata: what a container is told about the devices of its claim (KEP-5304, DeviceMetadata). Pure.

One file for each request of a claim, mounted below /var/run/kubernetes.io/dra-device-attributes by a CDI device of its
own. It holds one line of JSON for each version of the API, the newest first; a reader takes the first it knows. A
device has the attributes of its ResourceSlice and two that come with the claim:

    dra.cpu/allocatedNumCPUs   how many of the device's CPUs the claim has (F-5)
    dra.cpu/cpuset             which ones, in the kernel's list format; where that is longer than a string may be, a
                               list (`strings`) of its pieces, to be joined with commas; absent where that is too long
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from dra.claims import base_request
from dra.devices import DRIVER, MAX_STRING, MAX_VALUES, AttributeValue, attribute_to_json
from nri_cpu.checkpoint.model import ClaimRecord, DeviceAllocation
from nri_cpu.cpuset import CPUSet

KIND = f"{DRIVER}/metadata"
SPEC_PREFIX = f"{DRIVER}_metadata_"
CONTAINER_DIRECTORY = "/var/run/kubernetes.io/dra-device-attributes"
ALLOCATED = f"{DRIVER}/allocatedNumCPUs"
CPUS = f"{DRIVER}/cpuset"

_VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
# An int64.
_LAST_GENERATION = 2**63 - 1
# The lowest with names of devices that begin with a digit (CDI's SPEC.md).
_CDI_VERSION = "0.5.0"

# The attributes of the device of that name in its ResourceSlice; none of one that is not known.
Attributes = Callable[[str], Mapping[str, AttributeValue]]


def requests_of(record: ClaimRecord) -> tuple[str, ...]:
    """The requests that have a file, in the order of the claim's devices; of one with alternatives the name before the
    slash, by which pods know it (KEP-4816)."""
    return tuple(dict.fromkeys(base_request(device.request) for device in record.devices))


def host_file(uid: str, request: str) -> str:
    """The name of the file on the host: of the UID, since a claim may come again under its old name (fault K3)."""
    return f"{uid}_{request}.json"


def spec_file(uid: str, request: str) -> str:
    """The name of the CDI spec that mounts it."""
    return f"{SPEC_PREFIX}{uid}_{request}.json"


def cdi_id(uid: str, request: str) -> str:
    """The CDI device that mounts it, as the kubelet and the runtime know it."""
    return f"{KIND}={uid}_{request}"


def updated(current: bytes, record: ClaimRecord, request: str, attributes: Attributes) -> bytes:
    """What the file of one of the claim's requests is to hold, which holds `current` now: its generation grows by one
    with each change (KEP-5304), and is the first again where there is no file or a damaged one."""
    generation = _generation(current)
    if generation and content(record, request, attributes, generation) == current:
        return current
    return content(record, request, attributes, generation + 1)


def _generation(raw: bytes) -> int:
    """That of a file, 0 of what is none of ours."""
    try:
        generation = json.loads(raw.partition(b"\n")[0])["metadata"]["generation"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return 0
    return generation if type(generation) is int and 0 < generation < _LAST_GENERATION else 0


def content(record: ClaimRecord, request: str, attributes: Attributes, generation: int = 1) -> bytes:
    """The file of one of the claim's requests.

    A request with alternatives is named in full, with the one that was allocated.
    """
    newest, *others = _VERSIONS
    devices: dict[str, list[object]] = {}
    for device in record.devices:
        if base_request(device.request) == request:
            devices.setdefault(device.request, []).append(_device(device, attributes(device.device)))
    told = {
        "kind": "DeviceMetadata",
        "apiVersion": newest,
        "metadata": {"name": record.name, "namespace": record.namespace, "uid": record.uid, "generation": generation},
        **({"podClaimName": record.pod_claim_name} if record.pod_claim_name else {}),
        "requests": [{"name": name, "devices": found} for name, found in devices.items()],
    }
    line = json.dumps(told) + "\n"
    # All versions have the same form. The first thing to have such a name is apiVersion.
    return "".join([line, *(line.replace(newest, version, 1) for version in others)]).encode()


def spec(record: ClaimRecord, request: str, host_path: str) -> bytes:
    """The CDI spec that mounts the file at `host_path`, read-only, where programs of the container look for it."""
    if record.pod_claim_name:
        place = f"resourceclaimtemplates/{record.pod_claim_name}"
    else:
        place = f"resourceclaims/{record.name}"
    mount = {
        "hostPath": host_path,
        "containerPath": f"{CONTAINER_DIRECTORY}/{place}/{request}/{DRIVER}-metadata.json",
        "options": ["ro", "bind"],
    }
    name = cdi_id(record.uid, request).partition("=")[2]
    devices = [{"name": name, "containerEdits": {"mounts": [mount]}}]
    return json.dumps({"cdiVersion": _CDI_VERSION, "kind": KIND, "devices": devices}).encode()


def _device(device: DeviceAllocation, attributes: Mapping[str, AttributeValue]) -> dict[str, object]:
    found: dict[str, AttributeValue] = {**attributes, ALLOCATED: len(device.cpus)}
    cpus = _in_pieces(device.cpus)
    used = sum(len(value) if isinstance(value, tuple) else 1 for value in found.values())
    if used + len(cpus) <= MAX_VALUES:
        found[CPUS] = cpus[0] if len(cpus) == 1 else cpus
    return {
        "driver": DRIVER,
        "pool": device.pool,
        "name": device.device,
        "attributes": {name: attribute_to_json(value) for name, value in found.items()},
    }


def _in_pieces(cpus: CPUSet) -> tuple[str, ...]:
    """The list of CPUs in strings that an attribute has room for, cut at commas."""
    pieces: list[str] = []
    for part in str(cpus).split(","):
        if pieces and len(pieces[-1]) + 1 + len(part) <= MAX_STRING:
            pieces[-1] += f",{part}"
        else:
            pieces.append(part)
    return tuple(pieces)

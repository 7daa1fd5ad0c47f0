"""The data of the two files: model <-> JSON, with every rule that a file must keep checked in both directions.

    checkpoint   {"reservedCPUs", "claims": {uid: {"namespace", "name", "podUIDs": [], "cpus", "preparation",
                  "preparedAt", "devices": [{"request", "pool", "device", "cpus", "shareID"}], "options": {},
                  "podClaimName"}}}
    owners       {"owners": {uid: {"preparation", "podUID", "podNamespace", "podName", "container", "containerID",
                  "cgroup"}}}

CPUs are text in the kernel's list format. Reserved CPUs may overlap claims: the configuration can have changed since
they were prepared, and that must not make the file unreadable (fault S3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from nri_cpu.checkpoint import envelope, strictjson
from nri_cpu.checkpoint.errors import CheckpointUnwritable, Corrupt
from nri_cpu.checkpoint.fields import Fields, as_text
from nri_cpu.checkpoint.model import (
    Checkpoint,
    ClaimRecord,
    DeviceAllocation,
    Owner,
    Owners,
    is_preparation,
    is_uid,
)
from nri_cpu.cpuset import EMPTY, CPUSet, quote

_T = TypeVar("_T")
_NONE: Mapping[str, ClaimRecord] = {}
# RFC 3339, in UTC by either spelling.
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|\+00:00)")


def checkpoint_to_bytes(checkpoint: Checkpoint, boot_id: str, sound: Mapping[str, ClaimRecord] = _NONE) -> bytes:
    """The file's bytes; raises CheckpointUnwritable for what `checkpoint_from_bytes` would refuse or change.

    `sound`: records by UID that were read from a file or written to one. Where `checkpoint` has the same object it is
    not read back again, since that is what takes time with many claims.
    """
    new = replace(checkpoint, claims={uid: one for uid, one in checkpoint.claims.items() if sound.get(uid) is not one})

    def decode(raw: bytes) -> tuple[Checkpoint, str]:
        refuse_overlap(checkpoint.claims.values())
        return checkpoint_from_bytes(raw)

    verified(_encoded(new, boot_id), decode, (new, boot_id), "the new content")
    return _encoded(checkpoint, boot_id)


def _encoded(checkpoint: Checkpoint, boot_id: str) -> bytes:
    data = {
        **checkpoint.unknown,
        "reservedCPUs": str(checkpoint.reserved),
        "claims": {uid: record_to_data(record) for uid, record in checkpoint.claims.items()},
    }
    return envelope.encode(strictjson.dumps(data), boot_id, checkpoint.envelope)


def checkpoint_from_bytes(raw: bytes) -> tuple[Checkpoint, str]:
    """The checkpoint and the ID of the boot that wrote it; raises Corrupt or TooNew, naming the place."""
    opened = envelope.decode(raw)
    fields = Fields(opened.data, "")
    reserved = fields.cpus("reservedCPUs")
    claims = {uid: record_from_data(uid, value) for uid, value in fields.nested("claims").items()}
    refuse_overlap(claims.values())
    return Checkpoint(reserved, claims, fields.rest(), opened.unknown), opened.boot_id


def owners_to_bytes(owners: Owners, boot_id: str) -> bytes:
    """The file's bytes; raises CheckpointUnwritable for what `owners_from_bytes` would refuse or change."""
    data = {**owners.unknown, "owners": {uid: _owner_to_data(owner) for uid, owner in owners.owners.items()}}
    raw = envelope.encode(strictjson.dumps(data), boot_id, owners.envelope)
    return verified(raw, owners_from_bytes, (owners, boot_id), "the new content")


def owners_from_bytes(raw: bytes) -> tuple[Owners, str]:
    """The owners and the ID of the boot that wrote them; raises Corrupt or TooNew, naming the place."""
    opened = envelope.decode(raw)
    fields = Fields(opened.data, "")
    owners = {uid: _owner_from_data(uid, value) for uid, value in fields.nested("owners").items()}
    return Owners(owners, fields.rest(), opened.unknown), opened.boot_id


def verified(raw: bytes, decode: Callable[[bytes], _T], meant: _T, what: str) -> bytes:
    """`raw`, if `decode` gets `meant` out of it; else raises CheckpointUnwritable, which calls it `what`."""
    try:
        same = decode(raw) == meant
    except Corrupt as error:
        raise CheckpointUnwritable(f"{what} could not be read back: {error}") from None
    if not same:
        raise CheckpointUnwritable(f"{what} would be read back as something else: a key is no UID, or a value no JSON")
    return raw


def record_to_data(record: ClaimRecord) -> dict[str, object]:
    """The JSON object of one claim, without its UID."""
    return {
        **record.unknown,
        "namespace": record.namespace,
        "name": record.name,
        "podUIDs": list(record.pod_uids),
        "cpus": str(record.cpus),
        "preparation": record.preparation,
        "preparedAt": record.prepared_at,
        "devices": [_device_to_data(device) for device in record.devices],
        "options": record.options,
        **({"podClaimName": record.pod_claim_name} if record.pod_claim_name is not None else {}),
    }


def record_from_data(uid: str, value: object, within: str = "claims.") -> ClaimRecord:
    """The claim that the JSON object `value` holds, which is consumed; raises Corrupt."""
    if not is_uid(uid):
        raise Corrupt(f"{within}{quote(uid)} is no claim UID (8-4-4-4-12 lower-case hexadecimal digits)")
    fields = Fields(value, f"{within}{uid}")
    namespace, name = fields.text("namespace"), fields.text("name")
    pod_uids = tuple(as_text(pod, fields.place("podUIDs")) for pod in fields.items("podUIDs"))
    cpus = _some_cpus(fields)
    preparation = _preparation(fields)
    prepared_at = fields.text("preparedAt")
    if not _TIME.fullmatch(prepared_at):
        raise Corrupt(f"{fields.place('preparedAt')} is no time in UTC by RFC 3339: {quote(prepared_at)}")
    devices = tuple(
        _device_from_data(item, f"{fields.place('devices')}[{at}]") for at, item in enumerate(fields.items("devices"))
    )
    options = fields.nested("options")
    pod_claim_name = fields.optional_text("podClaimName")
    return ClaimRecord(
        uid=uid,
        namespace=namespace,
        name=name,
        pod_uids=pod_uids,
        cpus=cpus,
        preparation=preparation,
        prepared_at=prepared_at,
        devices=devices,
        options=options,
        unknown=fields.rest(),
        pod_claim_name=pod_claim_name,
    )


def refuse_overlap(records: Iterable[ClaimRecord]) -> None:
    """Raises Corrupt when two claims have a CPU in common: that may never be (fault A7)."""
    taken = EMPTY
    earlier: list[ClaimRecord] = []
    for record in records:
        if not taken.isdisjoint(record.cpus):
            other = next(one for one in earlier if not one.cpus.isdisjoint(record.cpus))
            raise Corrupt(f"gives CPUs {other.cpus & record.cpus} to two claims, {other.uid} and {record.uid}")
        taken |= record.cpus
        earlier.append(record)


def _device_to_data(device: DeviceAllocation) -> dict[str, object]:
    return {
        **device.unknown,
        "request": device.request,
        "pool": device.pool,
        "device": device.device,
        "cpus": str(device.cpus),
        "shareID": device.share_id,
    }


def _device_from_data(value: object, where: str) -> DeviceAllocation:
    fields = Fields(value, where)
    return DeviceAllocation(
        request=fields.text("request"),
        pool=fields.text("pool"),
        device=fields.text("device"),
        cpus=_some_cpus(fields),
        share_id=fields.optional_text("shareID"),
        unknown=fields.rest(),
    )


def _owner_to_data(owner: Owner) -> Mapping[str, object]:
    return {
        **owner.unknown,
        "preparation": owner.preparation,
        "podUID": owner.pod_uid,
        "podNamespace": owner.pod_namespace,
        "podName": owner.pod_name,
        "container": owner.container,
        "containerID": owner.container_id,
        "cgroup": owner.cgroup,
    }


def _owner_from_data(uid: str, value: object) -> Owner:
    if not is_uid(uid):
        raise Corrupt(f"owners.{quote(uid)} is no claim UID (8-4-4-4-12 lower-case hexadecimal digits)")
    fields = Fields(value, f"owners.{uid}")
    return Owner(
        preparation=_preparation(fields),
        pod_uid=fields.text("podUID"),
        pod_namespace=fields.text("podNamespace"),
        pod_name=fields.text("podName"),
        container=fields.text("container"),
        container_id=fields.text("containerID"),
        cgroup=fields.text("cgroup"),
        unknown=fields.rest(),
    )


def _some_cpus(fields: Fields) -> CPUSet:
    cpus = fields.cpus("cpus")
    if not cpus:
        raise Corrupt(f"{fields.place('cpus')} is empty")
    return cpus


def _preparation(fields: Fields) -> str:
    preparation = fields.secret("preparation")
    if not is_preparation(preparation):
        raise Corrupt(f"{fields.place('preparation')} is not 32 lower-case hexadecimal digits")
    return preparation

"""The CDI spec of a claim, which hands the claim to its container and is the claim's second record.

    {"cdiVersion": "0.6.0", "kind": "dra.k8s.io/cpu", "annotations": {"dra.cpu/claim": "<envelope with the record>"},
     "devices": [{"name": "claim-<uid>-<device>", "containerEdits": {"env": [DRA_CPUSET_<uid>=<cpus>,
                                                                            NRI_CPU_PREPARATION_<uid>=<preparation>]}},
                 ..., {"name": "claim-<uid>", "containerEdits": the same}]}

One file a claim (fault A15), so that writing one needs neither lock nor reading. All but `read_specs` is pure.
Rules of CDI specs: cncf-tags/container-device-interface, SPEC.md 0.6.0; 0.6.0 is the lowest version with annotations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path

from loguru import logger

from nri_cpu.checkpoint import codec, envelope, files, strictjson
from nri_cpu.checkpoint.errors import CheckpointError, CheckpointUnreadable, CheckpointUnwritable, Corrupt
from nri_cpu.checkpoint.fields import Fields
from nri_cpu.checkpoint.model import ClaimRecord, is_uid
from nri_cpu.cpuset import quote

CDI_VERSION = "0.6.0"
KIND = "dra.k8s.io/cpu"
CPUSET_ENV = "DRA_CPUSET_"
PREPARATION_ENV = "NRI_CPU_PREPARATION_"
RECORD_ANNOTATION = "dra.cpu/claim"
FILE_PREFIX = "dra.k8s.io-cpu_claim-"
# The runtime's library refuses annotations of more (k8s.io/apimachinery, TotalAnnotationSizeLimitB).
MAX_ANNOTATION_BYTES = 256 << 10
# The record may be as large as that; the edits of the 32 devices that a claim can have need much less.
MAX_SPEC_BYTES = 1 << 20

_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def file_name(uid: str) -> str:
    """The name of the claim's spec in the CDI directory."""
    return f"{FILE_PREFIX}{uid}.json"


def device_names(record: ClaimRecord) -> tuple[str, ...]:
    """The CDI device of each entry of `record.devices`, in that order; all different, also where two name one device.

    The kubelet reports health by CDI device, so each result of an allocation needs one of its own.
    """
    plain = {device.device for device in record.devices}
    used: dict[str, None] = {}
    for device in record.devices:
        # A device may itself be called like the second use of another.
        numbered = (name for number in count(2) if (name := f"{device.device}-{number}") not in plain)
        used[next(name for name in chain([device.device], numbered) if name not in used)] = None
    return tuple(f"{claim_device_name(record.uid)}-{name}" for name in used)


def claim_device_name(uid: str) -> str:
    """The CDI device that stands for the whole claim."""
    return f"claim-{uid}"


def qualified(name: str) -> str:
    """The CDI ID of a device of ours, as the kubelet and the runtime know it."""
    return f"{KIND}={name}"


def spec_bytes(record: ClaimRecord) -> bytes:
    """The content of the claim's spec; raises CheckpointUnwritable for a record that would not be read back."""
    data = {"uid": record.uid, **codec.record_to_data(record)}
    kept = envelope.encode(strictjson.dumps(data), boot_id="").decode()
    if len(RECORD_ANNOTATION) + len(kept) > MAX_ANNOTATION_BYTES:
        raise CheckpointUnwritable(f"claim {record.uid}: its record is larger than a CDI spec's annotations may be")
    edits = {"env": list(_env(record))}
    names = (*device_names(record), claim_device_name(record.uid))
    spec = {
        "cdiVersion": CDI_VERSION,
        "kind": KIND,
        "annotations": {RECORD_ANNOTATION: kept},
        "devices": [{"name": name, "containerEdits": edits} for name in names],
    }
    raw = strictjson.dumps(spec).encode()
    return codec.verified(raw, record_from_spec, record, f"claim {record.uid}: its CDI spec")


def record_from_spec(raw: bytes) -> ClaimRecord:
    """The claim that a spec of ours holds; raises Corrupt or TooNew.

    The edits must say what the record says: one of them alone is what a container got, or what we meant to give it.
    Devices, edits and keys that a newer version added do no harm.
    """
    if len(raw) > MAX_SPEC_BYTES:
        raise Corrupt(f"is larger than {MAX_SPEC_BYTES} bytes")
    spec = Fields(strictjson.loads(raw), "")
    spec.text("cdiVersion")
    kind = spec.text("kind")
    if kind != KIND:
        raise Corrupt(f"is of kind {quote(kind)}, not {KIND}")
    annotations = Fields(spec.nested("annotations"), "annotations")
    opened = envelope.decode(annotations.secret(RECORD_ANNOTATION).encode("utf-8", "surrogatepass"))
    uid = Fields(opened.data, RECORD_ANNOTATION).text("uid")
    record = codec.record_from_data(uid, opened.data, f"{RECORD_ANNOTATION} ")
    _compare(record, spec.items("devices"))
    if "containerEdits" in spec.rest():
        _refuse_claims(Fields(spec.rest(), "").nested("containerEdits"))
    return record


def read_specs(directory: Path) -> Mapping[str, ClaimRecord]:
    """The claims whose specs lie in `directory`, by UID and disjoint; a directory that is not there holds none.

    Foreign and broken files are skipped, each named in the log; no other is touched by one of them. Of two claims with
    a CPU in common the one prepared first counts. Raises CheckpointUnreadable when the directory can't be listed.
    """
    try:
        found = sorted(directory.iterdir())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointUnreadable(
            f"{directory} can't be listed: {error.strerror}; check its owner and mode"
        ) from error
    records = [record for path in found if (record := _read(path)) is not None]
    records.sort(key=lambda record: (record.prepared_at, record.uid))
    kept: list[ClaimRecord] = []
    for record in records:
        try:
            codec.refuse_overlap([*kept, record])
        except Corrupt as error:
            logger.warning("{} skipped: the directory {}", directory / file_name(record.uid), error)
        else:
            kept.append(record)
    return {record.uid: record for record in kept}


def _read(path: Path) -> ClaimRecord | None:
    name = path.name
    uid = name.removeprefix(FILE_PREFIX).removesuffix(".json")
    if name != file_name(uid) or not is_uid(uid):
        logger.debug("{} skipped: not a claim's CDI spec", path)
        return None
    try:
        record = files.parsed(path, record_from_spec, files.read_bytes(path, MAX_SPEC_BYTES))
    except CheckpointError as error:
        logger.warning("CDI spec skipped: {}", error)
        return None
    if record.uid != uid:
        logger.warning("{} skipped: it holds claim {}", path, record.uid)
        return None
    return record


def _env(record: ClaimRecord) -> tuple[str, str]:
    return (
        f"{CPUSET_ENV}{record.uid}={record.cpus}",
        f"{PREPARATION_ENV}{record.uid}={record.preparation}",
    )


def _compare(record: ClaimRecord, devices: list[object]) -> None:
    """Raises Corrupt unless each device gives exactly this claim, and the devices that the kubelet names are there."""
    names = set()
    for at, item in enumerate(devices):
        device = Fields(item, f"devices[{at}]")
        name = device.text("name")
        if not _DEVICE_NAME.fullmatch(name):
            raise Corrupt(f"devices[{at}].name {quote(name)} is no name of a CDI device")
        if name in names:
            raise Corrupt(f"devices[{at}].name {name} is there twice")
        names.add(name)
        edits = Fields(device.nested("containerEdits"), device.place("containerEdits"))
        if sorted(_claim_env(edits.items("env"), edits.place("env"))) != sorted(_env(record)):
            raise Corrupt(f"{edits.place('env')} says something else than the record of claim {record.uid}")
    missing = {*device_names(record), claim_device_name(record.uid)} - names
    if missing:
        raise Corrupt(f"devices lack {', '.join(sorted(missing))}")


def _refuse_claims(edits: dict[str, object]) -> None:
    """Edits for every device of the file may not say anything about claims."""
    env = Fields(edits, "containerEdits").items("env") if "env" in edits else []
    if _claim_env(env, "containerEdits.env"):
        raise Corrupt("containerEdits.env says something about claims")


def _claim_env(items: list[object], where: str) -> list[str]:
    """The settings that are about claims: any other is none of our business."""
    settings = [item for item in items if isinstance(item, str)]
    if len(settings) != len(items):
        raise Corrupt(f"{where} has something that is no text")
    return [setting for setting in settings if setting.startswith((CPUSET_ENV, PREPARATION_ENV))]

"""The wrapping of both files: which versions can read it, which boot wrote it, and a checksum over the data's text.

    {"format": 1, "readableBy": 1, "bootID": "...", "sha256": "<of the bytes of data>", "data": "<JSON text>"}

`format` is the writer's, `readableBy` the lowest format whose reader can read it; so an older version reads the files
of a newer one as long as the newer says so. The checksum guards the data; a damaged boot ID reads as another boot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nri_cpu.checkpoint import strictjson
from nri_cpu.checkpoint.errors import CheckpointUnwritable, Corrupt, TooNew
from nri_cpu.checkpoint.fields import Fields

# The interpreter's own SHA-256: hashlib maps libcrypto, 3.7 MiB of nri-cpu's memory, to save 1 ms per 200 KB.
try:
    from _sha2 import sha256  # type: ignore[import-not-found]  # from Python 3.12
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found]  # Python 3.11
    except ImportError:  # an interpreter built without its own
        from hashlib import sha256

FORMAT = 1  # what we write and read
READABLE_BY = 1  # the lowest format whose reader can read what we write
# 8192 claims (one a CPU) of 1 KiB each are 8 MiB; the rest is for options and fields to come.
MAX_FILE_BYTES = 64 << 20

_NOTHING: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Envelope:
    """An opened file: `data` is parsed JSON, its checksum was right. boot_id is empty when the writer knew none."""

    boot_id: str
    data: object = field(repr=False)
    unknown: Mapping[str, object] = field(default_factory=dict, repr=False)


def encode(data_json: str, boot_id: str, unknown: Mapping[str, object] = _NOTHING) -> bytes:
    """The file's bytes around `data_json`, the JSON text of the data; `unknown` are envelope fields to keep.

    Raises CheckpointUnwritable when they are more than a reader takes.
    """
    known = {
        "format": FORMAT,
        "readableBy": READABLE_BY,
        "bootID": boot_id,
        "sha256": _checksum(data_json),
        "data": data_json,
    }
    raw = strictjson.dumps({**known, **{key: value for key, value in unknown.items() if key not in known}}).encode()
    if len(raw) > MAX_FILE_BYTES:
        raise CheckpointUnwritable(f"the new content is larger than {MAX_FILE_BYTES} bytes")
    return raw


def decode(raw: bytes) -> Envelope:
    """Open a file's bytes; raises Corrupt for anything that `encode` would not have made, TooNew by readableBy."""
    if len(raw) > MAX_FILE_BYTES:
        raise Corrupt(f"is larger than {MAX_FILE_BYTES} bytes")
    fields = Fields(strictjson.loads(raw), "")
    written_as = fields.integer("format")
    readable_by = fields.integer("readableBy")
    if not 1 <= readable_by <= written_as:
        raise Corrupt(f"says format {written_as}, readable by {readable_by}")
    if readable_by > FORMAT:
        raise TooNew(f"has format {written_as}, for readers of format {readable_by} and later; this one reads {FORMAT}")
    boot_id = fields.text("bootID")
    checksum = fields.text("sha256")
    data_json = fields.secret("data")
    if checksum != _checksum(data_json):
        raise Corrupt("has a wrong checksum")
    return Envelope(boot_id, strictjson.loads(data_json), fields.rest())


def _checksum(data_json: str) -> str:
    # JSON escapes can make lone surrogates; no file of ours has them, and none may raise anything but our errors.
    checksum: str = sha256(data_json.encode("utf-8", "surrogatepass")).hexdigest()
    return checksum

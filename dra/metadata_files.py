"""The files of device metadata: one on the host and one CDI spec for each request of a prepared claim.

What they say is dra.metadata's business. Nothing durable depends on them: every Prepare and every start sees to it
that they are right, without waiting for the disk. A claim does without them where they can't be written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from loguru import logger

from dra import metadata
from dra.metadata import Attributes
from nri_cpu.checkpoint import files
from nri_cpu.checkpoint.errors import CheckpointError, CheckpointUnreadable
from nri_cpu.checkpoint.model import ClaimRecord, is_uid

# Programs of any user read them.
_MODE = 0o644
_WHAT = "the metadata"
# A claim has at most 32 devices with 48 values each.
_LIMIT = 1 << 20


class MetadataDirectory:
    """The files on the host in `path`, which is absolute and nobody else's, and their specs in `cdi`, which others use
    as well. Its one writer at a time holds serialize.lock."""

    def __init__(self, path: Path, cdi: Path, attributes: Attributes) -> None:
        self.path = path
        self._cdi = cdi
        self._attributes = attributes

    def write(self, record: ClaimRecord) -> tuple[str, ...]:
        """Write the claim's files; the requests that have theirs. What fails is logged: no claim fails for it."""
        return tuple(request for request in metadata.requests_of(record) if self._write(record, request) is not None)

    def remove(self, record: ClaimRecord) -> None:
        """Take the claim's files away, specs first; what is not there is no failure. Raises CheckpointUnwritable."""
        for request in metadata.requests_of(record):
            files.remove(self._cdi / metadata.spec_file(record.uid, request), _WHAT)
            files.remove(self.path / metadata.host_file(record.uid, request), _WHAT)

    def align(self, claims: Mapping[str, ClaimRecord]) -> None:
        """Files as the prepared claims have them. What fails is logged: Prepare and Unprepare do it again."""
        wanted = [(record, request) for record in claims.values() for request in metadata.requests_of(record)]
        hosts = {metadata.host_file(record.uid, request) for record, request in wanted}
        specs = {metadata.spec_file(record.uid, request) for record, request in wanted}
        try:
            files.remove_leftovers(self.path, "")
            files.remove_leftovers(self._cdi, metadata.SPEC_PREFIX)
            for path in (*_claims_files(self._cdi, metadata.SPEC_PREFIX, specs), *_claims_files(self.path, "", hosts)):
                if path.parent == self.path or self._is_ours(path):
                    files.remove(path, _WHAT)
                    logger.info("{}, metadata of a claim that is not prepared, is removed", path)
        except CheckpointError as error:
            logger.error("metadata of claims that are not prepared may stay: {}", error)
        for record, request in wanted:
            if self._write(record, request):
                logger.info("claim {}/{} ({}) got its metadata again", record.namespace, record.name, record.uid)

    def _write(self, record: ClaimRecord, request: str) -> int | None:
        """How many files had to be written, None when one could not be."""
        try:
            return self._put(record, request)
        except CheckpointError as error:
            logger.error("claim {} has no metadata for request {}: {}", record.uid, request, error)
        except Exception:
            logger.exception("claim {} has no metadata for request {}: an error of dra-cpu itself", record.uid, request)
        return None

    def _put(self, record: ClaimRecord, request: str) -> int:
        """The file on the host goes first: it must be there when its spec is used."""
        host, spec = self.path / metadata.host_file(record.uid, request), metadata.spec_file(record.uid, request)
        current = _held(host)
        wanted = {
            host: (current, metadata.updated(current, record, request, self._attributes)),
            self._cdi / spec: (_held(self._cdi / spec), metadata.spec(record, request, str(host))),
        }
        changed = {path: raw for path, (held, raw) in wanted.items() if held != raw}
        for path, raw in changed.items():
            files.put(path, raw, _MODE)
        return len(changed)

    def _is_ours(self, spec: Path) -> bool:
        """Whether a spec mounts files of `path`: dra-driver-cpu gives its own the same name. What is no JSON is of no
        use to anyone, and may be what a crash of the machine left of ours."""
        try:
            found = json.loads(files.read_bytes(spec, _LIMIT))
            mounts = [mount for device in found["devices"] for mount in device["containerEdits"]["mounts"]]
            return {Path(mount["hostPath"]).parent for mount in mounts} == {self.path}
        except (CheckpointError, TypeError, LookupError):
            return False
        except (ValueError, RecursionError):
            return True


def _claims_files(directory: Path, prefix: str, wanted: Collection[str]) -> list[Path]:
    """The files in `directory` that are named `prefix<uid>_<request>.json` and are not wanted."""
    try:
        found = [path for path in directory.iterdir() if path.name.startswith(prefix) and path.name not in wanted]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointUnreadable(f"{directory} can't be listed: {error.strerror}; check its mode") from error
    return [path for path in found if is_uid(path.name.removeprefix(prefix).partition("_")[0])]


def _held(path: Path) -> bytes:
    """What the file holds; nothing when it can't be read: it is written anew then."""
    try:
        return files.read_bytes(path, _LIMIT)
    except CheckpointError:
        return b""

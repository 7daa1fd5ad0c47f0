"""The files of device metadata: one on the host and one CDI spec for each request of a prepared claim.

What they say is dra.metadata's business. Nothing durable depends on them: every Prepare and every start writes them
anew, without waiting for the disk. A claim does without them where they can't be written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from loguru import logger

from dra import metadata
from dra.metadata import Attributes
from nri_cpu.checkpoint.errors import CheckpointError, CheckpointMissing, CheckpointUnreadable, CheckpointUnwritable
from nri_cpu.checkpoint.files import read_bytes, remove_leftovers, replace
from nri_cpu.checkpoint.model import ClaimRecord, is_uid

# Programs of any user read them.
_MODE = 0o644
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
        return tuple(request for request in metadata.requests_of(record) if self._write(record, request))

    def remove(self, record: ClaimRecord) -> None:
        """Take the claim's files away, specs first; what is not there is no failure. Raises CheckpointUnwritable."""
        for request in metadata.requests_of(record):
            _remove(self._cdi / metadata.spec_file(record.uid, request))
            _remove(self.path / metadata.host_file(record.uid, request))

    def align(self, claims: Mapping[str, ClaimRecord]) -> None:
        """Files as the prepared claims have them. What fails is logged: Prepare and Unprepare do it again."""
        wanted = [(record, request) for record in claims.values() for request in metadata.requests_of(record)]
        hosts = {metadata.host_file(record.uid, request) for record, request in wanted}
        specs = {metadata.spec_file(record.uid, request) for record, request in wanted}
        try:
            remove_leftovers(self.path, "")
            remove_leftovers(self._cdi, metadata.SPEC_PREFIX)
            for path in (*_claims_files(self._cdi, metadata.SPEC_PREFIX, specs), *_claims_files(self.path, "", hosts)):
                if path.parent == self.path or self._mounts_ours(path):
                    _remove(path)
                    logger.info("{}, metadata of a claim that is not prepared, is removed", path)
        except CheckpointError as error:
            logger.error("metadata of claims that are not prepared may stay: {}", error)
        for record, request in wanted:
            if self._write(record, request, anew=False):
                logger.info("claim {}/{} ({}) got its metadata again", record.namespace, record.name, record.uid)

    def _write(self, record: ClaimRecord, request: str, *, anew: bool = True) -> bool:
        """Whether the files were written; not `anew`: only if they are not there as they should be."""
        try:
            files = self._files(record, request)
            if not anew and all(_holds(path, raw) for path, raw in files.items()):
                return False
            for path, raw in files.items():
                _replace(path, raw)
        except (CheckpointError, OSError) as error:
            logger.error("claim {} has no metadata for request {}: {}", record.uid, request, error)
            return False
        except Exception:
            logger.exception("claim {} has no metadata for request {}: an error of dra-cpu itself", record.uid, request)
            return False
        return True

    def _files(self, record: ClaimRecord, request: str) -> Mapping[Path, bytes]:
        """What the claim's files hold; the one on the host first, which must be there when its spec is used."""
        host = self.path / metadata.host_file(record.uid, request)
        return {
            host: metadata.content(record, request, self._attributes),
            self._cdi / metadata.spec_file(record.uid, request): metadata.spec(record, request, str(host)),
        }

    def _mounts_ours(self, spec: Path) -> bool:
        """Whether a spec mounts a file of `path`: dra-driver-cpu gives its own the same name. A broken one may go."""
        try:
            (device,) = json.loads(read_bytes(spec, _LIMIT))["devices"]
            (mount,) = device["containerEdits"]["mounts"]
            return Path(mount["hostPath"]).parent == self.path
        except (CheckpointMissing, CheckpointUnreadable):
            return False
        except (ValueError, TypeError, LookupError, RecursionError):
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


def _holds(path: Path, raw: bytes) -> bool:
    try:
        return read_bytes(path, _LIMIT) == raw
    except CheckpointError:
        return False


def _replace(path: Path, raw: bytes) -> None:
    try:
        replace(path, raw, _MODE)
    except CheckpointUnwritable:  # mostly since the directory is not there: looking each time would cost more
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace(path, raw, _MODE)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:
        return
    except OSError as error:
        raise CheckpointUnwritable(f"the metadata {path} can't be removed: {error.strerror}; remove it") from error

"""The CDI directory: one spec a claim, written and removed whole. What it says is nri_cpu.checkpoint.cdi's business."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nri_cpu.checkpoint.cdi import FILE_PREFIX, file_name, read_specs
from nri_cpu.checkpoint.errors import CheckpointUnwritable
from nri_cpu.checkpoint.files import remove_leftovers, write_durably
from nri_cpu.checkpoint.model import ClaimRecord


class CdiDirectory:
    """The specs of our claims in `path`, which others use as well. Two claims never share a file (fault A15)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, uid: str, spec: bytes) -> None:
        """Put the claim's spec in place, whatever is there (faults A3, K1); raises CheckpointUnwritable.

        The directory is made when it is gone: it usually lies in a tmpfs, and runtimes of before CDI don't make it.
        """
        try:
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointUnwritable(
                f"the CDI directory {self.path} can't be made: {error.strerror}; make it or name another (--cdi-dir)"
            ) from error
        write_durably(self.path / file_name(uid), spec)

    def remove(self, uid: str) -> None:
        """Take the claim's spec away; one that is not there is no failure (fault A2). Raises CheckpointUnwritable."""
        path = self.path / file_name(uid)
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise CheckpointUnwritable(f"the CDI spec {path} can't be removed: {error.strerror}; remove it") from error

    def has(self, uid: str) -> bool:
        """Whether there is a file for the claim's spec, whatever is in it."""
        return (self.path / file_name(uid)).exists()

    def read(self) -> Mapping[str, ClaimRecord]:
        """The claims whose specs are here, by UID; raises CheckpointUnreadable."""
        return read_specs(self.path)

    def remove_leftovers(self) -> None:
        """Remove temporary files of a writer that was killed; raises CheckpointUnwritable."""
        remove_leftovers(self.path, FILE_PREFIX)

"""The CDI directory: one spec a claim, written and removed whole. What it says is nri_cpu.checkpoint.cdi's business.

Nothing waits for the disk here: what a crash of the machine spoils, the next start makes anew from the checkpoint, and
no container of before is left that could miss it. Usually the directory lies in memory anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nri_cpu.checkpoint import files
from nri_cpu.checkpoint.cdi import FILE_PREFIX, file_name, read_specs
from nri_cpu.checkpoint.model import ClaimRecord


class CdiDirectory:
    """The specs of our claims in `path`, which others use as well. Two claims never share a file (fault A15)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, uid: str, spec: bytes) -> None:
        """Put the claim's spec in place, whatever is there (faults A3, K1); raises CheckpointUnwritable.

        The directory is made when it is gone: runtimes of before CDI don't make it.
        """
        files.put(self.path / file_name(uid), spec)

    def remove(self, uid: str) -> None:
        """Take the claim's spec away; one that is not there is no failure (fault A2). Raises CheckpointUnwritable."""
        files.remove(self.path / file_name(uid), "the CDI spec")

    def has(self, uid: str) -> bool:
        """Whether there is a file for the claim's spec, whatever is in it."""
        return (self.path / file_name(uid)).exists()

    def read(self) -> Mapping[str, ClaimRecord]:
        """The claims whose specs are here, by UID; raises CheckpointUnreadable."""
        return read_specs(self.path)

    def remove_leftovers(self) -> None:
        """Remove temporary files of a writer that was killed; raises CheckpointUnwritable."""
        files.remove_leftovers(self.path, FILE_PREFIX)

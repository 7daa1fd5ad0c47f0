"""Prepared claims and who owns them, for commands that only look."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nri_cpu.checkpoint.boot import boot_id
from nri_cpu.checkpoint.errors import CheckpointError, CheckpointMissing, CheckpointUnreadable
from nri_cpu.checkpoint.files import OWNERS, read_checkpoint, read_owners
from nri_cpu.checkpoint.model import Checkpoint, Owner
from nri_cpu.command import UsageError


def named_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that --checkpoint names. Raises UsageError when there is none, or a directory, a FIFO or
    a device; CheckpointError with `why`'s words when it can't be read."""
    try:
        return read_checkpoint(path)[0]
    except CheckpointMissing:
        raise UsageError(f"--checkpoint {path} does not exist: check the path") from None
    except CheckpointUnreadable as error:
        if error.__cause__ is None:  # the system lets it be read: it is a directory, a device, a FIFO
            raise UsageError(f"--checkpoint {path} is no regular file: check the path") from None
        raise CheckpointUnreadable(why(error)) from error
    except CheckpointError as error:
        raise type(error)(why(error)) from error


def owners_beside(checkpoint: Path, host: Path) -> Mapping[str, Owner]:
    """Who owns the claims of this checkpoint, by UID; nobody where there is no such file.

    `host`: HOST_ROOT, whose boot it must be of. Raises CheckpointError.
    """
    path = checkpoint.with_name(OWNERS)
    try:
        owners, boot = read_owners(path)
    except CheckpointMissing:
        return {}
    if boot != boot_id(host):
        raise CheckpointError(f"{path} is of another boot: nri-cpu has not written it since")
    return owners.owners


def why(error: CheckpointError) -> str:
    """The error, and for an ordinary user that he can't help it. Who only looks has no business removing anything."""
    if isinstance(error.__cause__, PermissionError):
        return f"{error}; only root may read it"
    return f"{error.fault}; check the path" if error.repair else str(error)

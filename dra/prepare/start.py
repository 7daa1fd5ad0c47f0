"""What dra-cpu does before it serves: checkpoint and CDI specs are brought to agree, whatever the last end was like.

    checkpoint corrupt or absent   made from our own CDI specs, whose annotations hold whole records; a corrupt one is
                                   moved aside first (fault S2). After a reboot there are no specs and it starts empty
    first start after a boot       a record whose CPUs are no longer in its devices goes: Prepare chooses anew
    record without its spec        the spec is written (fault K1)
    spec without a record          the spec goes: it was about to be removed, or to be written (fault K12)
    metadata                       as specs; a claim does without what can't be written

A checkpoint that can't be read, or is of a newer version, ends the start: it is never taken for an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from loguru import logger

from dra.cdi import CdiDirectory
from dra.metadata_files import MetadataDirectory
from dra.prepare.choice import Node
from dra.prepare.ledger import exclusive
from nri_cpu.checkpoint.cdi import spec_bytes
from nri_cpu.checkpoint.codec import checkpoint_to_bytes
from nri_cpu.checkpoint.errors import CheckpointError, CheckpointMissing, Corrupt
from nri_cpu.checkpoint.files import (
    ensure_directory,
    move_aside,
    read_checkpoint,
    remove_leftovers,
    write_durably,
)
from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord


def recover(path: Path, cdi: CdiDirectory, metadata: MetadataDirectory, node: Node, boot_id: str) -> Checkpoint:
    """Bring the checkpoint at `path`, CDI specs and metadata to agree; the checkpoint as it is on disk then.

    Raises CheckpointError or ClaimError when that can't be done.
    """
    ensure_directory(path.parent)
    with exclusive(path):
        remove_leftovers(path.parent, path.name)
        specs, problem = _specs(cdi)
        try:
            found, written_in = read_checkpoint(path)
        except (CheckpointMissing, Corrupt) as error:
            if problem:
                raise problem from None  # nothing is left to tell what is prepared
            _tell(path, error, len(specs))
            found, written_in = None, boot_id  # specs lie where a reboot empties
        state = replace(found or Checkpoint(node.reserved, specs), reserved=node.reserved)
        if boot_id and written_in and written_in != boot_id:
            state = replace(state, claims=_still_possible(state.claims, node))
        if state != found or written_in != boot_id:
            write_durably(path, checkpoint_to_bytes(state, boot_id))
        _align(cdi, specs, state)
        metadata.align(state.claims)
    for record in state.claims.values():
        if not record.cpus.isdisjoint(node.reserved):
            logger.warning(
                "claim {}/{} ({}) keeps its CPUs {} though {} are reserved now, until it is unprepared",
                *(record.namespace, record.name, record.uid, record.cpus, record.cpus & node.reserved),
            )
    return state


def _specs(cdi: CdiDirectory) -> tuple[Mapping[str, ClaimRecord], CheckpointError | None]:
    try:
        cdi.remove_leftovers()
        return cdi.read(), None
    except CheckpointError as error:
        logger.error("{}", error)  # a checkpoint may do without, and each Prepare says what is wrong
        return {}, error


def _tell(path: Path, error: CheckpointError, specs: int) -> None:
    if isinstance(error, CheckpointMissing):
        logger.info("{} does not exist: starting with the {} claims that have CDI specs of ours", path, specs)
    else:
        logger.error("{}. It is {} now; made anew from {} CDI specs of ours", error, move_aside(path), specs)


def _still_possible(claims: Mapping[str, ClaimRecord], node: Node) -> Mapping[str, ClaimRecord]:
    """The records whose CPUs are in their devices: nothing runs yet in a new boot, so the others may be chosen anew."""
    kept = {}
    for uid, record in claims.items():
        if all(node.holds(device) for device in record.devices):
            kept[uid] = record
        else:
            logger.warning(
                "claim {}/{} ({}) had CPUs {} before the reboot, which its devices have no longer: it is chosen anew",
                *(record.namespace, record.name, uid, record.cpus),
            )
    return kept


def _align(cdi: CdiDirectory, specs: Mapping[str, ClaimRecord], state: Checkpoint) -> None:
    """Specs as the checkpoint says. What fails is logged: Prepare and Unprepare do it again."""
    for uid in {**specs, **state.claims}:
        record = state.claims.get(uid)
        if specs.get(uid) == record:
            continue
        try:
            if record:
                cdi.write(uid, spec_bytes(record))
                logger.info("claim {}/{} ({}) got its CDI spec again", record.namespace, record.name, uid)
            else:
                cdi.remove(uid)
                logger.info("the CDI spec of claim {}, which is not prepared, is removed", uid)
        except CheckpointError as error:
            logger.error("{}", error)

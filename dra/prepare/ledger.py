"""The ledger: prepared claims on disk, changed by transactions. State, then effect, then answer.

A transaction takes all jobs that wait (group commit: concurrent calls share one fsync), under serialize.lock and on the
checkpoint as it is on disk now:

    1. each job decides on what the earlier ones left; an Unprepare removes its CDI spec and metadata here (fault A2)
    2. the checkpoint is written if anything changed; if that fails, none of its changes count
    3. specs of prepared claims are written; a claim whose spec fails is taken out of the checkpoint again (fault A1)
    4. metadata of prepared claims is written; a claim does without what fails

A kill between two steps leaves at worst a record without a spec, which the next start writes, as does the next Prepare.
The lock is not held while claims are read (fault K4).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from dra.cdi import CdiDirectory
from dra.claims import ClaimError
from dra.metadata_files import MetadataDirectory
from nri_cpu.checkpoint.cdi import spec_bytes
from nri_cpu.checkpoint.codec import checkpoint_to_bytes
from nri_cpu.checkpoint.errors import CheckpointError, Corrupt, TooNew
from nri_cpu.checkpoint.files import move_aside, write_durably
from nri_cpu.checkpoint.follow import CheckpointFile
from nri_cpu.checkpoint.locks import SERIALIZE, FileLock
from nri_cpu.checkpoint.model import Checkpoint, ClaimRecord

# Another instance holds the lock for one transaction, which takes milliseconds.
LOCK_WAIT = 10.0
_LOCK_POLL = 0.005

# Given all records, the one that this claim is to have: the one it has already, unchanged, or a new one; or ClaimError.
Decide = Callable[[Mapping[str, ClaimRecord]], ClaimRecord]


@dataclass(slots=True, eq=False)
class Job:
    """One claim's part in a transaction; `decide` None means Unprepare.

    Outcome: `error`, or `record`: what the claim is prepared with, or was before it was unprepared (None: unknown).
    `spec`: the content of a prepared claim's CDI spec; `metadata`: the requests that have their metadata.
    """

    uid: str
    decide: Decide | None
    record: ClaimRecord | None = None
    spec: bytes = b""
    metadata: tuple[str, ...] = ()
    error: Exception | None = None
    done: bool = False


class Ledger:
    """The writer of the checkpoint in this process; any number of threads may call `transact`.

    `state`: what the file holds, as `dra.prepare.start` made it; its reserved CPUs stay those of the dra-cpu that
    started last (fault K9). `boot_id`: of this boot. `changed`: called after each transaction that changed claims, by
    the thread that ran it and with no lock held; the answer waits for it.
    """

    def __init__(
        self,
        path: Path,
        cdi: CdiDirectory,
        metadata: MetadataDirectory,
        state: Checkpoint,
        boot_id: str,
        *,
        changed: Callable[[], None],
    ) -> None:
        self._path = path
        self._cdi = cdi
        self._metadata = metadata
        self._changed = changed
        self._boot_id = boot_id
        self._file = CheckpointFile(path)
        self._closed = False
        self._turn = threading.Lock()
        self._queue = threading.Lock()
        self._waiting: list[Job] = []
        self._state = state
        self._stale = False  # the file may not be what it should: it is written in any case
        self._problem: CheckpointError | None = None  # what is wrong with the file, until it is another one
        self._complained: CheckpointError | None = None  # the last problem that `look` has told

    def transact(self, jobs: Sequence[Job]) -> None:
        """Carry out the jobs, no two for one claim at a time; each has its outcome when this returns."""
        with self._queue:
            self._waiting.extend(jobs)
        with self._turn:
            if all(job.done for job in jobs):
                return  # an earlier turn took them along
            before = self.claims
            with self._queue:
                batch, self._waiting = self._waiting, []
            try:
                with exclusive(self._path):
                    self._run(batch)
            except Exception as error:
                for job in batch:
                    job.error = job.error or error
            finally:
                for job in batch:
                    job.done = True
            changed = self.claims is not before
        if changed:
            self._tell()

    def look(self) -> None:
        """See what another instance has done (fault K9): calls `changed`, as a transaction does, if claims are others.

        One stat when there is nothing new, to be called each second. Never raises nor waits: a transaction under way
        looks itself, and what is wrong with the file is told to the log once and mended by the next transaction.
        """
        if self._closed or not self._turn.acquire(blocking=False):
            return
        try:
            before = self.claims
            self._state = self._news() or self._state
            changed = self.claims != before
        except CheckpointError as error:
            if error is not self._complained:
                self._complained = error
                logger.error("{}. The next claim to be prepared or unprepared mends it, if it can be", error)
            return
        finally:
            self._turn.release()
        if changed:
            self._tell()

    @property
    def claims(self) -> Mapping[str, ClaimRecord]:
        """The prepared claims by UID, as of the last transaction or look here."""
        return self._state.claims

    def _tell(self) -> None:
        try:
            self._changed()
        except Exception:  # the claims are prepared all the same
            logger.exception("claims have changed, and what follows from it failed")

    def close(self) -> None:
        """No job is carried out after this: another instance may have answered for its claim since (fault K3)."""
        with self._turn:
            self._closed = True
            self._file.close()

    def _run(self, batch: Sequence[Job]) -> None:
        if self._closed:
            raise ClaimError("dra-cpu is ending: the kubelet asks the next one")
        before = self._current()
        claims = dict(before.claims)
        for job in batch:
            self._decide(job, claims)
        changed = [job for job in batch if claims.get(job.uid) is not before.claims.get(job.uid)]
        if changed or self._stale:
            try:
                self._write(replace(before, claims=claims))
            except CheckpointError as error:
                self._not_written(batch, error)
                self._restore(job.record for job in changed if not job.decide)
        failed = [job for job in batch if job.decide and not job.error and not self._effect(job)]
        if undone := [job.uid for job in failed if job.uid not in before.claims]:
            self._take_back(replace(before, claims={uid: claims[uid] for uid in claims if uid not in undone}), undone)

    def _not_written(self, batch: Sequence[Job], error: CheckpointError) -> None:
        """Every answer relies on the file, also that of a job which changes nothing in it."""
        told = [job for job in batch if not job.error]
        for job in told:
            job.error = error
        if not told:
            logger.error("{}. The next claim to be prepared or unprepared tries again", error)

    def _current(self) -> Checkpoint:
        """The checkpoint as it is on disk: another instance may have written it. Raises CheckpointError."""
        try:
            self._state = self._news() or self._state
        except TooNew:
            raise
        except CheckpointError as error:
            self._state = self._made_anew(error)
        return self._state

    def _news(self) -> Checkpoint | None:
        """The checkpoint, None while it is as it was; raises CheckpointError at each call until it is mended."""
        try:
            fresh = self._file.poll()
        except CheckpointError as error:
            self._problem = error
            raise
        if fresh:
            self._problem = None
            if fresh.reserved != self._state.reserved:
                logger.warning(
                    "another dra-cpu has started with reservedCPUs {}, not {}: the last start counts",
                    *(fresh.reserved or "none", self._state.reserved or "none"),
                )
        elif self._problem:
            raise self._problem.with_traceback(None)
        return fresh

    def _made_anew(self, error: CheckpointError) -> Checkpoint:
        """What a lost checkpoint held: CDI specs know what other instances did, memory knows the rest (fault S2).

        Raises CheckpointError when the specs can't be listed or a corrupt file can't be moved aside.
        """
        specs = self._cdi.read()
        if isinstance(error, Corrupt):
            move_aside(self._path)
        logger.error("{}. It is made anew from memory and from {} CDI specs of ours", error, len(specs))
        claims = dict(self._state.claims)
        for uid, record in specs.items():
            others = [other for other in claims.values() if other.uid != uid]
            rivals = [other.uid for other in others if not other.cpus.isdisjoint(record.cpus)]
            if any(map(self._cdi.has, rivals)):
                logger.warning("the CDI spec of claim {} is passed over: claim {} has its CPUs", uid, ", ".join(rivals))
                continue
            for rival in rivals:
                del claims[rival]  # without its spec: another instance has unprepared it
            claims[uid] = record
        self._stale = True
        return replace(self._state, claims=claims)

    def _decide(self, job: Job, claims: dict[str, ClaimRecord]) -> None:
        try:
            if job.decide:
                job.record = job.decide(claims)
                job.spec = spec_bytes(job.record)  # one that can't be written must not spoil the others' transaction
                claims[job.uid] = job.record
            else:
                job.record = claims.get(job.uid)
                self._remove(job.uid, job.record)
                claims.pop(job.uid, None)
        except Exception as error:
            job.error = error

    def _remove(self, uid: str, record: ClaimRecord | None) -> None:
        try:
            self._cdi.remove(uid)
            if record:
                self._metadata.remove(record)
        except CheckpointError:
            self._restore([record])
            raise

    def _write(self, state: Checkpoint) -> None:
        raw = checkpoint_to_bytes(state, self._boot_id, self._state.claims)
        self._stale = True
        try:
            write_durably(self._path, raw)
        finally:
            self._file.skip()  # also what was written in vain and is there all the same: the next one takes its place
            self._problem = None
        self._stale = False
        self._state = state

    def _effect(self, job: Job) -> bool:
        """Write the spec of a prepared claim; false, with the job's error set, when that fails. Then its metadata."""
        try:
            self._cdi.write(job.uid, job.spec)
        except CheckpointError as error:
            job.error = error
            return False
        if job.record:
            job.metadata = self._metadata.write(job.record)
        return True

    def _take_back(self, state: Checkpoint, uids: Sequence[str]) -> None:
        """After failed specs: the records go, so that the claims' CPUs are free again (fault A1)."""
        try:
            for uid in uids:
                self._cdi.remove(uid)  # it may be one of before
            self._write(state)
        except CheckpointError as error:
            logger.error("{}. The records of claims {} stay until they are prepared or unprepared", error, uids)

    def _restore(self, records: Iterable[ClaimRecord | None]) -> None:
        """After a failure: claims that stay prepared get back what went first."""
        for record in records:
            if record:
                try:
                    self._cdi.write(record.uid, spec_bytes(record))
                except CheckpointError as error:
                    logger.error("{}. Claim {} has no CDI spec until it is prepared again", error, record.uid)
                self._metadata.write(record)


@contextlib.contextmanager
def exclusive(checkpoint: Path) -> Iterator[None]:
    """Holds the serialize.lock beside the checkpoint; raises ClaimError when another instance keeps it."""
    path = checkpoint.with_name(SERIALIZE)
    lock = FileLock(path)
    ends = time.monotonic() + LOCK_WAIT
    while not lock.acquire():
        if time.monotonic() > ends:
            raise ClaimError(f"another dra-cpu has held {path} for {LOCK_WAIT:.0f} s: end it, it is stuck")
        time.sleep(_LOCK_POLL)
    try:
        yield
    finally:
        lock.release()

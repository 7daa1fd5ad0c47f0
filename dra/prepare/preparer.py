"""Prepare and Unprepare of claims, as the kubelet asks for them: the life of a claim, up to the answer.

Prepare: is nri-cpu there (fault B14)? -> read the claim -> check it -> choose CPUs -> checkpoint -> CDI spec ->
metadata -> answer. Unprepare: CDI spec and metadata -> checkpoint -> answer, from the UID alone (fault K5). Calls for
one claim follow one another (fault K3), calls for different claims don't wait for each other's reads (fault K4). Each
claim and decision is one line in the log.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from loguru import logger

from dra.claims import Claim, ClaimError, ClaimRef, ClaimSource, base_request, printable
from dra.metadata import cdi_id
from dra.prepare.choice import Node, choose, confirm
from dra.prepare.ledger import Decide, Job, Ledger
from dra.prepare.reads import ClaimReads
from nri_cpu.checkpoint.cdi import claim_device_name, device_names, qualified
from nri_cpu.checkpoint.errors import CheckpointError
from nri_cpu.checkpoint.locks import held_by_other
from nri_cpu.checkpoint.model import ClaimRecord, is_uid
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology import TopologyError

# The kubelet makes an event of it, which has room for 1024 bytes.
_REASON_LIMIT = 900


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a prepared claim, as the kubelet wants it.

    `cdi_ids`: its own, then the claim's, then, if it is the first of its request, that of the request's metadata.
    """

    request: str
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None


# What a claim's part of the answer is; a refusal is text for people.
Prepared = tuple[PreparedDevice, ...]
Refusal = str


class Preparer:
    """Prepares and unprepares; any number of threads may call it.

    `node`: the machine as it is now; `online`: the CPUs on line now, or TopologyError. `synchronized`: the lock that
    nri-cpu holds while it is in the runtime, None where that is not required.
    """

    def __init__(
        self,
        node: Callable[[], Node],
        source: ClaimSource,
        ledger: Ledger,
        *,
        synchronized: Path | None,
        online: Callable[[], CPUSet],
    ) -> None:
        self._node = node
        self._reads = ClaimReads(source)
        self._ledger = ledger
        self._synchronized = synchronized
        self._online = online
        self._claims = _ClaimLocks()

    def stop(self) -> None:
        """Read no more claims; what is read is still prepared."""
        self._reads.stop()

    def prepare(
        self, refs: Sequence[ClaimRef], deadline: float, awaited: Callable[[], bool] = lambda: True
    ) -> dict[str, Prepared | Refusal]:
        """The outcome for each claim by UID; never raises. `deadline`: time.monotonic seconds; `awaited`: whether the
        caller still waits. When it does not, it may have had the claim unprepared by another instance, and nobody would
        do that a second time: nothing is prepared any more.
        """
        by_uid = {ref.uid: ref for ref in refs}
        outcomes: dict[str, Prepared | Refusal] = {}
        try:
            with self._claims.held(by_uid, deadline):
                self._require_plugin()
                claims = self._read(by_uid, deadline, outcomes)
                node, online = self._node(), self._online() if claims else EMPTY
                jobs = [Job(claim.uid, _decision(node, claim, online, awaited)) for claim in claims if claim.results]
                nothing = [claim for claim in claims if not claim.results]
                self._ledger.transact(jobs)
                outcomes |= {claim.uid: self._without_devices(by_uid[claim.uid], claim) for claim in nothing}
        except Exception as error:
            return {uid: self._refused("prepare", ref, error) for uid, ref in by_uid.items()}
        for job in jobs:
            if job.error or not job.record:
                outcomes[job.uid] = self._refused("prepare", by_uid[job.uid], job.error)
            else:
                outcomes[job.uid] = _answer(job.record, job.metadata)
                logger.info(
                    "claim {} is prepared: CPUs {} ({})", by_uid[job.uid], job.record.cpus, _devices(job.record)
                )
        return outcomes

    def unprepare(
        self, refs: Sequence[ClaimRef], deadline: float, awaited: Callable[[], bool] = lambda: True
    ) -> dict[str, Refusal]:
        """For each claim by UID the reason why it stays prepared, "" for none; never raises. Arguments as of `prepare`.

        A claim that is not known here is unprepared already (fault K5).
        """
        by_uid = {ref.uid: ref for ref in refs}
        # No record can have another UID, and none becomes part of a path.
        jobs = [Job(uid, None) for uid in by_uid if is_uid(uid)]
        try:
            with self._claims.held(by_uid, deadline):
                _require_caller(awaited)  # which may have had it prepared anew since
                self._ledger.transact(jobs)
        except Exception as error:
            return {uid: self._refused("unprepare", ref, error) for uid, ref in by_uid.items()}
        outcomes = dict.fromkeys(by_uid, "")
        for job in jobs:
            ref = by_uid[job.uid]
            if job.error:
                outcomes[job.uid] = self._refused("unprepare", ref, job.error)
            else:
                cpus = f"its CPUs {job.record.cpus} are free" if job.record else "it was not prepared"
                logger.info("claim {} is unprepared: {}", ref, cpus)
        return outcomes

    def _require_plugin(self) -> None:
        if self._synchronized and not held_by_other(self._synchronized):
            raise ClaimError(
                f"nri-cpu is not in the container runtime (nobody holds {self._synchronized}), so its container would "
                "run unpinned: start nri-cpu, or set requirePlugin: false"
            )

    def _read(
        self, refs: Mapping[str, ClaimRef], deadline: float, outcomes: dict[str, Prepared | Refusal]
    ) -> list[Claim]:
        """The claims that could be read; the others get their refusal in `outcomes`."""
        claims = []
        for uid, found in self._reads.read(tuple(refs.values()), deadline).items():
            if isinstance(found, Exception):
                outcomes[uid] = self._refused("prepare", refs[uid], found)
            else:
                claims.append(found)
        return claims

    def _without_devices(self, ref: ClaimRef, claim: Claim) -> Prepared | Refusal:
        """The outcome for a claim that is allocated nothing of ours (fault A5): refused where it had something, as for
        any other change (fault A6)."""
        record = self._ledger.claims.get(claim.uid)
        try:
            if record:
                confirm(record, claim)
        except ClaimError as error:
            return self._refused("prepare", ref, error)
        return ()

    def _refused(self, what: str, ref: ClaimRef, error: Exception | None) -> Refusal:
        """The refusal as text that names the claim, told to the log; a fault of ours goes there with its traceback."""
        if isinstance(error, ClaimError | CheckpointError | TopologyError):
            reason = printable(str(error), _REASON_LIMIT)
            logger.warning("claim {} is not {}d: {}", ref, what, reason)
            return f"claim {ref}: {reason}"
        logger.opt(exception=error).error("claim {} is not {}d: an error of dra-cpu itself", ref, what)
        return f"claim {ref}: dra-cpu failed, its log says where: {type(error).__name__}"


def _require_caller(awaited: Callable[[], bool]) -> None:
    if not awaited():
        raise ClaimError("the kubelet has given the call up, and nothing is done for it; it tries again")


def _decision(node: Node, claim: Claim, online: CPUSet, awaited: Callable[[], bool]) -> Decide:
    def decide(claims: Mapping[str, ClaimRecord]) -> ClaimRecord:
        _require_caller(awaited)
        if record := claims.get(claim.uid):
            confirm(record, claim)
            return record
        choice = choose(node, claim, claims, online)
        return ClaimRecord(
            uid=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            pod_uids=claim.pod_uids,
            cpus=CPUSet.union(device.cpus for device in choice.devices),
            preparation=secrets.token_hex(16),
            prepared_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            devices=choice.devices,
            options=choice.options,
            pod_claim_name=claim.pod_claim_name,
        )

    return decide


def _answer(record: ClaimRecord, with_metadata: Iterable[str]) -> Prepared:
    whole = qualified(claim_device_name(record.uid))
    to_come = set(with_metadata)
    devices = []
    for device, name in zip(record.devices, device_names(record), strict=True):
        # The kubelet reports health under a device's first ID.
        ids = [qualified(name), whole]
        if (request := base_request(device.request)) in to_come:
            to_come.remove(request)
            ids.append(cdi_id(record.uid, request))
        devices.append(PreparedDevice(device.request, device.pool, device.device, tuple(ids), device.share_id))
    return tuple(devices)


def _devices(record: ClaimRecord) -> str:
    return ", ".join(dict.fromkeys(device.device for device in record.devices))


class _ClaimLocks:
    """Lets calls that name the same claim follow one another."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: set[str] = set()

    @contextlib.contextmanager
    def held(self, uids: Iterable[str], deadline: float) -> Iterator[None]:
        """All of them at once, so that no two calls can wait for each other; raises ClaimError at the deadline."""
        wanted = set(uids)
        with self._changed:
            left = deadline - time.monotonic()
            if not self._changed.wait_for(lambda: self._busy.isdisjoint(wanted), max(left, 0)):
                raise ClaimError("an earlier call for it is still at work; the kubelet tries again")
            self._busy |= wanted
        try:
            yield
        finally:
            with self._changed:
                self._busy -= wanted
                self._changed.notify_all()

"""Reads the claims of one call of the kubelet, several at a time.

The call's own thread reads too, so that no call waits for the reads of another (fault K4): the threads that help are
few and shared, and may all be kept by claims that are slow to read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from dra.claims import Claim, ClaimError, ClaimRef, ClaimSource, parse_claim

# A pod has few claims; this many reads at once keep an API server no busier than the kubelet's own do.
HELPERS = 7
# Why a claim is refused at the end.
STOPS = "dra-cpu stops; the kubelet tries again"


class ClaimReads:
    """Reads claims from `source`; may be used by any number of threads."""

    def __init__(self, source: ClaimSource) -> None:
        self._source = source
        self._stopped = threading.Event()
        self._helpers = ThreadPoolExecutor(HELPERS, thread_name_prefix="claims")

    def stop(self) -> None:
        """Begin no more reads: what isn't read yet is refused."""
        self._stopped.set()

    def read(self, refs: Sequence[ClaimRef], deadline: float) -> dict[str, Claim | Exception]:
        """Each claim, or why it can't be had, by UID in the order of `refs`; `deadline`: time.monotonic seconds."""
        read = self._source.reader(deadline)
        left = deque(refs)
        found: dict[str, Claim | Exception] = {}

        def work() -> None:
            while True:
                try:
                    ref = left.popleft()
                except IndexError:
                    return
                found[ref.uid] = ClaimError(STOPS) if self._stopped.is_set() else _claim(read, ref)

        helpers = [self._helpers.submit(work) for _ in range(min(len(refs) - 1, HELPERS))]
        work()
        for helper in helpers:
            if not helper.cancel():
                helper.result()
        return {ref.uid: found[ref.uid] for ref in refs}


def _claim(read: Callable[[ClaimRef], object], ref: ClaimRef) -> Claim | Exception:
    if not (ref.uid and ref.namespace and ref.name):
        return ClaimError("the request does not name a claim: UID, namespace and name are needed")
    try:
        return parse_claim(read(ref), ref.uid)
    except Exception as error:
        return error

"""The publisher: a thread that keeps on the API server what was wanted last, whatever others do there.

One round is a reconciliation (node, list, the writes that are needed) and then a watch, at rest for ever: the server
ends it after some minutes, and another one goes on where it ended. A round ends when something else is wanted, somebody
touched the slices, or a call failed; the next one comes after a delay that grows while that happens again and again.
Nothing is written before something was wanted, and nothing is deleted at the end: the kubelet does that when the driver
stays away.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Sequence

from loguru import logger

from dra.devices import Device
from dra.slices.api import ApiError, ExpiredError, SliceApi, Watch, WatchEvent
from dra.slices.pace import Backoff, Clock, Repairs
from dra.slices.pool import Pool, UnpublishableError, Wanted

# Delays in seconds: the first, and the limit.
_FAILED = (0.5, 60.0)
# With the jitter half a minute: so late has its way, at the most, who is left alone with the slices.
_REPAIR = (1.0, 24.0)
# Rounds follow one another no sooner, whatever is wanted how often.
_SHORTEST_ROUND = 1.0
# A watch that ends sooner than this was cut off, and not by the server's own time limit of minutes.
_SHORTEST_WATCH = 30.0
# What the server did not take is asked of it anew after this time at the soonest.
_ASK_ANEW = 3600.0
_LONGEST_RETRY_AFTER = 300.0
# A request under way may last longer; it is left to end with the process.
_STOP_LIMIT = 2.0


class Publisher:
    """Publishes the devices of one node, in a pool that has its name. All methods may be called by any thread."""

    def __init__(self, api: SliceApi, node: str, clock: Clock | None = None) -> None:
        self._api = api
        self._clock = clock or Clock()
        self._pool = Pool(api, node)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of what follows
        self._wanted: Wanted | None = None
        self._published: Wanted | None = None  # what the last reconciliation that came to its end was for
        self._poked = False
        self._watch: Watch | None = None
        self._wake = threading.Event()  # something is wanted, or it is the end
        self._stopped = threading.Event()
        # What the publisher's thread alone uses.
        self._failed = Backoff(*_FAILED, self._clock)
        self._cut_off = Backoff(*_FAILED, self._clock)
        self._repairs = Repairs(*_REPAIR, self._clock)
        self._problems: dict[str, str] = {}
        self._began = -_SHORTEST_ROUND
        self._asked_anew = 0.0

    @property
    def published(self) -> bool:
        """Whether the server has what is wanted, as far as is known: not while it was last seen without, nor before.

        An API server that is away changes nothing of it.
        """
        with self._lock:
            return self._wanted is not None and self._published == self._wanted and self._pool.is_complete

    @property
    def problem(self) -> str | None:
        """What stands in the way now, or what the API server did not take; None when all is well."""
        return "; ".join(tuple(self._problems.values())) or None

    def want(self, devices: Sequence[Device], node_allocatable_mapping: bool = False) -> None:
        """What is to be published from now on, nothing included; the same as before costs nothing.

        `node_allocatable_mapping`: with the field of KEP-5517, which is left out where the node does not support it.
        """
        wanted = Wanted(tuple(devices), node_allocatable_mapping)
        with self._lock:
            if wanted == self._wanted:
                return
            self._wanted = wanted
        self._interrupt()

    def poke(self) -> None:
        """The kubelet registered the driver: it may have deleted the slices, and support more than before."""
        with self._lock:
            self._poked = True
        self._interrupt()

    def start(self) -> None:
        """Once; `run` in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="publisher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it at once, whatever it waits for; the slices stay. A request under way is waited for 2 s at most."""
        self._stopped.set()
        self._interrupt()
        if self._thread:
            self._thread.join(_STOP_LIMIT)

    def run(self) -> None:
        """Rounds until `stop`."""
        while not self._stopped.is_set():
            self._pause(self._round())

    def _interrupt(self) -> None:
        with self._lock:
            self._wake.set()
            watch = self._watch
        if watch:
            watch.close()

    def _pause(self, seconds: float | None) -> None:
        """Until the next round: for `seconds`, None is for ever, or until there is something to do."""
        self._clock.wait(self._wake, seconds)
        if (rest := self._began + _SHORTEST_ROUND - self._clock.now()) > 0:
            self._clock.wait(self._stopped, rest)

    def _round(self) -> float | None:
        """One reconciliation and the watches after it; the pause before the next round in seconds, None for ever."""
        wanted = self._begin()
        if wanted is None:
            return None
        try:
            resource_version = self._pool.reconcile(wanted)
        except UnpublishableError as error:
            self._tell("reconcile", str(error))
            return None
        except Exception as error:  # a bug of ours too must not end the thread: the next round may be spared it
            return self._trouble("reconcile", "ResourceSlices are not published", error, self._failed)
        self._failed.reset()
        self._tell("reconcile", "; ".join(self._pool.losses))
        with self._lock:  # who sees that it is published sees what is wrong with it, too
            self._published = wanted
        return self._follow(resource_version)

    def _begin(self) -> Wanted | None:
        with self._lock:
            wanted, poked = self._wanted, self._poked
            self._poked = False
            if wanted != self._published:
                self._published = None
            if not self._stopped.is_set():
                self._wake.clear()
        if wanted is None or self._stopped.is_set():
            return None
        self._began = self._clock.now()
        if poked:
            for each in (self._failed, self._cut_off, self._repairs):
                each.reset()
        if poked or self._began - self._asked_anew >= _ASK_ANEW:
            self._asked_anew = self._began
            self._pool.forget()
        return wanted

    def _follow(self, resource_version: str) -> float:
        """Watches until there is a reason for another round; the pause before it, in seconds."""
        while not self._wake.is_set():
            began = self._clock.now()
            try:
                with contextlib.closing(self._events(resource_version)) as events:
                    for event in events:
                        resource_version = event.manifest["metadata"]["resourceVersion"]
                        self._tell("watch", "")
                        if self._pool.is_disturbed(event):
                            return self._repairs.next()
            except Exception as error:
                lasted = self._lasted(began)
                if isinstance(error, ExpiredError):  # the next round lists; that is no trouble
                    return 0.0 if lasted else self._cut_off.next()
                return self._trouble("watch", "changes of ResourceSlices are not seen", error, self._cut_off)
            if self._wake.is_set():
                break
            if not self._lasted(began):
                return self._cut_off.next()
            self._tell("watch", "")
            if self._pool.is_degraded:
                break
        return 0.0

    def _events(self, resource_version: str) -> Generator[WatchEvent, None, None]:
        """Of one watch, which `_interrupt` ends."""
        with self._lock:
            if self._wake.is_set():
                return
            watch = self._watch = self._api.watch(resource_version)
        try:
            yield from watch  # which closes it, too, when no more of its events are wanted
        finally:
            with self._lock:
                self._watch = None

    def _lasted(self, began: float) -> bool:
        """Whether a watch was none that is cut off again and again."""
        if self._clock.now() - began < _SHORTEST_WATCH:
            return False
        self._cut_off.reset()
        return True

    def _trouble(self, where: str, what: str, error: Exception, backoff: Backoff) -> float:
        """Tells of it; the pause before the next attempt, in seconds."""
        known = isinstance(error, ApiError)
        text = f"{what}: {error}" if known else f"{what}: {type(error).__name__}: {error}"
        if not known and self._problems.get(where) != text:
            logger.opt(exception=error).error("the publisher failed, and tries again")
        self._tell(where, text)
        asked = error.retry_after or 0.0 if isinstance(error, ApiError) else 0.0
        return max(backoff.next(), min(asked, _LONGEST_RETRY_AFTER))

    def _tell(self, where: str, problem: str) -> None:
        """Keeps what is wrong, and logs it when it changes."""
        before = self._problems.get(where, "")
        if problem == before:
            return
        others = {place: text for place, text in self._problems.items() if place != where}
        self._problems = {**others, where: problem} if problem else others
        if problem:
            logger.warning("{}", problem)
        else:
            logger.info("no more: {}", before)

"""Follows the machine while dra-cpu runs: CPUs that go off line and come back change the node (features.md D9, B11).

The kernel makes no events of it for files of /sys that we could wait for, and one small file a second costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from loguru import logger

from dra.prepare.choice import Node
from dra.slices.pace import Backoff, Clock
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Topology, TopologyError

# How long a CPU may be gone before it is noticed. Prepare looks for itself.
INTERVAL = 1.0
# Between two attempts to read a machine that can't be read, in seconds: it means hundreds of files.
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 60.0
# How long `stop` waits for a look: the kernel may never answer one.
_STOP_LIMIT = 2.0
# What is told waits so long, in seconds: for the answers to those who caused it, and for what is told meanwhile.
_SETTLE = 0.05


@dataclass(frozen=True, slots=True)
class Seen:
    """The machine at one look: the node, and the CPUs that were on line.

    They may differ while the machine can't be read: the node is then that of before.
    """

    node: Node
    online: CPUSet


class NodeWatch:
    """The node as it is now; any number of threads may ask.

    `read`: the machine, or TopologyError; `node_of`: the node on it, as it is configured; `online`: the CPUs on line,
    or TopologyError. `interval`: between two looks, in seconds.
    """

    def __init__(
        self,
        read: Callable[[], Topology],
        node_of: Callable[[Topology], Node],
        online: Callable[[], CPUSet],
        interval: float = INTERVAL,
        clock: Clock | None = None,
    ) -> None:
        """Looks at the machine for the first time: raises TopologyError, or what `node_of` raises."""
        self._read = read
        self._node_of = node_of
        self._online = online
        self._interval = interval
        self._clock = clock or Clock()
        self._backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY, self._clock)
        self._read_from = 0.0  # when it may be read, after it could not be
        self._listed_at = self._clock.now()
        listed = online()  # before the machine: what changes in between is seen at the next look
        self._seen = Seen(node_of(read()), listed)
        self._behind = False  # the machine could not be read since it changed
        self._problem = ""
        self._wake = threading.Event()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def seen(self) -> Seen:
        """Node and CPUs on line of one moment."""
        return self._seen

    @property
    def node(self) -> Node:
        return self._seen.node

    @property
    def listed_at(self) -> float:
        """When the CPUs on line were listed last (time.monotonic, seconds): what is said of them is no newer."""
        return self._listed_at

    def start(self, changed: Callable[[], None], beside: Callable[[], None] = lambda: None) -> None:
        """Calls `changed` in a thread of its own, one call after the other: when the CPUs on line are others, and after
        each `told`, also one before this. `beside` is called there too, once for each look."""
        self._thread = threading.Thread(target=self._follow, args=[changed, beside], name="node-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when `changed` isn't called any more, or after 2 s."""
        self._end.set()
        self._wake.set()
        if self._thread:
            self._thread.join(_STOP_LIMIT)

    def told(self) -> None:
        """Something else that `changed` looks at is new, which then is called in a moment; returns at once."""
        self._wake.set()

    def look(self) -> bool:
        """Looks at the machine once; whether node or CPUs on line are others than before. What can't be read leaves
        all as it was and is logged once. The list is read at each look, the machine after delays that grow."""
        before = self._seen
        try:
            now = self._clock.now()
            listed = self._online()
            self._listed_at = now
            if listed != before.online:
                self._behind = True
                # The health of claims needs no more than the list, which the machine may not fit yet.
                self._seen = Seen(before.node, listed)
            if not self._behind:
                self._problem = ""
            elif now >= self._read_from:
                self._catch_up(listed)
        except TopologyError as error:
            self._complain(str(error))
        except Exception as error:  # a machine that we did not think of must not end dra-cpu, which serves with the old
            self._complain(f"{type(error).__name__}: {error}, a fault of dra-cpu itself")
        return self._seen != before

    def _catch_up(self, listed: CPUSet) -> None:
        """Reads the machine, which has changed; raises what that raises."""
        before = self._seen.node
        self._read_from = self._clock.now() + self._backoff.next()
        self._seen = Seen(self._node_of(self._read()), listed)
        self._read_from = 0.0
        self._backoff.reset()
        self._behind = False
        self._problem = ""
        self._say(before, self._seen.node)

    def _follow(self, changed: Callable[[], None], beside: Callable[[], None]) -> None:
        while True:
            told = self._wake.wait(self._interval)
            if self._end.wait(_SETTLE if told else 0):
                return
            self._wake.clear()
            beside()
            if self.look() or told:
                changed()

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            logger.warning("the machine can't be read again: {}. Devices stay as they are", problem)

    def _say(self, before: Node, now: Node) -> None:
        logger.info(
            "CPUs on line are {} now, before {}: {} devices, before {}",
            *(now.topology.online, before.topology.online, len(now.devices), len(before.devices)),
        )

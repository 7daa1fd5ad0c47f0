"""The plugin: NRI's hooks on one side, the policy on the other, and the files that they share with dra-cpu.

A hook answers from memory, one stat of the checkpoint and one read of the list of CPUs on line (those whose answer says
nothing, from memory alone). It logs, and writes owners.json, when its answer is out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from loguru import logger

from nri_cpu.checkpoint.errors import CheckpointError, CheckpointMissing
from nri_cpu.checkpoint.model import Owner
from nri_cpu.config import Config, ConfigError, parse
from nri_cpu.cpuset import CPUSet
from nri_cpu.facts import cpus, facts, pod_uid
from nri_cpu.node_files import Files
from nri_cpu.nri.hooks import HookError, Updates
from nri_cpu.nri.nri_pb2 import (
    POST_CREATE_CONTAINER,
    REMOVE_CONTAINER,
    REMOVE_POD_SANDBOX,
    STOP_POD_SANDBOX,
    Container,
    LinuxResources,
    PodSandbox,
)
from nri_cpu.nri.runtime import Runtime
from nri_cpu.policy import events
from nri_cpu.policy import state as policy
from nri_cpu.policy.claiming import owns
from nri_cpu.policy.proof import title
from nri_cpu.policy.state import Decision, State, derive, drop
from nri_cpu.topology import TopologyError

# asyncio's call_later: a delay in seconds, and what is to be done then.
Later = Callable[[float, Callable[[], None]], object]

# How long after an answer what it leaves to do is done: the next events of a container's start come at once. Seconds.
_AFTERWARDS = 0.02

# How long until owners.json is tried again when it can't be written. Seconds.
_OWNERS_RETRY = 5.0

# How long until a lock is tried again that dra-cpu looks at for a moment, and at most when it can't be had. Seconds.
_LOCK_RETRY = 0.01
_LONGEST_LOCK_RETRY = 2.0


class Plugin:
    """Hooks of NRI (nri_cpu.nri.hooks.Hooks). `later` is given what can wait until the answer is out."""

    def __init__(self, files: Files, reserved: CPUSet, later: Later) -> None:
        self._later = later
        self._in_runtime = False
        self._misconfigured = False
        self._missing = False  # the checkpoint can't be read
        self._untold: list[Callable[[], None]] = []
        self._chores_due = False
        self._runtime = "the runtime"
        self.moved: Callable[[Path], None] = lambda _: None
        """Called with the checkpoint's directory when the runtime's configuration names another one."""
        self.counts: Counter[str] = Counter()
        """Everything that people are told of, by kind (policy.state.Note)."""
        self._own_reserved = reserved
        self._start(files)

    def _start(self, files: Files) -> None:
        self._files = files
        self._owners = files.read_owners()  # as they are in the file
        self._state = derive(State(online=files.online(), reserved=self._own_reserved, owners=self._owners))
        self.follow()

    @property
    def state(self) -> State:
        return self._state

    def close(self) -> None:
        self._do_chores()
        self._files.close()

    def look(self) -> None:
        """Something may have changed in the directory of our files, which may itself be a new one: the locks that we
        hold must be those that others ask for."""
        self._files.keep_locks()
        self.follow()

    def follow(self) -> None:
        """Take in a checkpoint or a list of CPUs on line that has changed. Cheap when neither has."""
        checkpoint = None
        try:
            checkpoint = self._files.checkpoint.poll()
        except CheckpointMissing as error:
            self._miss(error, "ERROR" if self._state.claims_known else "INFO")
        except CheckpointError as error:
            self._miss(error, "ERROR")
        online = self._files.online()
        if checkpoint is None and online is self._state.online:
            return
        if checkpoint is not None and self._missing:
            self._missing = False
            self._later(0, partial(logger.info, "{} is good again", self._files.places.checkpoint))
        before = self._state
        self._state = events.follow(before, online, checkpoint)
        self._later(0, partial(self._tell_change, before, self._state))

    def _miss(self, error: CheckpointError, level: str) -> None:
        self._missing = True
        self.counts["checkpoint_unreadable"] += 1
        kept = "what it last said holds" if self._state.claims_known else "no claim is known"
        self._later(0, partial(logger.log, level, "{}; until then {}", error, kept))

    # Hooks

    def configure(self, runtime: Runtime, config: str) -> None:
        """`config`, which a runtime gives to a plugin that it has started, goes over our own file.

        One that can't be used is told and not refused: a refusal would keep the runtime itself from starting. Until it
        is right, dra-cpu is not told that we are here, so that no claim is prepared.
        """
        self._runtime = f"{runtime.name} {runtime.version}"
        self._misconfigured = False
        try:
            if config.strip():
                self._reconfigure(parse(config, "the plugin's configuration from the runtime"))
        except (ConfigError, CheckpointError, TopologyError) as error:
            self._misconfigured = True
            logger.error("{}; claims are not prepared until that is right and the runtime is restarted", error)

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> Updates:
        self.follow()
        by_id = {pod.id: pod for pod in pods}
        found = [facts(by_id.get(c.pod_sandbox_id, PodSandbox()), c) for c in containers]
        specs = {} if self._state.claims_known else self._files.read_specs()
        self._state, decision = events.synchronize(self._state, [pod_uid(pod) for pod in pods], found, specs)
        self._settle(decision)
        text = "synchronized with {}: {} pods, {} containers, {} of them with claims; shared pool {}"
        claimed, pool = len(self._state.exclusive), self._state.pool or "empty"
        self._later(0, partial(logger.info, text, self._runtime, len(pods), len(found), claimed, pool))
        return decision.updates

    def create_container(self, pod: PodSandbox, container: Container) -> tuple[CPUSet | None, Updates]:
        self._hear()
        before = self._state.owners
        self._state, decision = events.create(self._state, facts(pod, container))
        if decision.refusal:
            self._settle(decision)
            raise HookError(decision.refusal)
        made = self._state.creating[container.id].container
        if made.claims:
            self._untold.append(partial(_tell_exclusive, made, decision.adjust, before, self._state))
        self._settle(decision)
        return decision.adjust, decision.updates

    def update_container(self, pod: PodSandbox, container: Container, resources: LinuxResources) -> Updates:
        self._hear()
        requested = cpus(resources.cpu.cpus) if resources.cpu.cpus else None
        self._state, decision = events.update(self._state, facts(pod, container), requested)
        self._settle(decision)
        return decision.updates

    def stop_container(self, pod: PodSandbox, container: Container) -> Updates:
        self._hear()
        self._state, decision = events.ended(self._state, container.id)
        self._settle(decision)
        return decision.updates

    def notify(self, event: int, pod: PodSandbox, container: Container | None) -> None:
        self._state = events.heard(self._state)
        if event == POST_CREATE_CONTAINER and container is not None:
            self._state = events.created(self._state, facts(pod, container))
            self._settle(events.NO_CHANGE)
        elif event == REMOVE_CONTAINER and container is not None:
            self._state = drop(self._state, container.id)
        elif event in (STOP_POD_SANDBOX, REMOVE_POD_SANDBOX):
            removed = event == REMOVE_POD_SANDBOX
            self._state = events.pod_ended(self._state, pod_uid(pod), pod.id, removed=removed)

    def synchronized(self) -> None:
        self._in_runtime = True
        self._take_lock()

    def disconnected(self, reason: str) -> None:
        self._in_runtime = False
        self._files.synchronized.release()
        self._state = events.disconnected(self._state)

    def _reconfigure(self, config: Config) -> None:
        if config.reserved_cpus is not None:
            self._own_reserved = config.reserved_cpus
        places = self._files.places.configured(config)
        if places != self._files.places:
            directory = self._files.places.checkpoint.parent
            self._start(self._files.moved(places))
            if places.checkpoint.parent != directory:
                self.moved(places.checkpoint.parent)
        elif not self._state.claims_known:
            self._state = derive(self._state._replace(reserved=self._own_reserved))

    # What hooks have in common

    def _take_lock(self, retry: float = _LOCK_RETRY) -> None:
        """Tell dra-cpu that we are in the runtime: without that it prepares no claim."""
        if not self._in_runtime or self._misconfigured:
            return
        try:
            if self._files.synchronized.acquire():
                return
        except CheckpointError as error:
            if retry == _LOCK_RETRY:
                logger.error("{}; until then no claim is prepared", error)
        self._later(retry, partial(self._take_lock, min(2 * retry, _LONGEST_LOCK_RETRY)))

    def _hear(self) -> None:
        self.follow()
        self._state = events.heard(self._state)

    def _settle(self, decision: Decision) -> None:
        """What an answer leaves to do. owners.json waits too, since a hook does not write: owners that a crash in
        between loses are taken from the containers that the runtime lists then."""
        if decision.notes:
            self.counts.update(note.kind for note in decision.notes)
            self._untold += [partial(logger.warning, "{}", note.text) for note in decision.notes]
        if (self._untold or self._state.owners is not self._owners) and not self._chores_due:
            self._chores_due = True
            self._later(_AFTERWARDS, self._do_chores)

    def _do_chores(self) -> None:
        self._chores_due = False
        untold, self._untold = self._untold, []
        for tell in untold:
            tell()
        if self._state.owners is not self._owners:
            if self._files.write_owners(self._state.owners):
                self._owners = self._state.owners
            else:
                self._chores_due = True
                self._later(_OWNERS_RETRY, self._do_chores)

    def _tell_change(self, before: State, now: State) -> None:
        if before.pool != now.pool:
            logger.info("shared pool: {}, before: {}", now.pool or "empty", before.pool or "empty")
        if now.reserved != self._own_reserved and self._own_reserved and now.reserved != before.reserved:
            self.counts["reserved_differ"] += 1
            logger.warning(
                "reserved CPUs are {} by the checkpoint, and {} by this process's own setting, which does not count: "
                "set both alike", now.reserved or "none", self._own_reserved,
            )  # fmt: skip


def _tell_exclusive(
    container: policy.Container, cpus: CPUSet | None, before: Mapping[str, Owner], state: State
) -> None:
    """Who got which CPUs. `before`: the owners until then."""
    claims = ", ".join(title(record) if (record := state.claims.get(uid)) else uid for uid in container.claims)
    known = all(uid in before and owns(before[uid], container) for uid in container.claims)
    missing = "" if cpus == container.own else f" (off line: {container.own - state.online})"
    news = "" if known else ", as its owner"
    logger.info("{} gets CPUs {}{} of {}{}", container.title, cpus, missing, claims, news)

"""What goes to and comes from the test runtime: messages, replies, events (README.md lists them)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]  # a message of NRI in protobuf's JSON form


@dataclass(frozen=True, slots=True)
class Update:
    """One ContainerUpdate as the library handed it to the runtime. cpus is the text as it was sent."""

    container: str
    cpus: str
    ignore_failure: bool

    @classmethod
    def of(cls, message: Message) -> Update:
        cpus = message.get("linux", {}).get("resources", {}).get("cpu", {}).get("cpus", "")
        return cls(message.get("containerId", ""), cpus, message.get("ignoreFailure", False))


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a command. For events, elapsed is the time in the library and the plugins alone, in seconds."""

    op: str
    elapsed: float
    error: str | None
    adjust: Message
    updates: tuple[Update, ...]
    n_updates: int
    unknown: tuple[str, ...]  # updated containers that the runtime does not have, or does not have yet
    failed: tuple[str, ...]  # updated containers that a `break` made fail
    result: Any

    @classmethod
    def of(cls, line: Message) -> Reply:
        return cls(
            line["op"],
            line["elapsed_ns"] / 1e9,
            line.get("error"),
            line.get("adjust", {}),
            tuple(map(Update.of, line.get("updates", ()))),
            line["n_updates"],
            tuple(line.get("unknown", ())),
            tuple(line.get("failed", ())),
            line.get("result"),
        )

    @property
    def cpus(self) -> str:
        """The CPU set of the adjustment as it was sent; empty when there is none."""
        return str(self.adjust.get("linux", {}).get("resources", {}).get("cpu", {}).get("cpus", ""))

    @property
    def updated(self) -> dict[str, str]:
        """CPU set of each updated container, as it was sent."""
        return {update.container: update.cpus for update in self.updates}

    def ok(self) -> Reply:
        """This reply, if it is not an error; else raises AssertionError."""
        assert self.error is None, f"{self.op}: {self.error}"
        return self


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened without a command. Field t is the time, in nanoseconds of Unix time."""

    name: str
    fields: Message

    @property
    def updates(self) -> tuple[Update, ...]:
        return tuple(map(Update.of, self.fields.get("updates") or ()))


def pod(name: str, **fields: Any) -> Message:
    """A PodSandbox with id, name, uid and namespace."""
    return {"id": name, "name": name, "uid": f"uid-{name}", "namespace": "test", **fields}


def container(name: str, *, id_: str | None = None, env: Sequence[str] = (), **fields: Any) -> Message:
    """A Container; its id is its name unless given. CreateContainer fills in its pod."""
    return {"id": id_ or name, "name": name, "env": list(env), **fields}

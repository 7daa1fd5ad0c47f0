"""Drives the test runtime from Python: NriRuntime starts it, sends it commands and collects what it tells.

The runtime ends when its standard input does, so it never outlives the test, however that ends. Everything that waits
has a deadline and says, when it passes, what was waited for and what has happened instead.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeAlias

from tests.nri_runtime.build import NEWEST, programs
from tests.nri_runtime.lines import Event, Message, Reply

Option: TypeAlias = str | int | bool | Path

LIMIT = 20.0  # seconds; far more than anything here needs, on a machine that does ten other things


class RuntimeGone(Exception):  # noqa: N818 - what happened, not an error of the caller
    """The test runtime ended although it was not asked to."""


class NothingCame(AssertionError):  # noqa: N818 - an assertion about the peer
    """What a test waited for has not happened in time."""


class NriRuntime:
    """A container runtime without containers, over the NRI library of that version.

    Options are the program's flags with underscores (README.md): pods=110, containers=3, request_timeout="500ms",
    strict_updates=True, ... The socket lies in a directory of its own, removed at the end, unless one is named.
    """

    def __init__(self, version: str = NEWEST, *, socket: Path | None = None, **options: Option) -> None:
        self.version = version
        self._own_directory = None if socket else tempfile.mkdtemp(prefix="nri-runtime-")
        self.socket = socket or Path(self._own_directory or "", "nri.sock")
        self._process = subprocess.Popen(
            [programs(version).runtime, f"-socket={self.socket}", *flags(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._replies: dict[str, Reply] = {}
        self._next_tag = 0
        self._ended = False
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_errors, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        try:
            self.wait_event("listening")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the runtime and its plugins' connections; those that it launched are killed."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # it may be dead, with a command of ours unread
            self._process.stdin.close()
        try:
            self._process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(LIMIT)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream
            stream.close()
        if self._own_directory:
            shutil.rmtree(self._own_directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    # Commands

    def send(self, op: str, *, limit: float = LIMIT, **fields: Any) -> Reply:
        """Carry out a command and return its reply, which may be an error; raises NothingCame after `limit` seconds."""
        return self.answer(self.post(op, **fields), limit=limit)

    def post(self, op: str, **fields: Any) -> str:
        """Send a command without waiting; what it returns is for `answer`. Commands are carried out in order, those
        with async_=True beside the later ones."""
        with self._changed:
            self._next_tag += 1
            tag = f"{op} {self._next_tag}"
        command = {"op": op, "tag": tag, **{name.removesuffix("_"): _plain(value) for name, value in fields.items()}}
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeGone(self._why_it_ended()) from None
        return tag

    def answer(self, tag: str, *, limit: float = LIMIT) -> Reply:
        """The reply to a posted command; raises NothingCame when there is none after `limit` seconds."""
        self._wait(lambda: tag in self._replies, f"a reply to {tag}", limit)
        return self._replies.pop(tag)

    def create(self, pod: str | Message, container: Message, **fields: Any) -> Reply:
        """CreateContainer; the pod is added to the book first if it is a message."""
        if not isinstance(pod, str):
            self.send("RunPodSandbox", pod=pod).ok()
            pod = str(pod["id"])
        return self.send("CreateContainer", pod=pod, container=container, **fields)

    def run(self, pod: str | Message, container: Message) -> Reply:
        """Create and start a container; returns the reply to CreateContainer, which must have succeeded."""
        created = self.create(pod, container).ok()
        for op in ("PostCreateContainer", "StartContainer", "PostStartContainer"):
            self.send(op, container=container["id"]).ok()
        return created

    def stop_container(self, container: str) -> Reply:
        """Stop and remove a container; returns the reply to StopContainer."""
        stopped = self.send("StopContainer", container=container)
        self.send("RemoveContainer", container=container)
        return stopped

    def state(self) -> dict[str, str]:
        """The CPU set that the runtime was last told, by container; empty where it never was told one."""
        return {row["id"]: row["cpus"] for row in self.send("state").ok().result}

    def rows(self) -> list[dict[str, str]]:
        """The book's containers: id, pod, name, state (created, running, stopped, unknown), cpus."""
        rows: list[dict[str, str]] = self.send("state").ok().result
        return rows

    def restart(self, down: float = 0.0) -> None:
        """Go down as a runtime that ends, and come back after `down` seconds."""
        self.send("restart", ms=round(down * 1000), limit=LIMIT + down).ok()

    def stop(self) -> None:
        """Go down: no socket, no connection, plugins of its own killed."""
        self.send("stop").ok()

    def start(self) -> None:
        """Come back after stop."""
        self.send("start").ok()

    # Events

    def events(self, name: str | None = None) -> list[Event]:
        """What has happened until now, in order: all of it, or the events of that name."""
        with self._changed:
            return [event for event in self._events if name in (None, event.name)]

    def mark(self) -> int:
        """The place in the list of events where the next one comes: for `after` of the functions that wait."""
        with self._changed:
            return len(self._events)

    def wait_event(
        self, name: str, *, after: int = 0, where: Callable[[Event], bool] = lambda _: True, limit: float = LIMIT
    ) -> Event:
        """The first event of that name after the mark, for which `where` holds; raises NothingCame."""

        def found() -> Event | None:
            return next((e for e in self._events[after:] if e.name == name and where(e)), None)

        self._wait(lambda: found() is not None, f"the event {name}", limit)
        event = found()
        assert event
        return event

    def wait_synchronized(self, *, after: int = 0, limit: float = LIMIT) -> Event:
        """Wait until a plugin gets events, and return the `synchronized` that led there; raises NothingCame."""
        ready = self.wait_event("plugin_ready", after=after, where=lambda e: e.fields["synchronized"], limit=limit)
        before = self.events()
        del before[before.index(ready) :]
        return next(event for event in reversed(before) if event.name == "synchronized")

    def _wait(self, happened: Callable[[], bool], what: str, limit: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: happened() or self._ended, limit)
            if happened():
                return
            if self._ended:
                raise RuntimeGone(f"while waiting for {what}: {self._why_it_ended()}")
            told = ", ".join(_brief(e) for e in self._events[-12:]) or "nothing at all"
        raise NothingCame(f"no sign of {what} after {limit} s; the last that happened: {told}")

    def _why_it_ended(self) -> str:
        code = self._process.wait(LIMIT)
        said = "".join(self._errors).strip()[-2000:] or "without a word"
        return f"the runtime ended with exit code {code}: {said}"

    # Threads

    def _read(self, lines: IO[str]) -> None:
        for text in lines:
            line = json.loads(text)
            with self._changed:
                if "event" in line:
                    self._events.append(Event(line["event"], line))
                else:
                    self._replies[line.get("tag", "")] = Reply.of(line)
                self._changed.notify_all()
        self._threads[1].join(1)  # so that what it said at the end is there
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _read_errors(self, lines: IO[str]) -> None:
        self._errors.extend(lines)


def flags(options: Mapping[str, Option]) -> list[str]:
    """Options as flags of a Go program."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return [f"-{name.replace('_', '-')}={text}" for name, text in texts.items()]


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _brief(event: Event) -> str:
    shown = {k: v for k, v in event.fields.items() if k not in ("event", "t", "updates")}
    return f"{event.name} {json.dumps(shown)[:300]}"

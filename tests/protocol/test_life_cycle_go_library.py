"""The life cycle over NRI's own library: what containerd and CRI-O do, with versions that differ."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

import nri_cpu
from hack.wait import wait_until
from nri_cpu.cpuset import CPUSet
from nri_cpu.nri import backoff, memory
from nri_cpu.nri import connection as connection_module
from nri_cpu.nri import nri_pb2 as pb
from nri_cpu.nri.endpoint import SocketPath
from nri_cpu.nri.hooks import HookError, Updates
from nri_cpu.nri.runner import serve
from tests.nri_runtime.build import NEWEST, VERSIONS
from tests.nri_runtime.driver import LIMIT, NriRuntime
from tests.nri_runtime.lines import container, pod
from tests.protocol.conftest import StartRuntime
from tests.protocol.memory_runtime import RecordingHooks

IN_PARTS = pytest.mark.parametrize("nri_version", [v for v in VERSIONS if v != "0.6.1"], indirect=True)
ALL = CPUSet.parse("0-511")
REST = CPUSet.parse("0-1,4-511")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No collections of the whole test run's heap; back-off at a twentieth of its length."""
    monkeypatch.setattr(memory, "settle", lambda: None)
    monkeypatch.setattr(backoff, "delays", partial(backoff.delays, backoff.FIRST / 20, backoff.LONGEST / 20))


class PoolHooks(RecordingHooks):
    """Everybody shares all CPUs but 2-3, which a container named `exclusive` gets. `before` runs first in each hook."""

    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[str, None] = {}
        self.before: Callable[[str], None] = lambda name: None

    def synchronize(self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> Updates:
        super().synchronize(pods, containers)
        self.before("synchronize")
        self.shared = dict.fromkeys(c.id for c in containers if c.name != "exclusive")
        return [(ALL, list(self.shared))]

    def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> tuple[CPUSet | None, Updates]:
        super().create_container(pod, container)
        self.before(container.name)
        if container.name == "exclusive":
            return ALL - REST, [(REST, list(self.shared))]
        self.shared[container.id] = None
        return ALL, ()

    def stop_container(self, pod: pb.PodSandbox, container: pb.Container) -> Updates:
        super().stop_container(pod, container)
        self.shared.pop(container.id, None)
        return [(ALL, list(self.shared))] if container.name == "exclusive" else ()


class InThread:
    """A plugin that is served in a thread of its own, as if it were a process."""

    def __init__(self, socket: Path) -> None:
        self.hooks = PoolHooks()
        self._socket = socket
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(LIMIT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await serve(self.hooks, SocketPath(str(self._socket)), name="nri-cpu", index="10", stop=self._stop)


@pytest.fixture
def plugin(runtime: NriRuntime) -> Iterator[InThread]:
    """A plugin that the runtime has taken in."""
    with InThread(runtime.socket) as running:
        runtime.wait_synchronized()
        yield running


def test_a_node_is_synchronized_whole_and_a_stop_ends_the_connection(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(pods=110, containers=3)
    with InThread(runtime.socket) as plugin:
        synchronized = runtime.wait_synchronized()
        assert runtime.wait_event("plugin_registered").fields["plugin"] == "10-nri-cpu"
        assert (synchronized.fields["messages"], len(synchronized.updates)) == (1, 330)
        assert all(update.ignore_failure for update in synchronized.updates)
        assert set(runtime.state().values()) == {str(ALL)}
        told = (
            "0.12.5" if runtime.version == "0.12.5" else "of unknown version"
        )  # before, it follows from the runtime's
        assert plugin.hooks.asked[0] == ("configure", f"nri-runtime v0.0.0 (NRI {told})", "")
        assert [asked[0] for asked in plugin.hooks.asked[1:]] == ["synchronize", "synchronized"]
    runtime.wait_event("plugin_closed")
    assert plugin.hooks.asked[-1] == ("disconnected", "the plugin stops")


@pytest.mark.fault("N5")
@IN_PARTS
def test_a_node_over_4_mib_is_synchronized_in_parts(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(pods=110, containers=3, padding=30_000, request_timeout="20s")
    with InThread(runtime.socket) as plugin:
        synchronized = runtime.wait_synchronized()
        assert synchronized.fields["messages"] >= 3
        assert len(synchronized.updates) == 330
        [(_, pods, containers)] = plugin.hooks.named("synchronize")
        assert (len(set(pods)), len(set(containers))) == (110, 330)


@pytest.mark.fault("N4", "N5")
@pytest.mark.parametrize("nri_version", ["0.6.1"], indirect=True)
def test_a_node_over_4_mib_on_an_old_runtime_is_synchronized_once_it_has_shrunk(
    start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "REGISTRATION_TIMEOUT", 0.5)
    monkeypatch.setattr(connection_module, "SYNCHRONIZE_TIMEOUT", 0.5)
    runtime = start_runtime(pods=110, containers=3, padding=30_000, request_timeout="1s")
    with InThread(runtime.socket):
        runtime.wait_event("not_synchronized")
        runtime.send("load", make_up={"pods": 2, "containers": 2}).ok()
        assert len(runtime.wait_synchronized().updates) == 4


def test_containers_are_adjusted_and_others_updated(runtime: NriRuntime, plugin: InThread) -> None:
    runtime.run(pod("p"), container("a"))
    created = runtime.run("p", container("exclusive"))
    assert (created.cpus, created.updated) == ("2-3", {"a": str(REST)})
    assert runtime.state() == {"a": str(REST), "exclusive": "2-3"}
    assert runtime.stop_container("exclusive").updated == {"a": str(ALL)}


def test_every_event_that_is_asked_for_arrives(runtime: NriRuntime, plugin: InThread) -> None:
    runtime.run(pod("p"), container("c"))
    runtime.send("UpdateContainer", container="c", resources={"cpu": {"cpus": "7"}}).ok()
    runtime.stop_container("c")
    for op in ("StopPodSandbox", "RemovePodSandbox"):
        runtime.send(op, pod="p").ok()
    assert plugin.hooks.asked[3:] == [
        ("create_container", "p", "c"),
        ("notify", pb.POST_CREATE_CONTAINER, "p", "c"),
        ("update_container", "p", "c", "7"),
        ("stop_container", "p", "c"),
        ("notify", pb.REMOVE_CONTAINER, "p", "c"),
        ("notify", pb.STOP_POD_SANDBOX, "p", None),
        ("notify", pb.REMOVE_POD_SANDBOX, "p", None),
    ]


@pytest.mark.parametrize(
    ("error", "text"),
    [(HookError("the claim has an owner"), "the claim has an owner"), (KeyError("x"), "CreateContainer failed")],
)
def test_a_refused_container_is_not_created_and_the_next_one_is(
    runtime: NriRuntime, plugin: InThread, error: Exception, text: str
) -> None:
    plugin.hooks.answers["create_container"] = error
    assert text in (runtime.create(pod("p"), container("no")).error or "")
    del plugin.hooks.answers["create_container"]
    assert runtime.run("p", container("yes")).cpus == str(ALL)
    assert runtime.state() == {"yes": str(ALL)}
    assert runtime.events("plugin_closed") == []


def test_errors_of_what_has_happened_do_not_reach_the_runtime(runtime: NriRuntime, plugin: InThread) -> None:
    runtime.run(pod("p"), container("c"))
    plugin.hooks.answers |= {"stop_container": HookError("no"), "notify": RuntimeError("no")}
    runtime.send("StopContainer", container="c").ok()
    runtime.send("RemoveContainer", container="c").ok()
    runtime.send("StopPodSandbox", pod="p").ok()


def test_answers_of_every_size_arrive_and_one_over_4_mib_is_an_error(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(request_timeout="20s")
    ids = [f"{number:100000}" for number in range(42)]  # the runtime doesn't know them, which is no error
    with InThread(runtime.socket) as plugin:
        runtime.wait_synchronized()
        for count in (0, 1, 20, 41):
            plugin.hooks.shared = dict.fromkeys(ids[:count])
            created = runtime.run(pod(f"p{count}"), container("exclusive", id_=f"e{count}"))
            assert created.n_updates == count
        plugin.hooks.shared = dict.fromkeys(ids)
        assert "4194304" in (runtime.create(pod("q"), container("exclusive", id_="f")).error or "")
        assert runtime.run("q", container("c")).cpus == str(ALL)


@pytest.mark.parametrize("size", [4 * MIB - 1, 4 * MIB])
def test_requests_up_to_4_mib_arrive(start_runtime: StartRuntime, size: int) -> None:
    runtime = start_runtime(request_timeout="20s")
    with InThread(runtime.socket):
        runtime.wait_synchronized()
        assert runtime.create(pod("p"), container("large"), message_bytes=size).cpus == str(ALL)


@pytest.mark.fault("R6", "N7", "N8")
def test_six_restarts_of_the_runtime_are_followed(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(pods=2, containers=2)
    with InThread(runtime.socket) as plugin:
        runtime.wait_synchronized()
        for restart in range(1, 7):
            mark = runtime.mark()
            runtime.restart()
            assert runtime.wait_synchronized(after=mark).fields["containers"] == 4
            assert len(plugin.hooks.named("disconnected")) == restart
            runtime.run(pod(f"p{restart}"), container(f"c{restart}"))
            runtime.stop_container(f"c{restart}")


@pytest.mark.fault("R6")
def test_twenty_seconds_without_a_socket_at_a_twentieth_are_waited_out(runtime: NriRuntime, plugin: InThread) -> None:
    mark = runtime.mark()
    runtime.restart(down=20 / 20)
    runtime.wait_synchronized(after=mark)
    assert runtime.run(pod("p"), container("c")).cpus == str(ALL)


@pytest.mark.fault("N3", "R6")
def test_a_hook_that_takes_too_long_costs_one_connection(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(request_timeout="500ms")
    with InThread(runtime.socket) as plugin:
        runtime.wait_synchronized()
        mark = runtime.mark()
        go_on = threading.Event()
        plugin.hooks.before = lambda name: None if name != "slow" else _wait(go_on)
        assert runtime.create(pod("p"), container("slow")).cpus == ""
        runtime.wait_event("plugin_closed", after=mark)
        go_on.set()
        runtime.wait_synchronized(after=mark)
        assert runtime.state() == {"slow": str(ALL)}
        assert runtime.run("p", container("next")).cpus == str(ALL)


@pytest.mark.fault("N4", "R6")
def test_a_synchronize_that_takes_too_long_is_done_again(start_runtime: StartRuntime) -> None:
    """Before NRI 0.7 the runtime keeps the connection, and would never ask anything again."""
    runtime = start_runtime(pods=1, containers=1, request_timeout="500ms")
    times = iter([1.0])
    with InThread(runtime.socket) as plugin:
        plugin.hooks.before = lambda name: time.sleep(next(times, 0)) if name == "synchronize" else None
        runtime.wait_event("not_synchronized")
        runtime.wait_synchronized()
        wait_until("the second, good one", lambda: plugin.hooks.asked[-1] == ("synchronized",))
        assert len(plugin.hooks.named("synchronized")) == 1


@pytest.mark.fault("R6")
def test_a_synchronize_that_fails_is_done_again(runtime: NriRuntime) -> None:
    failures = iter([HookError("not yet"), ValueError("oops")])

    def fail(name: str) -> None:
        if name == "synchronize" and (error := next(failures, None)):
            raise error

    with InThread(runtime.socket) as plugin:
        plugin.hooks.before = fail
        runtime.wait_synchronized()
        assert len(plugin.hooks.named("synchronize")) in (1, 2, 3)  # the thread may have been faster than the test
        assert len(plugin.hooks.named("disconnected")) == len(plugin.hooks.named("synchronize")) - 1


LAUNCHED = """#!{python}
import asyncio, os, sys
sys.path.insert(0, {root!r})
from nri_cpu.nri.endpoint import InheritedFd
from nri_cpu.nri.runner import serve
from nri_cpu.cpuset import CPUSet

class Hooks:
    def configure(self, runtime, config):
        self.cpus = CPUSet.parse(config)
    def synchronize(self, pods, containers):
        return [(self.cpus, [c.id for c in containers])]
    def create_container(self, pod, container):
        return self.cpus, ()
    def stop_container(self, pod, container):
        return ()
    def notify(self, event, pod, container): ...
    def synchronized(self): ...
    def disconnected(self, reason): ...

os.environ["NRI_PLUGIN_SOCKET"] == "3" or exit("not launched as expected")
asyncio.run(serve(Hooks(), InheritedFd(3), name=os.environ["NRI_PLUGIN_NAME"], index=os.environ["NRI_PLUGIN_IDX"],
                  stop=asyncio.Event()))
"""


def test_a_plugin_that_the_runtime_starts_serves_it_over_the_inherited_descriptor(
    start_runtime: StartRuntime, tmp_path: Path
) -> None:
    plugins, configuration = tmp_path / "plugins", tmp_path / "conf.d"
    plugins.mkdir()
    configuration.mkdir()
    program = plugins / "10-launched"
    program.write_text(LAUNCHED.format(python=sys.executable, root=str(Path(nri_cpu.__file__).parents[1])))
    program.chmod(0o755)
    (configuration / "launched.conf").write_text("5-6\n")
    runtime = start_runtime(pods=1, containers=2, plugin_path=plugins, plugin_config_path=configuration)
    ready = runtime.wait_event("plugin_ready")
    assert ready.fields["plugin"] == "10-launched"
    assert runtime.run(pod("p"), container("c")).cpus == "5-6"
    before_0_7 = runtime.version == "0.6.1"  # does not synchronize what it has started
    assert len(runtime.events("synchronized")) == (0 if before_0_7 else 1)


def test_an_event_that_comes_unread_together_with_the_end_is_no_harm(runtime: NriRuntime, plugin: InThread) -> None:
    mark = runtime.mark()
    for number in range(20):
        runtime.post("RunPodSandbox", pod=pod(f"p{number}"), async_=True)
    runtime.restart()
    runtime.wait_synchronized(after=mark)


def test_the_newest_library_is_among_the_tested() -> None:
    assert NEWEST in VERSIONS


def _wait(go_on: threading.Event) -> None:
    assert go_on.wait(LIMIT)

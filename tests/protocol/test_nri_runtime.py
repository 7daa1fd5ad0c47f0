"""The test runtime is what it says: the library's own behaviour, shown with a plugin over the library's own stub.

What differs from one version of NRI to the next is stated here, so that tests of nri-cpu can rely on it.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from hack.wait import wait_until
from tests.nri_runtime.build import programs
from tests.nri_runtime.driver import NothingCame, NriRuntime, RuntimeGone
from tests.nri_runtime.lines import Update, container, pod
from tests.nri_runtime.plugins import floor
from tests.protocol.conftest import StartRuntime

ALL = "0-511"
CLAIM = "DRA_CPUSET_00000000-0000-0000-0000-000000000001=2-3"
REST = "0-1,4-511"
MIB = 1 << 20


def test_says_which_libraries_it_is_built_with(runtime: NriRuntime) -> None:
    (ready,) = runtime.events("ready")
    assert ready.fields["libraries"]["nri"] == f"v{runtime.version}"


def test_gives_a_plugin_all_pods_and_containers_at_synchronize(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(pods=110, containers=3)
    with floor(runtime):
        synchronized = runtime.wait_synchronized()
        assert (synchronized.fields["pods"], synchronized.fields["containers"]) == (110, 330)
        assert synchronized.fields["messages"] == 1
        assert len(synchronized.updates) == 330
        assert set(runtime.state().values()) == {ALL}


def test_relays_events_and_keeps_its_book_as_a_runtime_does(runtime: NriRuntime) -> None:
    with floor(runtime):
        runtime.wait_synchronized()
        assert runtime.run(pod("p"), container("shared")).cpus == ALL
        created = runtime.run("p", container("exclusive", env=[CLAIM]))
        assert created.cpus == "2-3"
        assert created.updates == (Update("shared", REST, True),)
        assert created.elapsed > 0
        assert runtime.state() == {"shared": REST, "exclusive": "2-3"}

        runtime.send("StopContainer", container="exclusive").ok()
        assert [row["state"] for row in runtime.rows()] == ["running", "stopped"]
        runtime.send("RemoveContainer", container="exclusive").ok()
        assert runtime.state() == {"shared": REST}
        for op in ("StopPodSandbox", "RemovePodSandbox"):
            runtime.send(op, pod="p").ok()


@pytest.mark.parametrize(
    ("resources", "cpus"), [({"cpu": {"shares": {"value": 512}}}, ALL), ({"cpu": {"cpus": "7"}}, "7"), ({}, ALL)]
)
def test_an_update_changes_only_what_it_names(runtime: NriRuntime, resources: dict[str, object], cpus: str) -> None:
    with floor(runtime):
        runtime.wait_synchronized()
        runtime.run(pod("p"), container("c"))
        runtime.send("UpdateContainer", container="c", resources=resources).ok()
        assert runtime.state() == {"c": cpus}


def test_six_restarts_synchronize_anew(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(pods=2, containers=2)
    with floor(runtime, reconnect=True):
        runtime.wait_synchronized()
        for _ in range(6):
            mark = runtime.mark()
            runtime.restart()
            assert runtime.wait_synchronized(after=mark).fields["containers"] == 4
            names = [event.name for event in runtime.events()[mark:]]
            assert names.index("plugin_closed") < names.index("down") < names.index("listening")


def test_down_means_no_socket_and_no_event(runtime: NriRuntime) -> None:
    with floor(runtime) as plugin:
        runtime.wait_synchronized()
        runtime.stop()
        assert plugin.wait() == 0
        assert not runtime.socket.exists()
        assert runtime.send("RunPodSandbox", pod=pod("p")).error == "the runtime is down"
        runtime.start()
        runtime.send("RunPodSandbox", pod=pod("p")).ok()


def test_a_plugin_that_answers_late_is_dropped_and_the_container_created_without_it(
    start_runtime: StartRuntime,
) -> None:
    runtime = start_runtime(request_timeout="200ms")
    with floor(runtime, trouble=True, slow="2s") as plugin:
        runtime.wait_synchronized()
        created = runtime.create(pod("p"), container("slow"))
        assert created.error is None
        assert created.cpus == ""
        runtime.wait_event("plugin_closed")
        assert plugin.wait() == 0
        assert runtime.state() == {"slow": ""}


def test_a_plugin_that_refuses_stays_and_the_container_is_not_created(runtime: NriRuntime) -> None:
    with floor(runtime, trouble=True):
        runtime.wait_synchronized()
        refused = runtime.create(pod("p"), container("refused"))
        assert "refused, as its name asked for" in (refused.error or "")
        assert runtime.state() == {}
        assert runtime.run("p", container("welcome")).cpus == ALL


@pytest.mark.parametrize("trouble", ["self", "twice"])
def test_updates_that_conflict_fail_the_create(runtime: NriRuntime, trouble: str) -> None:
    with floor(runtime, trouble=True):
        runtime.wait_synchronized()
        assert runtime.create(pod("p"), container(trouble)).error
        assert runtime.state() == {}


def test_an_empty_cpuset_leaves_a_container_as_it_is(runtime: NriRuntime) -> None:
    with floor(runtime, trouble=True):
        runtime.wait_synchronized()
        runtime.run(pod("p"), container("shared"))
        created = runtime.run("p", container("empty", env=[CLAIM], linux={"resources": {"cpu": {"cpus": "5"}}}))
        assert [update.cpus for update in created.updates] == [""]
        assert runtime.state() == {"shared": ALL, "empty": "5"}


def test_an_update_of_a_container_that_is_not_yet_stored_is_lost(runtime: NriRuntime) -> None:
    with floor(runtime):
        runtime.wait_synchronized()
        runtime.create(pod("p"), container("late"), hold=True).ok()
        assert runtime.state() == {}
        created = runtime.run("p", container("exclusive", env=[CLAIM]))
        assert (created.updated, created.unknown) == ({"late": REST}, ("late",))
        runtime.send("PostCreateContainer", container="late").ok()
        assert runtime.state() == {"exclusive": "2-3", "late": ALL}


@pytest.mark.parametrize(
    ("name", "strict", "fails"), [("fine", True, False), ("strict", True, True), ("strict", False, False)]
)
def test_updates_that_fail_matter_only_where_the_runtime_is_strict_and_the_plugin_too(
    start_runtime: StartRuntime, name: str, strict: bool, fails: bool
) -> None:
    runtime = start_runtime(strict_updates=strict)
    with floor(runtime, trouble=True):
        runtime.wait_synchronized()
        for shared in ("a", "b"):
            runtime.run(pod("p"), container(shared))
        runtime.send("break", ids=["a"]).ok()
        created = runtime.create("p", container(name, env=[CLAIM]))
        assert (created.error is not None, created.failed) == (fails, ("a",))
        assert runtime.state() == {"a": ALL, "b": REST} | ({} if fails else {name: "2-3"})


def test_unsolicited_updates_are_applied_and_the_failed_ones_are_an_error_to_the_plugin(runtime: NriRuntime) -> None:
    with floor(runtime, trouble=True) as plugin:
        runtime.wait_synchronized()
        for name in ("a", "b"):
            runtime.run(pod("p"), container(name))
        runtime.send("break", ids=["a"]).ok()
        runtime.run("p", container("exclusive", env=[CLAIM]))
        runtime.create("p", container("unasked")).ok()
        runtime.send("StartContainer", container="unasked").ok()
        nowhere = runtime.wait_event("unsolicited", where=lambda e: e.fields["unknown"] == ["nowhere"])
        assert nowhere.updates == (Update("nowhere", "0", False),)
        sent = {update.container for event in runtime.events("unsolicited") for update in event.updates}
        assert sent == {"a", "b", "unasked", "nowhere"}
        assert runtime.state() == {"a": ALL, "b": REST, "exclusive": "2-3", "unasked": REST}
        # The list of failed ones never arrives: an error carries no payload.
        wait_until("the plugin's complaint", lambda: "unasked update of a" in plugin.said)
        assert "0 in the list of failed ones" in plugin.said


def test_a_launched_plugin_is_given_its_configuration_and_since_0_7_synchronized(
    nri_version: str, start_runtime: StartRuntime, tmp_path: Path
) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "10-launched").symlink_to(programs(nri_version).floor)
    runtime = start_runtime(pods=1, containers=2, plugin_path=plugins)
    ready = runtime.wait_event("plugin_ready")
    assert ready.fields["plugin"] == "10-launched"
    assert ready.fields["synchronized"] is (nri_version != "0.6.1")
    assert len(runtime.events("synchronized")) == (nri_version != "0.6.1")
    assert runtime.run(pod("p"), container("c")).cpus == ALL


def test_a_failed_synchronize_leaves_a_zombie_before_0_7_and_closes_the_connection_since(
    nri_version: str, start_runtime: StartRuntime
) -> None:
    runtime = start_runtime()
    runtime.send("load", pods=[pod("p")], containers=[container("fail-sync", podSandboxId="p")]).ok()
    with floor(runtime, trouble=True) as plugin:
        runtime.wait_event("not_synchronized")
        if nri_version == "0.6.1":
            assert runtime.create("p", container("c")).cpus == ""
            assert plugin.process.poll() is None
        else:
            runtime.wait_event("plugin_closed")
            assert plugin.wait() == 0
        assert runtime.events("plugin_ready") == []


def test_a_slow_synchronize_is_a_failed_one(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(request_timeout="200ms")
    runtime.send("load", pods=[pod("p")], containers=[container("slow-sync", podSandboxId="p")]).ok()
    with floor(runtime, trouble=True, slow="2s"):
        runtime.wait_event("not_synchronized")
        assert runtime.events("plugin_ready") == []


def test_state_over_4_mib_comes_in_parts_since_0_7_and_not_at_all_before(
    nri_version: str, start_runtime: StartRuntime
) -> None:
    patience = "300ms" if nri_version == "0.6.1" else "20s"
    runtime = start_runtime(pods=110, containers=3, padding=30_000, request_timeout=patience)
    with floor(runtime):
        if nri_version == "0.6.1":
            assert "deadline exceeded" in runtime.wait_event("not_synchronized").fields["message"]
            return
        synchronized = runtime.wait_synchronized()
        assert synchronized.fields["messages"] >= 3
        assert len(synchronized.updates) == 330


@pytest.mark.parametrize("over", [0, 1])
def test_a_request_of_exactly_4_mib_arrives_and_a_larger_one_fails(
    nri_version: str, start_runtime: StartRuntime, over: int
) -> None:
    runtime = start_runtime(request_timeout="1s" if over else "20s")
    with floor(runtime):
        runtime.wait_synchronized()
        created = runtime.create(pod("p"), container("large"), message_bytes=4 * MIB + over)
        if not over:
            assert (created.error, created.cpus) == (None, ALL)
        elif nri_version == "0.6.1":
            # Its ttrpc sends what the other side can't take.
            assert (created.error, created.cpus) == (None, "")
            runtime.wait_event("plugin_closed")
        else:
            assert "exceed" in (created.error or "")


def test_garbage_on_the_socket_costs_one_connection(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(registration_timeout="300ms")
    with socket.socket(socket.AF_UNIX) as noise:
        noise.connect(str(runtime.socket))
        noise.sendall(b"\xff" * 4096)
        with floor(runtime):
            runtime.wait_synchronized()
            assert runtime.run(pod("p"), container("c")).cpus == ALL


def test_later_commands_can_overtake_one_that_is_asynchronous(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(request_timeout="1h")
    with floor(runtime, trouble=True, slow="1h") as plugin:
        runtime.wait_synchronized()
        runtime.send("RunPodSandbox", pod=pod("p")).ok()
        slow = runtime.post("CreateContainer", pod="p", container=container("slow"), async_=True)
        assert runtime.state() == {}
        plugin.kill()
        assert runtime.answer(slow).ok().cpus == ""
        assert runtime.state() == {"slow": ""}


@pytest.mark.parametrize(
    "command",
    [
        {"op": "DanceContainer", "pod": pod("p")},
        {"op": "CreateContainer", "pod": "unknown", "container": container("c")},
        {"op": "CreateContainer", "pod": pod("p")},
        {"op": "StartContainer", "container": "unknown"},
        {"op": "CreateContainer", "pod": pod("p"), "container": {"id": ["not a string"]}},
        {"op": "RunPodSandbox"},
        {"op": "start"},
        {"op": "bench", "cycle": "lunar", "n": 1},
    ],
)
def test_commands_that_make_no_sense_get_an_error_and_nothing_ends(
    runtime: NriRuntime, command: dict[str, object]
) -> None:
    assert runtime.send(**command).error  # type: ignore[arg-type]
    assert runtime.state() == {}


def test_waiting_has_an_end_and_says_what_happened_instead(runtime: NriRuntime) -> None:
    with pytest.raises(NothingCame, match=r"the event plugin_ready.*listening"):
        runtime.wait_event("plugin_ready", limit=0.05)


def test_a_runtime_that_dies_is_told_from_one_that_is_slow(runtime: NriRuntime) -> None:
    os.kill(runtime.pid, signal.SIGKILL)
    with pytest.raises(RuntimeGone, match="exit code -9"):
        runtime.send("state")


def test_nothing_is_left_of_a_runtime() -> None:
    with NriRuntime() as runtime:
        assert stat.S_ISSOCK(runtime.socket.stat().st_mode)
        pid, directory = runtime.pid, runtime.socket.parent
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

"""nri-cpu as a process in a real NRI library: claims pin, everybody else is kept off, through every restart."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from hack.wait import wait_until
from nri_cpu.checkpoint.model import ClaimRecord
from tests.nri_runtime.build import NEWEST
from tests.nri_runtime.driver import NriRuntime
from tests.nri_runtime.lines import Message, Reply, container, pod
from tests.nri_runtime.plugins import Plugin
from tests.protocol.conftest import StartRuntime
from tests.protocol.our_plugin import Machine
from tests.unit.policy.desk import env_of, record

SHARED = "1-7,9-15"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def user(name: str, *claims: ClaimRecord, id_: str | None = None) -> Message:
    env = [entry for claim in claims for entry in env_of(claim)]
    return container(name, id_=id_, env=["PATH=/bin", "SECRET=hunter2", *env])


def run(runtime: NriRuntime, pod_name: str, what: Message) -> Reply:
    return runtime.run(pod(pod_name), what)


@pytest.mark.fault("A19", "N3")
def test_a_node_of_110_pods_and_330_containers_is_set_right(machine: Machine, start_runtime: StartRuntime) -> None:
    machine.prepare(record("A", "0,8"))
    runtime = start_runtime(pods=110, containers=3)
    with machine.join(runtime):
        assert set(runtime.state().values()) == {SHARED}


@pytest.mark.fault("A20", "A22", "R10")
def test_the_life_of_a_claim(machine: Machine, runtime: NriRuntime) -> None:
    with machine.join(runtime) as plugin:
        before = run(runtime, "shared-1", user("s1"))
        claim = machine.prepare(record("A", "0,8"))
        first = run(runtime, "p1", user("c1", claim))
        assert (before.cpus, first.cpus, first.updated) == ("0-15", "0,8", {"s1": SHARED})
        assert run(runtime, "shared-2", user("s2")).cpus == SHARED

        for thief in (user("c2", claim), container("c3", env=[f"DRA_CPUSET_{claim.uid}=0,8"])):
            error = runtime.create(pod("p2"), thief).error
            assert error
            assert claim.uid in error
        assert runtime.state() == {"s1": SHARED, "c1": "0,8", "s2": SHARED}

        runtime.stop_container("c1")
        again = run(runtime, "p1", user("c1", claim, id_="c1-again"))
        assert (again.cpus, again.updates) == ("0,8", ())

        runtime.stop_container("c1-again")
        machine.unprepare(claim)
        grown = run(runtime, "shared-3", user("s3"))
        assert (grown.cpus, grown.updated) == ("0-15", {"s1": "0-15", "s2": "0-15"})
        assert claim.preparation not in plugin.said
        assert "hunter2" not in plugin.said


@pytest.mark.fault("B2", "R3", "A17")
@pytest.mark.parametrize("how", ["killed", "terminated"])
def test_a_plugin_that_comes_back_finds_every_container_in_its_place(
    machine: Machine, runtime: NriRuntime, how: str
) -> None:
    claim, idle = machine.prepare(record("A", "0,8")), machine.prepare(record("B", "1,9"))
    with machine.join(runtime) as plugin:
        run(runtime, "p1", user("c1", claim))
        run(runtime, "p2", user("s1"))
        wait_until("the owner in owners.json", lambda: claim.uid in owners(machine))
        if how == "terminated":
            assert plugin.terminate() == 0
    wait_until("the lock to be free", lambda: not machine.plugin_is_in_the_runtime)
    unpinned = run(runtime, "p3", user("s2"))
    assert unpinned.cpus == ""
    with machine.join(runtime):
        assert runtime.state() == {"c1": "0,8", "s1": "2-7,10-15", "s2": "2-7,10-15"}
        assert runtime.create(pod("p4"), user("thief", claim)).error
        assert run(runtime, "p5", user("c2", idle)).cpus == "1,9"


@pytest.mark.fault("R3", "R6", "N7")
def test_six_restarts_of_the_runtime_lose_nothing(machine: Machine, runtime: NriRuntime) -> None:
    claim = machine.prepare(record("A", "0,8"))
    with machine.join(runtime) as plugin:
        run(runtime, "p1", user("c1", claim))
        run(runtime, "p2", user("s1"))
        for _ in range(6):
            mark = runtime.mark()
            runtime.restart(0.05)
            runtime.wait_synchronized(after=mark)
            assert runtime.state() == {"c1": "0,8", "s1": SHARED}
        assert runtime.create(pod("p3"), user("thief", claim)).error
        assert plugin.terminate() == 0


@pytest.mark.fault("R6")
def test_a_runtime_that_is_away_for_twenty_seconds_finds_its_plugin_again(machine: Machine) -> None:
    claim = machine.prepare(record("A", "0,8"))
    with NriRuntime(NEWEST) as runtime, machine.join(runtime) as plugin:
        run(runtime, "p1", user("c1", claim))
        run(runtime, "p2", user("s1"))
        mark = runtime.mark()
        runtime.restart(20)
        runtime.wait_synchronized(after=mark, limit=30)
        assert runtime.state() == {"c1": "0,8", "s1": SHARED}
        assert plugin.said.count("no socket at") <= 2, "a reason is told when it changes, not at every try"


@pytest.mark.fault("H1")
def test_a_cpu_that_goes_off_line_leaves_every_cpuset_at_the_next_event(machine: Machine, runtime: NriRuntime) -> None:
    claim = machine.prepare(record("A", "0,8"))
    with machine.join(runtime):
        run(runtime, "p1", user("c1", claim))
        run(runtime, "p2", user("s1"))
        machine.set_online("0-6,8-15")
        assert run(runtime, "p3", user("s2")).cpus == "1-6,9-15"
        assert runtime.state()["s1"] == "1-6,9-15"


def owners(machine: Machine) -> dict[str, dict[str, str]]:
    file = machine.checkpoint.with_name("owners.json")
    if not file.exists():
        return {}
    found: dict[str, dict[str, str]] = json.loads(json.loads(file.read_text())["data"])["owners"]
    return found


def test_owners_are_on_record_for_whoever_looks(machine: Machine, runtime: NriRuntime) -> None:
    claim = machine.prepare(record("A", "0,8"))
    with machine.join(runtime):
        run(runtime, "p1", {**user("c1", claim), "linux": {"cgroupsPath": "/kubepods/pod-p1/c1"}})
        wait_until("the owner in owners.json", lambda: claim.uid in owners(machine))
    owner = owners(machine)[claim.uid]
    assert (owner["podName"], owner["container"], owner["cgroup"]) == ("p1", "c1", "/kubepods/pod-p1/c1")
    assert machine.checkpoint.with_name("owners.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.fault("S2", "B2")
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "foreign"])
def test_a_checkpoint_that_goes_bad_is_told_once_and_changes_nothing(
    machine: Machine, runtime: NriRuntime, damage: str
) -> None:
    claim = machine.prepare(record("A", "0,8"))
    raw = machine.checkpoint.read_bytes()
    with machine.join(runtime) as plugin:
        run(runtime, "p1", user("c1", claim))
        machine.checkpoint.unlink()
        if damage != "gone":
            bad = {"empty": b"", "cut": raw[:-20], "foreign": b'{"apiVersion": "v1"}'}[damage]
            machine.checkpoint.write_bytes(bad)
        assert run(runtime, "p2", user("s1")).cpus == SHARED
        runtime.stop_container("c1")
        assert run(runtime, "p1", user("c1", claim, id_="c1-again")).cpus == "0,8"
        wait_until("a word about the checkpoint", lambda: str(machine.checkpoint) in plugin.said)
        machine.unprepare(claim)
        runtime.stop_container("c1-again")
        assert run(runtime, "p3", user("s2")).cpus == "0-15"
        assert sum("checkpoint" in line and " ERROR " in line for line in plugin.said.splitlines()) <= 2


@pytest.mark.fault("S2")
def test_a_plugin_that_starts_without_a_checkpoint_shares_what_it_knows_to_be_free(
    machine: Machine, runtime: NriRuntime
) -> None:
    machine.checkpoint.unlink()
    with machine.join(runtime):
        assert run(runtime, "p1", user("s1")).cpus == "0-15"
        error = runtime.create(pod("p2"), user("c1", record("A", "0,8"))).error
        assert error
        assert "checkpoint" in error


@pytest.mark.fault("K9", "F-15")
def test_a_second_plugin_stands_by_and_takes_over_when_the_first_ends(machine: Machine, runtime: NriRuntime) -> None:
    claim = machine.prepare(record("A", "0,8"))
    with machine.join(runtime) as first, machine.start_plugin(runtime.socket) as second:
        wait_until("the second to stand by", lambda: "standby" in second.said)
        assert [event.name for event in runtime.events("plugin_registered")] == ["plugin_registered"]
        run(runtime, "p1", user("c1", claim))
        mark = runtime.mark()
        assert first.terminate() == 0
        runtime.wait_synchronized(after=mark)
        assert run(runtime, "p2", user("s1")).cpus == SHARED
        assert second.terminate() == 0


@pytest.mark.fault("A24", "A25")
@pytest.mark.parametrize("state", ["connected", "without a runtime", "standby"])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_exit_code_0(
    machine: Machine, runtime: NriRuntime, state: str, sent: signal.Signals
) -> None:
    with machine.join(runtime) as connected:
        if state == "connected":
            connected.process.send_signal(sent)
            assert connected.wait() == 0
            assert not machine.plugin_is_in_the_runtime
            return
        if state == "without a runtime":
            assert connected.terminate() == 0
        with machine.start_plugin(machine.root / "no.sock") as other:
            sign = "no socket" if state == "without a runtime" else "standby"
            wait_until(sign, lambda: sign in other.said)
            other.process.send_signal(sent)
            assert other.wait() == 0
            assert "Traceback" not in other.said


def launcher(machine: Machine, folder: Path, name: str = "10-nri-cpu") -> Path:
    """The plugin as a runtime's administrator installs it. The runtime gives it an environment of three variables."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    root = Path(__file__).resolve().parents[2]
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\nsys.path.insert(0, {str(root)!r})\n"
        f"os.environ['HOST_ROOT'] = {str(machine.root)!r}\n"
        "import nri_cpu.cli as cli\nfrom pathlib import Path\n"
        f"cli.LOG_OF_LAUNCHED = Path({str(machine.root / 'launched.log')!r})\n"
        f"sys.exit(cli.main(['run', '--checkpoint', {str(machine.root / 'own' / 'checkpoint.json')!r}]))\n"
    )
    script.chmod(0o755)
    return script


def test_a_plugin_that_the_runtime_starts_works_the_same_with_the_runtimes_configuration(
    machine: Machine, start_runtime: StartRuntime, tmp_path: Path
) -> None:
    claim = machine.prepare(record("A", "0,8"))
    launcher(machine, tmp_path / "plugins")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10-nri-cpu.conf").write_text(
        f"apiVersion: v1alpha1\ncheckpoint: {machine.checkpoint}\nreservedCPUs: ''\n"
    )
    runtime = start_runtime(plugin_path=tmp_path / "plugins", plugin_config_path=tmp_path / "conf.d")
    wait_until("synchronized.lock", lambda: machine.plugin_is_in_the_runtime)
    assert run(runtime, "p1", user("c1", claim)).cpus == "0,8"
    assert run(runtime, "p2", user("s1")).cpus == SHARED
    assert runtime.create(pod("p3"), user("thief", claim)).error
    log = machine.root / "launched.log"
    wait_until("a word about the refusal", lambda: "default/claim-A" in log.read_text())


@pytest.mark.parametrize(
    ("text", "told"),
    [("reservedCpus: 0-1\n", "reservedCPUs"), ("checkpoint: /proc/nowhere/checkpoint.json\n", "/proc/nowhere")],
)
def test_a_launched_plugin_with_a_wrong_configuration_keeps_the_runtime_up_and_claims_unprepared(
    machine: Machine, start_runtime: StartRuntime, tmp_path: Path, text: str, told: str
) -> None:
    launcher(machine, tmp_path / "plugins")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10-nri-cpu.conf").write_text(text)
    runtime = start_runtime(plugin_path=tmp_path / "plugins", plugin_config_path=tmp_path / "conf.d")
    assert run(runtime, "p1", user("s1")).cpus == "0-15"
    assert told in (machine.root / "launched.log").read_text()
    assert not machine.plugin_is_in_the_runtime


def test_a_plugin_that_the_runtime_starts_beside_another_one_leaves_everything_alone(
    machine: Machine, start_runtime: StartRuntime, tmp_path: Path, runtime: NriRuntime
) -> None:
    launcher(machine, tmp_path / "plugins")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10-nri-cpu.conf").write_text(f"checkpoint: {machine.checkpoint}\n")
    (machine.root / "own").symlink_to(machine.checkpoint.parent)
    with machine.join(runtime):
        other = start_runtime(plugin_path=tmp_path / "plugins", plugin_config_path=tmp_path / "conf.d")
        log = machine.root / "launched.log"
        wait_until("a word about the other one", lambda: log.exists() and "another nri-cpu holds" in log.read_text())
        assert run(other, "p1", user("s1")).cpus == ""
        assert run(runtime, "p1", user("s1")).cpus == "0-15"


def test_a_launched_plugin_that_cannot_run_leaves_its_reason_in_its_log(machine: Machine, tmp_path: Path) -> None:
    script = launcher(machine, tmp_path / "plugins")
    (machine.root / "sys/devices/system/cpu/online").unlink()
    environment = {"NRI_PLUGIN_NAME": "nri-cpu", "NRI_PLUGIN_IDX": "10", "NRI_PLUGIN_SOCKET": "3"}
    with Plugin([script], environment) as plugin:
        assert plugin.wait() == 1
    assert "nri-cpu ends: " in (machine.root / "launched.log").read_text()


def test_a_protobuf_that_is_slow_is_told(machine: Machine) -> None:
    environment = {**machine.environment(), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    with Plugin(machine.command("--socket", str(machine.root / "no.sock")), environment) as plugin:
        wait_until("a word about protobuf", lambda: "protobuf runs" in plugin.said)
    with machine.start_plugin(machine.root / "no.sock") as plugin:
        wait_until("a word about the socket", lambda: "no socket" in plugin.said)
        assert "protobuf runs" not in plugin.said

"""Everything that can restart under running pods does: kubelet, runtime, both processes, the machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from hack.node.access import Box, Daemon
from hack.wait import wait_until
from tests.cluster.manifests import simple
from tests.cluster.scenario import LIMIT, Scenario, container_status, is_ready

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


# Runs in the box: a line for each write to the cpusets of some processes' cgroups, whoever writes, with what was there
# then.
WATCHER = """
import sys
from inotify_simple import INotify, flags

inotify, files = INotify(), {}
for pid in sys.argv[1:]:
    path = open(f"/proc/{pid}/cgroup").read().strip().split(":", 2)[2]
    file = f"/sys/fs/cgroup{path}/cpuset.cpus"
    files[inotify.add_watch(file, flags.MODIFY)] = (pid, file)
print("watching", flush=True)
while True:
    for event in inotify.read():
        pid, file = files[event.wd]
        print(pid, open(file).read().strip(), flush=True)
"""


@contextmanager
def watched(box: Box, pids: Sequence[int]) -> Iterator[Daemon]:
    """Inside the context the watcher runs, and its output has what was written."""
    box.write("/run/watcher.py", WATCHER)
    box.run("rm -f /var/log/watcher.log")
    watcher = box.daemon("watcher", ["python3", "/run/watcher.py", *map(str, pids)])
    try:
        wait_until("the watcher", lambda: watcher.output().startswith("watching\n"), LIMIT)
        yield watcher
    finally:
        watcher.kill()


def writes(watcher: Daemon) -> list[str]:
    return watcher.output().splitlines()[1:]


@pytest.mark.fault("A19", "B2", "K7", "R3", "R6", "N7")
def test_no_restart_of_a_process_moves_or_disturbs_a_container(scenario: Scenario) -> None:
    scenario.run(*simple("app", 2), *simple("other", 3))
    pids = [scenario.pid(name) for name in ("app", "other")]
    scenario.check()
    own = {f"{pid} {scenario.cpus(name)}" for pid, name in zip(pids, ("app", "other"), strict=True)}
    with watched(scenario.box, pids) as watcher:
        for restart in (restart_product, restart_containerd, restart_kubelet):
            restart(scenario)
            facts = scenario.check()  # against the one before: no claim has other CPUs now
            assert len(facts.exclusive) == 2
            assert [scenario.pid(name) for name in ("app", "other")] == pids
            assert set(writes(watcher)) <= own, restart  # said again at most
        before = len(writes(watcher))
        place = f"/sys/fs/cgroup$(cut -d: -f3 /proc/{pids[0]}/cgroup)/cpuset.cpus"
        scenario.box.run(f"file={place}; cpus=$(cat $file) && echo $cpus > $file")
        wait_until("the watcher's word of a write", lambda: len(writes(watcher)) > before, LIMIT)
    scenario.run(*simple("late", 4))
    assert scenario.first("late") == scenario.cpus("late")
    assert len(scenario.check().exclusive) == 3


def restart_product(scenario: Scenario) -> None:
    for daemon in (scenario.product.plugin, scenario.product.companion):
        assert daemon
        daemon.kill()
    scenario.product.start_plugin()
    scenario.stage.companion()


def restart_containerd(scenario: Scenario) -> None:
    scenario.box.restart_containerd(signal.SIGKILL)
    scenario.product.wait_for_plugin()


def restart_kubelet(scenario: Scenario) -> None:
    scenario.node.stop_kubelet()
    scenario.node.start_kubelet()
    scenario.node.wait_ready()


@pytest.mark.fault("A3", "K10")
def test_a_restarted_kubelet_prepares_a_claim_again_and_nothing_changes(scenario: Scenario) -> None:
    scenario.run(*simple("app", 2))
    before = scenario.record("app")
    uid = scenario.pod("app")["metadata"]["uid"]
    scenario.node.stop_kubelet(signal.SIGKILL)
    # It comes again with a new sandbox, and finds the CDI spec gone as well.
    with scenario.box.cri() as cri:
        cri.stop_sandbox(next(one.id for one in cri.sandboxes() if one.metadata.uid == uid))
    scenario.box.run(f"rm /var/run/cdi/*{before.uid}*")
    scenario.node.start_kubelet()
    scenario.node.wait_ready()
    scenario.pod("app", lambda now: container_status(now, "main")["restartCount"] > 0 and is_ready(now))
    assert scenario.first("app") == before.cpus
    assert scenario.record("app") == before
    scenario.check()


@pytest.mark.fault("K1", "B2")
def test_after_a_reboot_pods_run_on_the_cpus_that_their_claims_had(scenario: Scenario) -> None:
    scenario.run(*simple("app", 2), *simple("other", 3))
    before = {name: scenario.record(name) for name in ("app", "other")}
    scenario.check()
    scenario.box.reboot()
    scenario.node.start_kubelet()
    scenario.product.start_plugin()
    scenario.stage.companion()
    scenario.node.wait_ready()
    for name, record in before.items():
        scenario.pod(name, lambda now: container_status(now, "main")["restartCount"] > 0 and is_ready(now))
        assert scenario.record(name) == record
        assert scenario.first(name) == record.cpus
    assert len(scenario.check().exclusive) == 2

"""dra-cpu is killed before each step of Prepare and of Unprepare, and before the answer; the next one goes on from
there."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from hack.node.access import Daemon
from hack.node.errors import NodeError
from hack.wait import wait_until
from tests.cluster import kill_at
from tests.cluster.manifests import Manifest, claim, request, simple
from tests.cluster.scenario import LIMIT, Scenario

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PROGRAM = "/opt/kill_at.py"

# All steps of a claim's first Prepare, and of its Unprepare. The third is the first that finds the record written.
CHECKPOINT = ("fsync checkpoint.json", "rename checkpoint.json", "fsync dra-cpu")
SPEC, METADATA, MOUNT = "dra.k8s.io-cpu_claim-UID.json", "UID_cpus.json", "dra.cpu_metadata_UID_cpus.json"
PREPARE = (*CHECKPOINT, f"rename {SPEC}", f"rename {METADATA}", f"rename {MOUNT}", "answer")
UNPREPARE = (f"unlink {SPEC}", f"unlink {MOUNT}", f"unlink {METADATA}", *CHECKPOINT, "answer")


def allocated(scenario: Scenario, name: str, cpus: int) -> str:
    """A claim that is allocated as the scheduler would, to nobody: no kubelet calls for it. Its UID."""
    scenario.apply(claim(name, request(cpus=cpus)))
    result = {
        "request": "cpus",
        "driver": "dra.cpu",
        "pool": scenario.node.name,
        "device": "cpudevnuma001",
        "consumedCapacity": {"dra.cpu/cpu": str(cpus)},
        "shareID": str(uuid.uuid4()),
    }
    status: Manifest = {"status": {"allocation": {"devices": {"results": [result]}}}}
    scenario.api.patch("ResourceClaim", name, status, scenario.namespace, sub="status")
    return scenario.uid(name)


def doomed(scenario: Scenario, order: str = "") -> Daemon:
    """End dra-cpu, and start one that kills itself by order; returns when it is registered."""
    scenario.box.push([Path(kill_at.__file__)], "/opt")
    daemon = scenario.stage.companion(program=("python3", "-I", PROGRAM))
    if order:
        scenario.box.write(kill_at.ORDER, order)
    return daemon


def ended(daemon: Daemon) -> None:
    wait_until("the end of dra-cpu by its own hand", lambda: not daemon.alive(), LIMIT)


def killed(scenario: Scenario, daemon: Daemon, order: str, act: Callable[[], object]) -> str:
    """Do `act`, whose order it is to be killed; the step before which it was, with UID for the claim's."""
    scenario.box.write(kill_at.ORDER, order)
    with pytest.raises(NodeError, match="has not answered"):
        act()
    ended(daemon)
    return scenario.box.read(kill_at.TOLD).decode()


@pytest.mark.fault("S1", "K11", "K12")
def test_killed_at_each_step_of_prepare_it_has_a_whole_claim_or_none(scenario: Scenario) -> None:
    uid = allocated(scenario, "app", 2)
    daemon = doomed(scenario)
    steps = []
    for number in range(1, len(PREPARE) + 1):
        steps.append(killed(scenario, daemon, f"prepare:{number}", lambda: scenario.prepare("app")))
        daemon = doomed(scenario)
        # Before any other call: the start alone must have put everything in order.
        record = scenario.check(by_hand={uid}).records.get(uid)
        assert (record is not None) == (number >= 3), steps
        scenario.prepare("app")
        again = scenario.check(by_hand={uid}).records[uid]
        assert record in (None, again)
        scenario.unprepare("app")
    assert tuple(step.replace(uid, "UID") for step in steps) == PREPARE
    # It has no further step.
    scenario.box.write(kill_at.ORDER, f"prepare:{len(PREPARE) + 1}")
    scenario.prepare("app")
    assert daemon.alive()
    scenario.check(by_hand={uid})


@pytest.mark.fault("S1", "K11", "K12")
def test_killed_at_each_step_of_unprepare_the_claim_is_whole_or_gone(scenario: Scenario) -> None:
    uid = allocated(scenario, "app", 2)
    daemon = doomed(scenario)
    steps = []
    for number in range(1, len(UNPREPARE) + 1):
        scenario.prepare("app")
        before = scenario.product.checkpoint().claims[uid]
        steps.append(killed(scenario, daemon, f"unprepare:{number}", lambda: scenario.unprepare("app")))
        daemon = doomed(scenario)
        record = scenario.check(by_hand={uid}).records.get(uid)
        assert record == (before if number <= UNPREPARE.index("rename checkpoint.json") + 1 else None), steps
        scenario.unprepare("app")
        assert not scenario.check(by_hand={uid}).records
    assert tuple(step.replace(uid, "UID") for step in steps) == UNPREPARE
    scenario.prepare("app")
    scenario.box.write(kill_at.ORDER, f"unprepare:{len(UNPREPARE) + 1}")
    scenario.unprepare("app")
    assert daemon.alive()
    scenario.check()


@pytest.mark.fault("S1", "K11", "K12")
@pytest.mark.parametrize(
    ("prepare", "unprepare"),
    [(f"rename {SPEC}", f"unlink {MOUNT}"), ("answer", "answer")],
    ids=["half", "before-the-answer"],
)
def test_killed_while_the_kubelet_calls_it_is_called_again_and_the_pod_runs_and_ends(
    scenario: Scenario, prepare: str, unprepare: str
) -> None:
    daemon = doomed(scenario, f"prepare:{PREPARE.index(prepare) + 1}")
    scenario.apply(*simple("app", 2))
    ended(daemon)
    record = scenario.record("app")
    assert scenario.box.read(kill_at.TOLD).decode().replace(record.uid, "UID") == prepare
    scenario.stage.companion()
    scenario.ready("app")
    assert scenario.record("app") == record
    assert scenario.first("app") == record.cpus
    scenario.check()
    daemon = doomed(scenario, f"unprepare:{UNPREPARE.index(unprepare) + 1}")
    scenario.api.delete("Pod", "app", scenario.namespace)
    ended(daemon)
    assert scenario.box.read(kill_at.TOLD).decode().replace(record.uid, "UID") == unprepare
    assert scenario.prepared("app") == (unprepare != "answer")
    scenario.stage.companion()
    scenario.api.wait_gone("Pod", "app", scenario.namespace, limit=LIMIT)
    assert not scenario.prepared("app")
    scenario.check()

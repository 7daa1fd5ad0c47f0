"""dra-cpu is killed before each step of Prepare and Unprepare that changes a file; the next one goes on from there."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from hack.node.access import Daemon
from hack.node.errors import NodeError
from hack.wait import wait_until
from nri_cpu.checkpoint.model import ClaimRecord
from tests.cluster import kill_at
from tests.cluster.manifests import Manifest, claim, request, simple
from tests.cluster.scenario import LIMIT, Scenario

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PROGRAM = "/opt/kill_at.py"


def allocated(scenario: Scenario, name: str, cpus: int) -> None:
    """A claim that is allocated as the scheduler would, to nobody: no kubelet calls for it."""
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


def doomed(scenario: Scenario, step: str) -> Daemon:
    """End dra-cpu, and start one that kills itself at this step; returns when it is registered."""
    return scenario.stage.companion(program=("python3", "-I", PROGRAM), env={"KILL_AT": step})


def killed_at_each(scenario: Scenario, call: str, act: Callable[[], None], holds: Callable[[], None]) -> int:
    """Do `act` until it is not killed any more before a `call`, each time by another dra-cpu; after each kill and the
    next start `holds` must hold. How often it was killed."""
    for number in itertools.count(1):
        daemon = doomed(scenario, f"{call}:{number}")
        holds()
        try:
            act()
        except NodeError:
            wait_until("the end of dra-cpu by its own hand", lambda daemon=daemon: not daemon.alive(), LIMIT)  # type: ignore[misc]
            continue
        return number - 1
    raise AssertionError("never reached")


@pytest.mark.fault("S1", "K11", "K12")
def test_killed_at_each_step_of_prepare_and_unprepare_it_goes_on_where_it_was(scenario: Scenario) -> None:
    scenario.box.push([Path(kill_at.__file__)], "/opt")
    allocated(scenario, "app", 2)
    uid = scenario.uid("app")
    prepared: list[ClaimRecord] = []

    def once_prepared_it_stays() -> None:
        now = scenario.product.checkpoint().claims.get(uid)
        prepared.extend([now] if now and not prepared else [])
        assert now == (prepared[0] if prepared else None)

    assert killed_at_each(scenario, "rename", lambda: scenario.prepare("app"), once_prepared_it_stays) >= 2
    assert prepared
    assert killed_at_each(scenario, "unlink", lambda: scenario.unprepare("app"), once_prepared_it_stays) >= 2
    assert uid not in scenario.product.checkpoint().claims
    scenario.stage.companion()
    scenario.check()


@pytest.mark.fault("S1", "K11", "K12")
def test_killed_while_the_kubelet_calls_it_is_called_again_and_the_pod_runs_and_ends(scenario: Scenario) -> None:
    scenario.box.push([Path(kill_at.__file__)], "/opt")
    daemon = doomed(scenario, "rename:2")  # the checkpoint is written, the CDI spec is not
    scenario.apply(*simple("app", 2))
    wait_until("the end of dra-cpu by its own hand", lambda: not daemon.alive(), LIMIT)
    record = scenario.record("app")
    scenario.stage.companion()
    scenario.ready("app")
    assert scenario.record("app") == record
    assert scenario.first("app") == record.cpus
    scenario.check()
    daemon = doomed(scenario, "rename:1")  # the CDI spec is gone, the record is not
    scenario.api.delete("Pod", "app", scenario.namespace)
    wait_until("the end of dra-cpu by its own hand", lambda: not daemon.alive(), LIMIT)
    assert scenario.record("app") == record
    scenario.stage.companion()
    scenario.api.wait_gone("Pod", "app", scenario.namespace, limit=LIMIT)
    assert not scenario.prepared("app")
    scenario.check()

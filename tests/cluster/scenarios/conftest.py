"""Scenarios share one cluster, with the product on its node; each has a namespace of its own, which ends with it.

After each the invariants must hold, with everything deleted and everything back as it was.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pytest

from hack.kube.cluster import Cluster
from tests.cluster.scenario import Scenario
from tests.cluster.stage import Stage

_NAME_LIMIT = 40  # of a DNS label, 63, with room for what follows


@pytest.fixture(scope="session")
def stage(cluster: Cluster) -> Stage:
    """The session's cluster with the product on it as it is configured by default."""
    stage = Stage(cluster)
    stage.set_up()
    return stage


@pytest.fixture
def scenario(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """A namespace on it."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:_NAME_LIMIT].strip("-")
    scenario = Scenario(stage, f"{name}-{secrets.token_hex(2)}")
    yield scenario
    stage.restore()
    scenario.clear()
    facts = scenario.check()
    assert (facts.records, facts.kubelet) == ({}, frozenset()), "claims are left over"

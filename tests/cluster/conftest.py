"""Clusters in a box for tests: one for the whole run, and ones of a test's own; what they are made from is kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from hack.kube import cluster as kube
from hack.kube.cluster import Cluster
from hack.kube.node import KubeNode
from hack.node.errors import NodeError
from hack.wait import wait_until

StartCluster = Callable[..., Cluster]

CLUSTERS = pytest.StashKey[list[Cluster]]()
NOT_BUILT = pytest.StashKey[NodeError | TimeoutError]()

_NUMBERS = itertools.count(1)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build programs and frozen machine here, where no test's time limit runs."""
    wanted = any(item.get_closest_marker("cluster") for item in session.items)
    if not wanted or session.config.option.collectonly:
        return
    session.config.stash[CLUSTERS] = []
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        kube.prepare(report=terminal.write_line if terminal else lambda _line: None)
    except (NodeError, TimeoutError) as error:
        session.config.stash[NOT_BUILT] = error


def _start(config: pytest.Config, **wanted: Any) -> Cluster:
    if error := config.stash.get(NOT_BUILT, None):
        raise error
    started = kube.start(**wanted)
    config.stash[CLUSTERS].append(started)
    return started


def _end(config: pytest.Config, cluster: Cluster) -> None:
    config.stash[CLUSTERS].remove(cluster)
    cluster.close()


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The cluster that tests share: one node, feature gates as Kubernetes has them. Tests leave it as it was."""
    started = _start(pytestconfig)
    yield started
    _end(pytestconfig, started)


@pytest.fixture
def kube_node(cluster: Cluster) -> KubeNode:
    """The node of the cluster that tests share."""
    return cluster.nodes[0]


@pytest.fixture
def start_cluster(pytestconfig: pytest.Config) -> Iterator[StartCluster]:
    """Starts clusters (arguments of hack.kube.cluster.start) that end with the test."""
    started: list[Cluster] = []

    def start(**wanted: Any) -> Cluster:
        started.append(_start(pytestconfig, **wanted))
        return started[-1]

    yield start
    for each in started:
        _end(pytestconfig, each)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own in the shared cluster, ready for pods; its pods and claims end with the test."""
    name = f"test-{next(_NUMBERS)}"
    create_namespace(cluster, name)
    yield name
    remove_namespace(cluster, name)


def create_namespace(cluster: Cluster, name: str) -> None:
    """Create a namespace and wait for what pods in it need."""
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster.api.wait("ServiceAccount", "default", lambda _account: True, name)
    cluster.api.wait("ConfigMap", "kube-root-ca.crt", lambda _certificate: True, name)


def remove_namespace(cluster: Cluster, name: str) -> None:
    """Delete a namespace and wait until nothing in it occupies a node."""
    cluster.api.delete("Namespace", name)
    # From now on nobody can make new ones; its own controller would take seconds to get to them.
    cluster.api.delete_all("Pod", name)

    def empty() -> bool:
        return not cluster.api.list("Pod", name) and not cluster.api.list("ResourceClaim", name)

    wait_until(f"the end of pods and claims of {name}", empty, 120, pause=0.1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of all logs of the clusters with a test that failed."""
    report = yield
    if report.failed and item.get_closest_marker("cluster"):
        for cluster in item.config.stash.get(CLUSTERS, []):
            report.sections += list(cluster.logs().items())
    return report

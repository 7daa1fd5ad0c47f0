"""Nodes in a box for tests: copies of one frozen machine, made before the first test and kept outside the work tree."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pytest

from hack.node import launch
from hack.node.errors import NodeError
from hack.node.machine import Machine
from hack.node.node import Node

StartNode = Callable[..., Node]

NODES = pytest.StashKey[list[Node]]()
NO_SNAPSHOT = pytest.StashKey[NodeError | TimeoutError]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the frozen machine here, where no test's time limit runs; of several workers one does, the others wait."""
    wanted = any(item.get_closest_marker("node") for item in session.items)
    if not wanted or session.config.option.collectonly:
        return
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        launch.snapshot(Machine(), terminal.write_line if terminal else lambda _line: None)
    except (NodeError, TimeoutError) as error:
        session.config.stash[NO_SNAPSHOT] = error


@pytest.fixture
def start_node(request: pytest.FixtureRequest) -> Iterator[StartNode]:
    """Starts nodes (arguments of launch.start) that end with the test."""
    if error := request.config.stash.get(NO_SNAPSHOT, None):
        raise error
    nodes: list[Node] = []
    request.node.stash[NODES] = nodes

    def start(machine: Machine | None = None, *, cold: bool = False) -> Node:
        nodes.append(launch.start(machine, cold=cold))
        return nodes[-1]

    yield start
    for node in nodes:
        node.close()


@pytest.fixture
def node(start_node: StartNode) -> Node:
    """A node of 16 CPUs (Machine's defaults) of the test's own, containerd up, nothing of the project in it."""
    return start_node()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of all logs of its nodes with a test that failed."""
    report = yield
    if report.failed and report.when != "teardown":
        for node in item.stash.get(NODES, []):
            report.sections += [(f"{node.directory.name}: {name}", text) for name, text in node.logs().items()]
    return report

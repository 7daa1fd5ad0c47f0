"""A cluster in a box as a whole: the control plane and its nodes, up together and down together."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from hack.go import BuildError as GoBuildError
from hack.kube import build, deploy
from hack.kube.api import Api
from hack.kube.certificates import Wanted
from hack.kube.control_plane import ADMIN, SERVER_IN_THE_BOX, ControlPlane
from hack.kube.egress import Egress
from hack.kube.image import variant
from hack.kube.node import KubeNode, network
from hack.node import launch
from hack.node.errors import BuildError, ChannelError
from hack.node.machine import Machine
from hack.node.tools import TO_CERTIFY, TO_RUN, Report, need, silent


class Cluster:
    """A running cluster; a context manager that ends it. `directory` has kubeconfig files, certificates and logs.

    Every method raises subclasses of NodeError, and those that wait TimeoutError.
    """

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._parts = ExitStack()
        self.programs = control_plane.programs
        self.directory = control_plane.directory
        self.kubeconfig = control_plane.kubeconfig(ADMIN)
        self.api: Api = control_plane.api()
        self.nodes: list[KubeNode] = []
        self._parts.callback(control_plane.close)
        self._parts.enter_context(Egress(control_plane.egress, self._connect))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything and remove the directory. May be called twice."""
        self._parts.close()

    def check_alive(self) -> None:
        """Raise ClusterError or QemuError when a program of the control plane or a box has ended by itself."""
        self._control_plane.check_alive()
        for node in self.nodes:
            node.box.check_alive()

    def stop_apiserver(self) -> None:
        """Kill the API server: connections are refused, and those there were end."""
        self._control_plane.stop_apiserver()

    def start_apiserver(self) -> None:
        """Start it again, at the same port; returns when it is ready."""
        self._control_plane.start_apiserver()
        self._control_plane.wait_ready(self.api)

    def service_account_kubeconfig(self, namespace: str, name: str, node: str = "") -> str:
        """A kubeconfig as the boxes need it, with a new token of a service account that is there; the token is bound to
        `node`, if any."""
        token = deploy.token(self.api, namespace, name, node)
        return self._control_plane.authority.kubeconfig_with_token(SERVER_IN_THE_BOX, token)

    def logs(self, last: int = 20_000) -> dict[str, str]:
        """The ends of all logs, of the control plane and of all nodes, by name; never raises NodeError."""
        found = self._control_plane.logs(last)
        for node in self.nodes:
            found |= {f"{node.name}: {name}": text for name, text in node.box.logs(last).items()}
        return found

    def _connect(self, host: str, port: int) -> socket.socket:
        for node in self.nodes:
            if node.name == host:
                return node.box.channel.connect(port)
        raise ChannelError(f"there is no node {host}")

    def _add_node(self, name: str, machine: Machine | None, report: Report) -> None:
        """Start a box and in it a kubelet; does not wait for the node."""
        plane = self._control_plane
        authority = plane.authority
        server = (f"DNS:{name}", "IP:127.0.0.1")
        authority.issue([Wanted(name, f"system:node:{name}", "system:nodes", server)])
        box = launch.start(machine, report=report, variant=variant(plane.programs), network=network(plane.port))
        self._parts.callback(box.close)
        node = KubeNode(name, box, self.api, plane.gates)
        node.install(
            authority.kubeconfig(SERVER_IN_THE_BOX, name),
            authority.certificate(name),
            authority.key(name),
            authority.certificate("ca"),
        )
        node.start_kubelet()
        self.nodes.append(node)

    def bring_up(self, names: Sequence[str], machine: Machine | None, report: Report) -> None:
        """Start everything, with a node for each name; `start` calls it once."""
        plane = self._control_plane
        began = time.monotonic()

        def step(text: str) -> None:
            report(f"cluster: {text} ({time.monotonic() - began:.1f} s)")

        with ThreadPoolExecutor(2) as pool:
            plane.start_storage()
            plane.start_apiserver()
            boxes = [pool.submit(self._add_node, name, machine, report) for name in names]
            plane.wait_ready(self.api)
            step("API server ready")
            plane.start_controllers()
            for box in boxes:
                box.result()
        self.nodes.sort(key=lambda node: node.name)
        step("kubelets started")
        self.api.wait("ServiceAccount", "default", lambda _account: True)
        step("controllers at work")
        for node in self.nodes:
            node.wait_ready()
        plane.check_alive()
        step("nodes ready")


def prepare(machine: Machine | None = None, report: Report = silent) -> Path:
    """Build what a cluster is made from, if need be: the programs (ten minutes), the nodes' image and a frozen machine
    (a minute); the directory of the programs. Raises subclasses of NodeError, or TimeoutError."""
    need({**TO_RUN, **TO_CERTIFY}, report)
    try:
        programs = build.programs()
    except GoBuildError as error:
        raise BuildError(str(error)) from error
    launch.snapshot(machine or Machine(), report, variant(programs))
    return programs


def start(
    gates: Mapping[str, bool] | None = None,
    nodes: int = 1,
    machine: Machine | None = None,
    report: Report = silent,
) -> Cluster:
    """Start a cluster; returns when its nodes, named node1 and on, are ready. What is missing is built first (prepare).

    `gates` are feature gates of all programs. Raises subclasses of NodeError, or TimeoutError.
    """
    with ExitStack() as parts:
        plane = ControlPlane(prepare(machine, report), gates or {})
        parts.callback(plane.close)
        cluster = Cluster(plane)
        parts.callback(cluster.close)
        cluster.bring_up([f"node{number + 1}" for number in range(nodes)], machine, report)
        parts.pop_all()  # from now on it is the caller's to close
    return cluster

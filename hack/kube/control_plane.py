"""The control plane: etcd, API server, scheduler and controller manager as processes on the loopback.

Ports are the kernel's choice: the API server shares one that this process holds, etcd speaks over a unix socket, the
others serve nothing. All state and the logs are in one directory, which goes with whoever started it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.kube.api import Api
from hack.kube.certificates import Authority, Wanted
from hack.kube.errors import ClusterError
from hack.node.kept import Kept, locked_directory
from hack.wait import wait_until

PREFIX = "nri-cpu-cluster-"

# The API server as the boxes see it: an address of QEMU's user network, which is at the same time the one that
# Kubernetes gives to its own Service, so that in-cluster credentials work on the node's network without kube-proxy.
SERVICE_RANGE = "10.0.2.96/28"
SERVICE_ADDRESS = "10.0.2.97"
SERVER_IN_THE_BOX = f"https://{SERVICE_ADDRESS}"
# Where the box's host would be, for what must not be a loopback address.
_HOST = "10.0.2.2"

ADMIN, SCHEDULER, CONTROLLER_MANAGER, KUBELET_CLIENT = "admin", "scheduler", "controller-manager", "kubelet-client"
_MASTERS = "system:masters"
_SERVER_NAMES = (
    *("DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc"),
    *("IP:127.0.0.1", f"IP:{SERVICE_ADDRESS}"),
)
_USERS = (
    Wanted("apiserver", "kube-apiserver", server=_SERVER_NAMES),
    Wanted(ADMIN, "admin", _MASTERS),
    Wanted(SCHEDULER, "system:kube-scheduler"),
    Wanted(CONTROLLER_MANAGER, "system:kube-controller-manager"),
    Wanted(KUBELET_CLIENT, "apiserver-kubelet-client", _MASTERS),
)

# Seconds; on a machine that is busy with other things.
_LIMIT = 120.0


class ControlPlane:
    """Made stopped; `close` ends it and removes its directory. Raises ClusterError, BuildError, TimeoutError.

    `egress` is the unix socket of the proxy through which the API server reaches kubelets.
    """

    def __init__(self, programs: Path, gates: Mapping[str, bool]) -> None:
        self.programs = programs
        self.gates = dict(gates)
        self.directory, self._lock = locked_directory(PREFIX)
        self._port = held_port()
        self.port: int = self._port.getsockname()[1]
        self.server = f"https://127.0.0.1:{self.port}"
        self.egress = self.directory / "egress.sock"
        self._kept: dict[str, Kept] = {}
        try:
            self.authority = self._credentials()
        except BaseException:
            self.close()
            raise

    def _credentials(self) -> Authority:
        authority = Authority(self.directory / "certificates")
        authority.issue(_USERS)
        authority.key_pair("service-account")
        for user in (ADMIN, SCHEDULER, CONTROLLER_MANAGER):
            self.kubeconfig(user).write_text(authority.kubeconfig(self.server, user))
        return authority

    def kubeconfig(self, user: str) -> Path:
        return self.directory / f"{user}.kubeconfig"

    def api(self) -> Api:
        """A client with the admin's certificate."""
        files = self.authority
        return Api(self.port, files.certificate("ca"), files.certificate(ADMIN), files.key(ADMIN))

    def start_storage(self) -> None:
        """etcd, which writes without waiting for the disk."""
        here = f"unix://{self.directory}/etcd.sock"
        # The peer's address is never used: there is no other member.
        peer = "http://127.0.0.1:0"
        self._start(
            *("etcd", "--name=box", f"--data-dir={self.directory}/etcd", "--unsafe-no-fsync", "--log-level=warn"),
            *(f"--listen-client-urls={here}", f"--advertise-client-urls={here}", f"--listen-peer-urls={peer}"),
            *(f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=box={peer}"),
            directory=self.directory,
        )

    def start_apiserver(self) -> None:
        """Returns at once; wait_ready waits."""
        files = self.authority
        egress = self.directory / "egress.json"
        egress.write_text(json.dumps(_egress(self.egress)))
        self._start(
            *("kube-apiserver", f"--etcd-servers=unix://{self.directory}/etcd.sock"),
            *("--bind-address=127.0.0.1", f"--secure-port={self.port}", "--permit-port-sharing"),
            *(f"--advertise-address={_HOST}", f"--service-cluster-ip-range={SERVICE_RANGE}"),
            f"--tls-cert-file={files.certificate('apiserver')}",
            f"--tls-private-key-file={files.key('apiserver')}",
            f"--client-ca-file={files.certificate('ca')}",
            f"--kubelet-client-certificate={files.certificate(KUBELET_CLIENT)}",
            f"--kubelet-client-key={files.key(KUBELET_CLIENT)}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={files.directory}/service-account.pub",
            f"--service-account-signing-key-file={files.key('service-account')}",
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged"),
            f"--egress-selector-config-file={egress}",
            *self._gates(),
        )

    def start_controllers(self) -> None:
        """Scheduler and controller manager; they wait for the API server by themselves."""
        for name, user in (("kube-scheduler", SCHEDULER), ("kube-controller-manager", CONTROLLER_MANAGER)):
            config = self.kubeconfig(user)
            more: Sequence[str] = ()
            if user == CONTROLLER_MANAGER:
                files = self.authority
                more = (
                    *("--use-service-account-credentials", f"--root-ca-file={files.certificate('ca')}"),
                    f"--service-account-private-key-file={files.key('service-account')}",
                    # By default it takes six seconds to get a token for each of its controllers.
                    *("--kube-api-qps=1000", "--kube-api-burst=1000"),
                )
            self._start(
                *(name, f"--kubeconfig={config}", "--secure-port=0", "--leader-elect=false"), *more, *self._gates()
            )

    def stop_apiserver(self) -> None:
        """By SIGKILL: on SIGTERM it waits for its watches to end. Connections are refused from now on."""
        self._kept.pop("kube-apiserver").close()

    def wait_ready(self, api: Api) -> None:
        """Wait until the API server says that it is ready."""
        wait_until("the API server", lambda: api.ready() or self._ended("kube-apiserver"), _LIMIT)
        self.check_alive()

    def check_alive(self) -> None:
        """Raise ClusterError when a program that was started has ended by itself."""
        for name in self._kept:
            if self._ended(name):
                raise ClusterError(f"{name} has ended: {self.log(name)[-2000:]}")

    def _ended(self, name: str) -> bool:
        return name in self._kept and self._kept[name].ended()

    def log(self, name: str) -> str:
        """What a program has said."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def logs(self, last: int = 20_000) -> dict[str, str]:
        """The ends of all logs, by file name."""
        return {path.name: path.read_text(errors="replace")[-last:] for path in sorted(self.directory.glob("*.log"))}

    def _gates(self) -> list[str]:
        gates = ",".join(f"{name}={str(on).lower()}" for name, on in self.gates.items())
        return [f"--feature-gates={gates}"] if gates else []

    def _start(self, name: str, *arguments: str, directory: Path | None = None) -> None:
        if name in self._kept:
            self._kept[name].close()
        # etcd's keeper removes everything, for it runs as long as the cluster; the others' a directory that is not.
        self._kept[name] = Kept(
            [str(self.programs / name), *arguments],
            directory=directory or self.directory / f"{name}.none",
            lock=self._lock,
            log=self.directory / f"{name}.log",
        )

    def close(self) -> None:
        """End all programs. May be called twice."""
        while self._kept:  # the last one started first, etcd and the directory last
            self._kept.popitem()[1].close()
        self._port.close()
        if self._lock >= 0:
            shutil.rmtree(self.directory, ignore_errors=True)  # still there if etcd was never started
            os.close(self._lock)
            self._lock = -1


def held_port() -> socket.socket:
    """A loopback port that only this user's programs can share: bound, so that no other gets it, but not listening."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


def _egress(proxy: Path) -> dict[str, object]:
    """EgressSelectorConfiguration: what goes to nodes goes through the proxy at a unix socket."""
    connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(proxy)}}}
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }

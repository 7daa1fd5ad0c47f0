"""hack/cluster: a cluster in a box from the command line. `hack/cluster up` holds it; other commands, elsewhere, use
it. Its nodes are boxes, in which hack/box works."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hack.go import BuildError
from hack.kube import build, control_plane, deploy
from hack.kube.cluster import Cluster, start
from hack.kube.errors import ClusterError
from hack.node import kept, launch
from hack.node.errors import NodeError
from hack.wait import wait_until

# In a cluster's directory, once it is up: the process that holds it.
_OWNER = "owner"
# The nodes' names, and the directories of their boxes.
_NODES = "nodes"
_KUBECONFIG = f"{control_plane.ADMIN}.kubeconfig"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command: 0, 1 for what failed, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        options.do(options)
    except (NodeError, BuildError, TimeoutError, OSError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hack/cluster", description=__doc__)
    parser.add_argument("--cluster", type=Path, metavar="DIR", help="the cluster, when several are up (see: list)")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    def verb(name: str, do: object, text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(do=do)
        return added

    verb("build", lambda _options: print(build.programs()), "build the programs if need be, print where they are")
    up = verb("up", _up, "start a cluster; it ends with this command, by Ctrl-C or hack/cluster down")
    up.add_argument("--nodes", type=int, default=1, metavar="N")
    up.add_argument("--gate", type=_gate, action="append", default=[], metavar="NAME=true|false", help="a feature gate")
    up.add_argument("--install", action="store_true", help="apply deploy/, start nri-cpu and dra-cpu on all nodes")
    verb("down", _down, "end the cluster that is up")
    verb("list", lambda _options: print(*_running(), sep="\n"), "the directories of the clusters that are up")
    verb("logs", _logs, "print the ends of all logs, of the control plane and of the nodes")
    kubectl = verb("kubectl", _kubectl, "run kubectl, as admin")
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _gate(text: str) -> tuple[str, bool]:
    name, _, value = text.partition("=")
    if not name or value not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=true or NAME=false")
    return name, value == "true"


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _up(options: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with start(dict(options.gate), options.nodes, report=_report) as cluster:
        if options.install:
            _install(cluster, began)
        (cluster.directory / _NODES).write_text(
            "".join(f"{node.name} {node.box.directory}\n" for node in cluster.nodes)
        )
        (cluster.directory / _OWNER).write_text(str(os.getpid()))
        print(f"the cluster is up after {time.monotonic() - began:.1f} s; hack/cluster down or Ctrl-C ends it")
        for node in cluster.nodes:
            print(f"{node.name}: hack/box --box {node.box.directory}")
        print(f"logs: {cluster.directory}", f"export KUBECONFIG={cluster.kubeconfig}", sep="\n", flush=True)
        try:
            while True:
                cluster.check_alive()
                time.sleep(1)
        except KeyboardInterrupt:
            return


def _install(cluster: Cluster, began: float) -> None:
    def step(text: str) -> None:
        _report(f"cluster: {text} ({time.monotonic() - began:.1f} s)")

    deploy.deploy(cluster.api)
    step("rights and device class applied")
    for node in cluster.nodes:
        deploy.install(cluster, node)
        node.product.start_plugin()
        step(f"{node.name}: nri-cpu is in the runtime")
        node.product.start_companion()
        step(f"{node.name}: dra-cpu serves")
    wait_until("the ResourceSlices of all nodes", lambda: _published(cluster) >= {n.name for n in cluster.nodes}, 120)


def _published(cluster: Cluster) -> set[str]:
    """The nodes that have slices."""
    return {str(each["spec"].get("nodeName")) for each in cluster.api.list("ResourceSlice")}


def _running() -> list[Path]:
    found = kept.directories(control_plane.PREFIX)
    return [path for path in found if (path / _OWNER).exists() and kept.is_kept(path)]


def _chosen(options: argparse.Namespace) -> Path:
    up = _running()
    if options.cluster:
        if options.cluster in up:
            return Path(options.cluster)
        raise ClusterError(f"no cluster is up in {options.cluster}; hack/cluster list tells where")
    if len(up) != 1:
        raise ClusterError(
            f"several clusters are up: --cluster {up[0]}, or another" if up else "no cluster is up: hack/cluster up"
        )
    return up[0]


def _down(options: argparse.Namespace) -> None:
    directory = _chosen(options)
    os.kill(int((directory / _OWNER).read_text()), signal.SIGTERM)
    wait_until(f"the end of the cluster in {directory}", lambda: not directory.exists(), 60)


def _logs(options: argparse.Namespace) -> None:
    directory = _chosen(options)
    logs = {str(path): path.read_text(errors="replace") for path in sorted(directory.glob("*.log"))}
    for line in (directory / _NODES).read_text().splitlines():
        name, box = line.split(" ", 1)
        logs |= {f"{name}: {log}": text for log, text in launch.attach(Path(box)).logs().items()}
    for name, text in logs.items():
        print(f"==> {name}", text[-20_000:], sep="\n", end="\n\n")


def _kubectl(options: argparse.Namespace) -> None:
    program = build.programs() / "kubectl"
    os.execve(
        program, ["kubectl", *options.arguments], {**os.environ, "KUBECONFIG": str(_chosen(options) / _KUBECONFIG)}
    )


if __name__ == "__main__":
    sys.exit(main())

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
from hack.kube import build, control_plane
from hack.kube.cluster import Cluster, start
from hack.kube.errors import ClusterError
from hack.node import kept
from hack.node.errors import NodeError
from hack.wait import wait_until

# In a cluster's directory: the process that holds it.
_OWNER = "owner"
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
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    def verb(name: str, do: object, text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(do=do)
        return added

    verb("build", lambda _options: print(build.programs()), "build the programs if need be, print where they are")
    up = verb("up", _up, "start a cluster; it ends with this command, by Ctrl-C or hack/cluster down")
    up.add_argument("--nodes", type=int, default=1, metavar="N")
    up.add_argument("--gate", type=_gate, action="append", default=[], metavar="NAME=true|false", help="a feature gate")
    up.add_argument("--install", action="store_true", help="put the project in, and start both processes")
    verb("down", _down, "end the cluster that is up")
    verb("list", lambda _options: print(*_running(), sep="\n"), "the directories of the clusters that are up")
    verb("logs", _logs, "print the ends of the control plane's logs")
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
            _install(cluster)
        (cluster.directory / _OWNER).write_text(str(os.getpid()))
        print(f"the cluster is up after {time.monotonic() - began:.1f} s; hack/cluster down or Ctrl-C ends it")
        print(f"logs: {cluster.directory}", f"export KUBECONFIG={cluster.kubeconfig}", sep="\n", flush=True)
        try:
            while True:
                cluster.check_alive()
                time.sleep(1)
        except KeyboardInterrupt:
            return


def _install(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.box.install_project()
        node.product.start_companion()
        node.product.start_plugin()


def _running() -> list[Path]:
    found = kept.directories(control_plane.PREFIX)
    return [path for path in found if (path / _OWNER).exists() and kept.is_kept(path)]


def _the_one() -> Path:
    up = _running()
    if len(up) != 1:
        raise ClusterError(
            "no cluster is up: hack/cluster up" if not up else "several clusters are up: hack/cluster list"
        )
    return up[0]


def _down(_options: argparse.Namespace) -> None:
    directory = _the_one()
    os.kill(int((directory / _OWNER).read_text()), signal.SIGTERM)
    wait_until(f"the end of the cluster in {directory}", lambda: not directory.exists(), 60)


def _logs(_options: argparse.Namespace) -> None:
    for path in sorted(_the_one().glob("*.log")):
        print(f"==> {path}", path.read_text(errors="replace")[-20_000:], sep="\n", end="\n\n")


def _kubectl(options: argparse.Namespace) -> None:
    program = build.programs() / "kubectl"
    os.execve(program, ["kubectl", *options.arguments], {**os.environ, "KUBECONFIG": str(_the_one() / _KUBECONFIG)})


if __name__ == "__main__":
    sys.exit(main())

"""The dra-cpu command: arguments, which command they call, and exit codes (0 done, 1 failed, 2 wrong usage or
configuration). The commands are imported when they are called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nri_cpu import __version__
from nri_cpu.command import (
    CDI_DIRECTORY,
    OutputClosedError,
    Parser,
    UsageError,
    add_checkpoint_argument,
    add_config_argument,
    add_log_argument,
    path_argument,
)

KUBELET_ROOT = Path("/var/lib/kubelet")


def main(argv: Sequence[str] | None = None) -> int:
    try:
        options = _parser().parse_args(argv)
    except OutputClosedError:
        return 1
    try:
        code: int = options.main(options)
    except OutputClosedError:
        return 1  # whoever read it has gone, as with `| head`
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if options.verbosity:
            from loguru import logger

            logger.opt(exception=error).debug("this is where it failed")
        return _failed(error)
    return code


def _failed(error: Exception) -> int:
    """One line on stderr, and the exit code."""
    from dra.claims import ClaimError, printable
    from dra.commands.errors import CommandError
    from nri_cpu.checkpoint.errors import CheckpointError
    from nri_cpu.command import OutputError

    known = isinstance(error, UsageError | CommandError | CheckpointError | ClaimError | OutputError)
    text = str(error) if known else f"{type(error).__name__}: {error}; a fault of dra-cpu itself, -v shows where"
    print(f"dra-cpu: {printable(' '.join(text.split()))}", file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="dra-cpu", description="Exclusive CPUs for containers: the DRA companion.")
    parser.add_argument("--version", action="version", version=f"dra-cpu {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about, arguments, called in (("run", "serve the kubelet until SIGTERM", _run_arguments, _run),):
        command = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        arguments(command)
        add = command.add_argument
        add("-v", "--v", dest="verbosity", type=int, nargs="?", const=1, default=0, metavar="N", help="more: details")
        command.set_defaults(main=called)
    return parser


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_argument(parser)
    add_checkpoint_argument(parser)
    add_log_argument(parser)
    add = parser.add_argument
    add("--kubeconfig", type=_path_or_none, metavar="FILE", help="credentials (default: the pod's service account)")
    add(
        "--claims-dir",
        type=path_argument,
        metavar="DIR",
        help="read claims from manifests there instead of the API server",
    )
    _machine_arguments(parser)
    _device_arguments(parser)
    add(
        "--kubelet-root-dir",
        type=path_argument,
        default=KUBELET_ROOT,
        metavar="DIR",
        help="the kubelet's (%(default)s)",
    )
    add("--cdi-dir", type=path_argument, metavar="DIR", help=f"where CDI specs go (default: {CDI_DIRECTORY})")


def _machine_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--reserved-cpus", metavar="LIST", help="CPUs for no claim and no shared container, such as 0-1,8")


def _device_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cpu-device-mode", choices=("individual", "grouped"), help="what a device is (default: grouped)")
    add("--group-by", choices=("numanode",), help="what a grouped device is (default: numanode)")
    add("--hostname-override", metavar="NAME", help="the node's name (default: the host's)")


def _path_or_none(text: str) -> Path | None:
    """Empty as in the configuration: not set."""
    return path_argument(text) if text else None


def _run(options: argparse.Namespace) -> int:
    from dra.commands import run

    return run.main(options, os.environ)

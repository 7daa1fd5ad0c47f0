"""The dra-cpu command: arguments, which command they call, and exit codes (0 done, 1 failed, 2 wrong usage or
configuration; Ctrl-C ends commands other than run by its signal). The commands are imported when they are called."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from nri_cpu import __version__
from nri_cpu.command import (
    CDI_DIRECTORY,
    OutputClosedError,
    OutputError,
    Parser,
    UsageError,
    add_checkpoint_argument,
    add_config_argument,
    add_log_argument,
    end_interrupted,
    file_argument,
    log_warnings,
    path_argument,
    tell,
)
from nri_cpu.cpuset import MAX_CPUS, quote

KUBELET_ROOT = Path("/var/lib/kubelet")

_NUMBER = re.compile(r"[0-9]{1,9}")

# As Go's flag package reads a bool, since dra-driver-cpu's flags are its.
_SWITCHES = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)

_OF_THE_OTHER = {"topology": "did you mean nri-cpu topology?"}
# Words of the kubelet's CPU manager (its policies and their options), and ours.
_OF_THE_KUBELET = {
    "full-pcpus-only": "here that is --full-physical-cores",
    "distribute-cpus-across-numa": "here that is --strategy distributed",
    "distribute-cpus-across-cores": "here that is --strategy spread",
    "align-by-socket": "here that is --device with a socket's device, such as cpudevsocket000",
    "prefer-align-cpus-by-uncorecache": "here that is --align-l3, which is the default",
    "strict-cpu-reservation": "here that is always so",
    "static": "here that is packed",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the arguments say; the exit code. Raises SystemExit for wrong usage, for help and version."""
    try:
        options = _parser().parse_args(argv)
    except OutputClosedError:
        return 1
    except OutputError as error:
        return _failed(error)  # help and version are output too
    if options.command != "run":
        log_warnings(verbose=options.verbosity > 0)
    try:
        code: int = options.main(options)
    except OutputClosedError:
        return 1  # whoever read it has gone, as with `| head`
    except KeyboardInterrupt:
        end_interrupted()
    except Exception as error:
        if options.verbosity:
            from loguru import logger

            logger.opt(exception=error).debug("this is where it failed")
        return _failed(error)
    return code


def _failed(error: Exception) -> int:
    """One line on stderr, and the exit code."""
    from dra.claims import ClaimError
    from dra.commands.errors import CommandError
    from nri_cpu.checkpoint.errors import CheckpointError

    known = isinstance(error, UsageError | CommandError | CheckpointError | ClaimError | OutputError)
    text = str(error) if known else f"{type(error).__name__}: {error}; a fault of dra-cpu itself, -v shows where"
    tell("dra-cpu", text)
    return 2 if isinstance(error, UsageError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="dra-cpu", description="Exclusive CPUs for containers: the DRA companion.")
    parser.add_argument("--version", action="version", version=f"dra-cpu {__version__}")
    parser.hints = _OF_THE_OTHER
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about, arguments, called in (
        ("run", "serve the kubelet until SIGTERM", _run_arguments, _run),
        ("slices", "print the ResourceSlices that this machine would publish", _slices_arguments, _slices),
        ("allocate", "print the CPUs that a claim would get", _allocate_arguments, _allocate),
        ("gatherinfo", "write a report of this machine, for somebody else to look at", _gatherinfo_arguments, _gather),
    ):
        command = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        arguments(command)
        add = command.add_argument
        told = "log details, such as what is odd about the machine, and where a fault of dra-cpu is; any N from 1"
        add("-v", "--v", dest="verbosity", type=int, nargs="?", const=1, default=0, metavar="N", help=told)
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
    add(
        "--pod-uid",
        metavar="UID",
        help="of the pod that this is: goes into the sockets' names, so that the next one can serve beside it",
    )
    add("--cdi-dir", type=path_argument, metavar="DIR", help=f"where CDI specs go (default: {CDI_DIRECTORY})")


def _slices_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_argument(parser)
    _machine_arguments(parser)
    _device_arguments(parser)
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml", help="form (%(default)s)")


def _allocate_arguments(parser: Parser) -> None:
    parser.hints = _OF_THE_KUBELET
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--cpus", type=_count, metavar="N", help="how many CPUs")
    what.add_argument(
        "--batch",
        type=_path_or_dash,
        metavar="FILE",
        help="many requests, a JSON object a line (-: standard input); an answer a line, in the same order",
    )
    add("--free", metavar="LIST", help="the CPUs that may be taken (default: all on line, less reserved and claimed)")
    add("--device", metavar="NAME", help="take them out of this device, such as cpudevnuma001")
    add("--strategy", choices=("packed", "spread", "distributed"), help="default: packed")
    add(
        "--numa-nodes",
        type=_numa_nodes,
        metavar="K",
        help="distributed: over how many NUMA nodes: auto, all or a number",
    )
    switch = argparse.BooleanOptionalAction
    add("--full-physical-cores", action=switch, default=None, help="only whole cores")
    add("--align-l3", action=switch, default=None, help="as few L3 caches as possible (the default)")
    add("--explain", action="store_true", help="also say how good the choice is, and what would fit")
    add("-o", "--output", choices=("text", "json"), help="form of the one answer (text)")
    add("--report", type=path_argument, metavar="FILE", help="a gatherinfo file: its machine, less its claims' CPUs")
    add("--checkpoint", type=file_argument, metavar="FILE", help="prepared claims, whose CPUs aren't free either")
    add_config_argument(parser)
    _machine_arguments(parser)


def _gatherinfo_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--stdout", action="store_true", help="print the report instead of writing a file")
    where.add_argument(
        "--output-dir",
        type=path_argument,
        metavar="DIR",
        help="where the file goes (default: where temporary files do)",
    )
    add_config_argument(parser)
    add_checkpoint_argument(parser)
    _machine_arguments(parser)
    _device_arguments(parser)


def _machine_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--reserved-cpus", metavar="LIST", help="CPUs for no claim and no shared container, such as 0-1,8")
    add("--sysfs-overlay", type=_path_or_none, metavar="FILE", help="YAML: files of sysfs that are to be others")


def _device_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--cpu-device-mode",
        choices=("individual", "grouped"),
        help="grouped: a device has many CPUs; individual: a device is one CPU (default: grouped)",
    )
    add("--group-by", choices=("numanode", "socket", "machine"), help="what a grouped device is (default: numanode)")
    add("--hostname-override", metavar="NAME", help="the node's name (default: the host's)")
    add(
        "--expose-pcie-roots",
        type=_switch,
        nargs="?",
        const=True,
        metavar="true|false",
        help="whether devices tell which PCIe roots are near (alone: true; default: false)",
    )


def _path_or_none(text: str) -> Path | None:
    """Empty as in the configuration: not set."""
    return path_argument(text) if text else None


def _path_or_dash(text: str) -> str:
    return text if text == "-" else str(path_argument(text))


def _count(text: str) -> int:
    if (number := _number(text)) is None:
        raise argparse.ArgumentTypeError(f"{quote(text)} is no number of CPUs: write a number from 1 to {MAX_CPUS}")
    return number


def _numa_nodes(text: str) -> str | int:
    if text in ("auto", "all"):
        return text
    if (number := _number(text)) is None:
        raise argparse.ArgumentTypeError(f"{quote(text)} is not auto, all or a number from 1 to {MAX_CPUS}")
    return number


def _number(text: str) -> int | None:
    """A number of CPUs, or of their NUMA nodes, that a machine may have; None for everything else."""
    return int(text) if _NUMBER.fullmatch(text) and 1 <= int(text) <= MAX_CPUS else None


def _switch(text: str) -> bool:
    if text not in _SWITCHES:
        raise argparse.ArgumentTypeError(f"{quote(text)} is neither true nor false")
    return _SWITCHES[text]


def _run(options: argparse.Namespace) -> int:
    from dra.commands import run

    return run.main(options, os.environ)


def _slices(options: argparse.Namespace) -> int:
    from dra.commands import slices

    return slices.main(options, os.environ)


def _allocate(options: argparse.Namespace) -> int:
    from dra.commands import allocate

    return allocate.main(options, os.environ)


def _gather(options: argparse.Namespace) -> int:
    from dra.commands import gatherinfo

    return gatherinfo.main(options, os.environ)

"""The nri-cpu command: arguments, which command they call, and exit codes (0 done, 1 failed, 2 wrong usage or
configuration; Ctrl-C ends commands other than run by its signal). The commands are imported when they are called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nri_cpu import __version__
from nri_cpu.command import (
    OutputClosedError,
    OutputError,
    Parser,
    UsageError,
    add_checkpoint_argument,
    add_config_argument,
    add_log_argument,
    end_interrupted,
    log_to,
    log_warnings,
    path_argument,
    tell,
)

SOCKET = "/var/run/nri/nri.sock"
LOG_OF_LAUNCHED = Path("/var/log/nri-cpu.log")

_OF_THE_OTHER = {name: f"did you mean dra-cpu {name}?" for name in ("slices", "allocate", "gatherinfo")}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the arguments say; the exit code. Raises SystemExit for wrong usage, for help and version."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    launched = "NRI_PLUGIN_SOCKET" in os.environ
    if launched and not arguments:
        arguments = ["run"]
    try:
        options = _parser().parse_args(arguments)
        if options.command == "run":
            return _run(options, launched)
        return _topology(options)
    except OutputClosedError:
        return 1  # whoever read it has gone, as with `| head`
    except OutputError as error:
        return _fail(1, error)  # help and version are output too
    except KeyboardInterrupt:
        end_interrupted()


def _run(options: argparse.Namespace, launched: bool) -> int:
    try:
        log_to(options.log_format, file=LOG_OF_LAUNCHED if launched else None)
    except UsageError as error:
        return _fail(2, error, launched)
    from nri_cpu.checkpoint.errors import CheckpointError
    from nri_cpu.commands import run
    from nri_cpu.nri.errors import EndpointError
    from nri_cpu.topology import TopologyError

    try:
        return run.main(options, os.environ)
    except UsageError as error:
        return _fail(2, error, launched)
    except (CheckpointError, EndpointError, TopologyError) as error:
        return _fail(1, error, launched)


def _topology(options: argparse.Namespace) -> int:
    log_warnings(options.verbose)
    from nri_cpu.commands import topology
    from nri_cpu.topology import TopologyError

    try:
        return topology.main(options, os.environ)
    except UsageError as error:
        return _fail(2, error)
    except OutputClosedError:
        raise
    except (TopologyError, OutputError) as error:
        return _fail(1, error)
    except Exception as error:
        if options.verbose:
            raise
        return _fail(1, f"{type(error).__name__}: {error}; a fault of nri-cpu itself, -v shows where")


def _fail(code: int, error: Exception | str, launched: bool = False) -> int:
    """One line on stderr, which a runtime throws away, so that a plugin that it has started logs it."""
    if launched:
        from loguru import logger

        logger.error("nri-cpu ends: {}", error)
    tell("nri-cpu", error)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="nri-cpu", description="Exclusive CPUs for containers: the NRI plugin.")
    parser.add_argument("--version", action="version", version=f"nri-cpu {__version__}")
    parser.hints = _OF_THE_OTHER
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="serve the container runtime until SIGTERM")
    add_config_argument(run)
    add_checkpoint_argument(run)
    add_log_argument(run)
    run.add_argument("--socket", default=SOCKET, metavar="PATH", help="the runtime's NRI socket (%(default)s)")
    run.add_argument("--index", default="10", metavar="NN", help="two digits: the place among plugins (%(default)s)")
    run.add_argument("--name", default="nri-cpu", metavar="NAME", help="the plugin's name (%(default)s)")
    run.add_argument("--reserved-cpus", metavar="LIST", help="CPUs for nobody, until a checkpoint tells them")
    topology = commands.add_parser("topology", help="draw this machine, and who has which CPU")
    topology.add_argument("-o", "--output", choices=("map", "json"), default="map", help="form (%(default)s)")
    add_config_argument(topology)
    add_checkpoint_argument(topology)
    topology.add_argument(
        "--sysfs-overlay", type=path_argument, metavar="FILE", help="YAML: files of sysfs that are to be others"
    )
    topology.add_argument("-v", "--verbose", action="store_true", help="log what is odd about the machine")
    return parser

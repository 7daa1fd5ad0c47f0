"""What both commands have in common: default places, the configuration file, how to log, how to refuse and to end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from nri_cpu.config import Config, ConfigError, load
from nri_cpu.cpuset import EMPTY, CPUSet, CPUSetError, quote

CONFIG = Path("/etc/dra-cpu/config.yaml")
CHECKPOINT = Path("/var/lib/dra-cpu/checkpoint.json")
CDI_DIRECTORY = Path("/var/run/cdi")

# A log file of our own has nobody else to keep it small.
_ROTATION: dict[str, Any] = {"rotation": "10 MB", "retention": 2}

_SHAPE = "{time:YYYY-MM-DDTHH:mm:ss.SSSZ} {level: <7} {message}"


class UsageError(Exception):
    """Arguments or configuration that can't be used; one line that names the thing and the way out."""


class OutputError(Exception):
    """Standard output can't be written; one line that says why."""


class OutputClosedError(OutputError):
    """Whoever read standard output has gone: nothing is left to be said."""


class Parser(argparse.ArgumentParser):
    """Wrong usage is one line and exit code 2; no argument may be shortened, so that new ones break nobody.

    `hints`: a value that is no choice, but that somebody may well write, and what to write for it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self.hints: Mapping[str, str] = {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, but what is unknown after a command is refused by that command's own parser."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help and version go through here; what reads them may stop."""
        if file is sys.stdout:
            emit(message)
        else:
            super()._print_message(message, file)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse, which says it differently in each version of Python; with a hint."""
        if action.choices is None or value in action.choices:
            return
        hint = self.hints.get(value) or _guess(value, action.choices)
        told = f"invalid choice: {quote(str(value))} (choose from {', '.join(action.choices)})"
        raise argparse.ArgumentError(action, f"{told}{f'; {hint}' if hint else ''}")

    def error(self, message: str) -> NoReturn:
        tell(self.prog, f"{_printable(message)}; {self.prog} --help tells what there is")
        raise SystemExit(2)


def _guess(value: str, choices: Iterable[str]) -> str:
    import difflib  # 3 ms, which only errors take

    near = difflib.get_close_matches(value.lower(), list(choices), 1)
    return f"did you mean {near[0]}?" if near else ""


def tell(command: str, text: object) -> None:
    """One line of `command` on stderr, whatever is in the text: paths and messages of others forge no lines there and
    do nothing to a terminal. Where stderr can't be written nobody is told, and whoever calls goes on."""
    if sys.stderr is None:
        return
    try:
        print(f"{command}: {_printable(str(text).replace(chr(10), ' '))}", file=sys.stderr, flush=True)
    except OSError:
        _discard_rest(sys.stderr)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def end_interrupted() -> NoReturn:
    """After Ctrl-C: end by SIGINT's own effect, so that a shell sees it and ends the script that called us too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(1)  # not reached: the signal is this thread's


def path_argument(text: str) -> Path:
    """The type of an argument that is a path. Empty is what an unset variable leaves, and Path would make it "."."""
    if not text:
        raise argparse.ArgumentTypeError("is an empty path; write one, or leave the argument out")
    if not text.isprintable():
        raise argparse.ArgumentTypeError(f"the path {quote(text)} has characters that can't be shown")
    return Path(text)


def file_argument(text: str) -> Path:
    """As `path_argument`, for a file that has others beside it, named after it: it must have a name itself."""
    path = path_argument(text)
    if path.name in ("", ".."):
        raise argparse.ArgumentTypeError(f"{text} is a directory; name a file in it")
    return path


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """--config."""
    parser.add_argument(
        "--config", type=path_argument, metavar="FILE", help=f"configuration (default: {CONFIG}, if it is there)"
    )


def add_checkpoint_argument(parser: argparse.ArgumentParser) -> None:
    """--checkpoint."""
    parser.add_argument(
        "--checkpoint", type=file_argument, metavar="FILE", help=f"prepared claims (default: {CHECKPOINT})"
    )


def add_log_argument(parser: argparse.ArgumentParser) -> None:
    """--log-format."""
    parser.add_argument("--log-format", choices=("text", "json"), default="text")


def host_root(env: Mapping[str, str]) -> Path:
    """HOST_ROOT: the folder below which the machine's /sys and /proc are read."""
    return Path(env.get("HOST_ROOT") or "/")


def configuration(path: Path | None) -> Config:
    """The file at `path`, else the default one, else nothing.

    Raises UsageError for a file that is wrong or can't be read; only a default file that is not there is nothing.
    """
    try:
        return load(path or CONFIG)
    except ConfigError as error:
        if path is None and isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return Config()
        raise UsageError(str(error)) from None


def reserved_cpus(argument: str | None, config: Config) -> CPUSet:
    """--reserved-cpus, else reservedCPUs, else none. Raises UsageError."""
    if argument is None:
        return config.reserved_cpus or EMPTY
    try:
        return CPUSet.parse(argument)
    except CPUSetError as error:
        raise UsageError(f"--reserved-cpus: {error}") from None


def log_to(kind: str, *, file: Path | None = None, level: str = "INFO") -> None:
    """Log to a file, else to stderr, as text or JSON; nowhere when stderr is closed. Values of variables never go
    there: a preparation may be among them. Raises UsageError."""
    from loguru import logger  # 30 ms, which commands that log nothing do without

    logger.remove()
    _fill_standard_descriptors()
    sink = file or sys.stderr
    if sink is None:
        return
    try:
        logger.add(
            sink,
            format=_SHAPE,
            serialize=kind == "json",
            level=level,
            diagnose=False,
            backtrace=False,
            **(_ROTATION if file else {}),
        )
    except OSError as error:
        raise UsageError(f"the log {file} can't be written: {error.strerror}; check its directory") from None


def log_warnings(verbose: bool = False) -> None:
    """Log warnings to stderr, or everything: for commands that mostly log nothing, and then don't import the logger."""
    if "loguru" in sys.modules:
        log_to("text", level="DEBUG" if verbose else "WARNING")
        return
    os.environ.update(
        LOGURU_FORMAT=_SHAPE,
        LOGURU_LEVEL="DEBUG" if verbose else "WARNING",
        LOGURU_DIAGNOSE="NO",
        LOGURU_BACKTRACE="NO",
    )


def emit(text: str) -> None:
    """Write text to standard output, now. Raises OutputError; what its encoding lacks is written with escapes."""
    stream = sys.stdout
    if stream is None:
        raise OutputError("standard output is closed")
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError as error:
            stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        stream.flush()
    except BrokenPipeError:
        _discard_rest(stream)
        raise OutputClosedError("nobody reads standard output any more") from None
    except OSError as error:
        _discard_rest(stream)
        raise OutputError(f"standard output can't be written: {error.strerror}") from None


def _discard_rest(stream: Any) -> None:
    """What is still in the buffer has to go somewhere when the interpreter ends, or its exit code is another."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return  # nothing of the system's
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def _fill_standard_descriptors() -> None:
    """Where a standard descriptor is closed the next file would get its number, and with it what libraries print."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)

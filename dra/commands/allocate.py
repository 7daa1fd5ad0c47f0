"""dra-cpu allocate: the CPUs that a claim would get on this machine, or on that of a report. A dry run: nothing is
prepared, and of prepared claims only those of a report and of --checkpoint count."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, BinaryIO

from dra.allocation import AllocationError, OptionsError, allocate
from dra.allocation.machine import machine_of
from dra.commands import settings
from dra.commands.requests import MAX_LINE, OPTIONS, Question, Request, RequestError, Situation, config_of, parse_line
from dra.cpu_config import CpuConfig
from nri_cpu.command import UsageError, emit, reserved_cpus, tell
from nri_cpu.config import Config
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology import Topology

if TYPE_CHECKING:
    from dra.allocation.explain import Explanation

_Answer = dict[str, object]


def main(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Prints the answer, or with --batch all of them; 0, or 1 for one that is a refusal.

    Raises UsageError, CommandError, CheckpointError or OutputError.
    """
    if options.batch is not None and options.output is not None:
        raise UsageError("-o is for one request: answers to --batch are JSON, one a line")
    situation = _of_report(options) if options.report else _of_this(options, env)
    asked = _request(options)
    if options.batch is None:
        return _single(situation, asked, options.output or "text", options.explain)
    _check_defaults(situation, asked)
    machine_of(situation.topology)  # kept: it is not to count as the first answer's time
    for line in _lines(options.batch):
        emit(json.dumps(_answer_line(situation, line, asked, options.explain)) + "\n")
    return 0


# ---- the machine


def _of_this(options: argparse.Namespace, env: Mapping[str, str]) -> Situation:
    machine = settings.machine_settings(options, env)
    topology = settings.topology_for_people(machine, verbose=options.verbosity > 0)
    return Situation(topology, machine.reserved | _claimed(options), settings.default_of(machine.config))


def _of_report(options: argparse.Namespace) -> Situation:
    """The machine of a report, with the report's configuration, or the one that is named beside it."""
    from dra.report import MAX_REPORT_BYTES, ReportError, read_report

    path: Path = options.report
    if options.sysfs_overlay:
        raise UsageError("--report and --sysfs-overlay exclude each other: the machine is that of the report")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_REPORT_BYTES + 1)
        report = read_report(raw.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"--report {path} can't be read: {error.strerror}; check the path and its mode") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--report {path} is not UTF-8 at byte {error.start}: {error.reason}") from None
    except ReportError as error:
        raise UsageError(f"--report {path}: {error}") from None
    if options.config:
        from nri_cpu.command import configuration

        config = configuration(options.config)
        default = settings.default_of(config)
    else:
        config, default = _config_of_report(path, report.driver_config)
    reserved = reserved_cpus(options.reserved_cpus, config)
    try:
        settings.refuse_missing(reserved, report.topology)
    except UsageError as error:
        if options.config or options.reserved_cpus is not None:
            raise
        where = f"--report {path}: driverConfig.reservedCPUs"
        raise UsageError(f"{where}: {error}; --reserved-cpus overrides it") from None
    return Situation(report.topology, reserved | report.claimed | _claimed(options), default)


def _claimed(options: argparse.Namespace) -> CPUSet:
    """The CPUs of the claims in the checkpoint, and those reserved there, if one is named."""
    if not options.checkpoint:
        return EMPTY
    from nri_cpu.commands.holders import named_checkpoint

    checkpoint = named_checkpoint(options.checkpoint)
    return CPUSet.union([checkpoint.reserved, *(claim.cpus for claim in checkpoint.claims.values())])


def _config_of_report(path: Path, found: Mapping[str, object]) -> tuple[Config, CpuConfig]:
    """What counts here of a report's driverConfig."""
    from dra.report import ReportError, cpus_of

    reserved = found.get("reservedCPUs")
    try:
        config = Config(reserved_cpus=EMPTY if reserved is None else cpus_of(reserved, "reservedCPUs"))
        default = config_of({key: found[key] for key in OPTIONS if found.get(key) is not None})
        if default.strategy is not None:  # as on the node itself: a request may bring the strategy
            default.options()
    except (ReportError, RequestError, OptionsError) as error:
        raise UsageError(f"--report {path}: driverConfig.{error}") from None
    return config, default


# ---- one request


def _request(options: argparse.Namespace) -> Request:
    """What the arguments ask for; the number is 0 with --batch, whose lines have their own."""
    given = {
        "strategy": options.strategy,
        "numaNodes": options.numa_nodes,
        "fullPhysicalCores": options.full_physical_cores,
        "alignL3": options.align_l3,
    }
    try:
        config = config_of({key: value for key, value in given.items() if value is not None})
    except RequestError as error:
        raise UsageError(str(error)) from None
    return Request(options.cpus or 0, options.free, options.device, config)


def _single(situation: Situation, request: Request, output: str, explained: bool) -> int:
    try:
        question = situation.question(request)
    except RequestError as error:
        raise UsageError(str(error)) from None
    outcome = _outcome(situation.topology, question)
    found = _explanation(situation.topology, question, outcome) if explained else None
    answer = _as_json(found) if found else _answer(outcome)
    refusal = answer.get("error")
    if output == "json":
        emit(json.dumps(answer) + "\n")
        return 1 if refusal else 0
    if refusal:
        tell("dra-cpu", refusal)
    else:
        emit(f"{answer['cpus']}\n")
    if found:
        emit("".join(f"{line}\n" for line in _as_text(found)))
    return 1 if refusal else 0


def _outcome(topology: Topology, question: Question) -> CPUSet | AllocationError:
    try:
        return allocate(topology, question.free, question.count, question.options)
    except AllocationError as error:
        return error


def _answer(outcome: CPUSet | AllocationError) -> _Answer:
    return {"error" if isinstance(outcome, AllocationError) else "cpus": str(outcome)}


def _explanation(topology: Topology, question: Question, outcome: CPUSet | AllocationError) -> Explanation:
    from dra.allocation.explain import explain_outcome

    return explain_outcome(topology, question.free, question.count, question.options, outcome)


def _as_json(found: Explanation) -> _Answer:
    """The answer with its reasons."""
    seen: _Answer = {"free": str(found.free), "wholeFreeCores": str(found.whole_cores)}
    if found.cpus is None:
        return {"error": found.error, "wouldFit": list(found.would_fit), **seen}
    return {"cpus": str(found.cpus), "quality": dict(found.quality), **seen}


def _as_text(found: Explanation) -> Iterator[str]:
    """What an explained answer says beside the answer, for people."""
    yield f"free: {found.free or 'none'}; of these on whole free cores: {found.whole_cores or 'none'}"
    if found.cpus is None:
        yield f"would fit: {', '.join(map(str, found.would_fit)) or 'no number'}"
    for key, value in found.quality.items():
        yield f"{key}: {', '.join(map(str, value)) if isinstance(value, tuple) else value}"


# ---- many requests


def _check_defaults(situation: Situation, asked: Request) -> None:
    """What is wrong with the arguments is wrong for every line."""
    try:
        situation.free(asked)
    except RequestError as error:
        raise UsageError(str(error)) from None


def _lines(path: str) -> Iterator[bytes]:
    """The lines of a file or of standard input as they come; of one that is too long as much as shows that."""
    if path == "-":
        if sys.stdin is None:
            raise UsageError("--batch -: standard input is closed")
        try:
            yield from _limited(sys.stdin.buffer)
        except OSError as error:
            raise UsageError(f"--batch -: standard input can't be read: {error.strerror}; redirect it") from None
        return
    try:
        with Path(path).open("rb") as file:
            yield from _limited(file)
    except OSError as error:
        raise UsageError(f"--batch {path} can't be read: {error.strerror}; check the path and its mode") from None


def _limited(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MAX_LINE + 1):
        rest = line
        while len(rest) >= MAX_LINE and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE)
        yield line


def _answer_line(situation: Situation, line: bytes, asked: Request, explained: bool) -> _Answer:
    try:
        question = situation.question(parse_line(line).over(asked))
    except RequestError as error:
        return {"error": str(error)}
    begin = perf_counter_ns()
    outcome = _outcome(situation.topology, question)
    took = perf_counter_ns() - begin
    answer = _answer(outcome)
    if not isinstance(outcome, AllocationError):
        answer["ns"] = took
    return answer | _as_json(_explanation(situation.topology, question, outcome)) if explained else answer

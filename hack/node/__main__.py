"""hack/box: a node in a box from the command line. `hack/box up` holds it; other commands, elsewhere, work in it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from hack.node import access, image, launch
from hack.node.access import Box
from hack.node.errors import CommandFailedError, NodeError
from hack.node.machine import Machine
from nri_cpu.cpuset import CPUSet


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command: 0, that of a command in the box, 1 for what failed, 2 for wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.do(options) or 0)
    except CommandFailedError as error:
        sys.stderr.buffer.write(error.stderr)
        return _exit_code(error.code)
    except (NodeError, OSError) as error:
        print(f"box: {error}", file=sys.stderr)
        return 1
    except ValueError as error:  # a machine that can't be, text that is no list of CPUs
        print(f"box: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hack/box", description=__doc__)
    parser.add_argument("--box", type=Path, metavar="DIR", help="the box to work in, when several are up (see: list)")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    def verb(name: str, do: object, text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(do=do)
        return added

    verb("image", _image, "build the image if need be, print where it is and what is in it")
    _add_machine(verb("snapshot", _snapshot, "freeze such a machine if need be, print where it is"))
    up = verb("up", _up, "start a box; it ends with this command")
    _add_machine(up)
    up.add_argument("--cold", action="store_true", help="boot it, instead of a copy of a frozen one")
    up.add_argument("--install", action="store_true", help="put the project in")
    verb("list", _list, "the boxes that are up")
    execute = verb("exec", _exec, "run a command: one argument is a shell line, several are an argv")
    execute.add_argument("-i", "--stdin", action="store_true", help="with our standard input, read to its end first")
    execute.add_argument("--timeout", type=float, default=3600, metavar="SECONDS")
    execute.add_argument("command", nargs=argparse.REMAINDER)
    push = verb("push", lambda o: _box(o).push(o.source, o.directory), "copy files and directories into the box")
    push.add_argument("source", nargs="+", type=Path)
    push.add_argument("directory", help="in the box")
    pull = verb("pull", lambda o: _box(o).pull(o.source, o.directory), "copy a file or directory out of the box")
    pull.add_argument("source", help="in the box")
    pull.add_argument("directory", type=Path)
    serve = verb("serve", _serve, "serve a unix socket of the box here, until interrupted")
    serve.add_argument("path", type=Path, help="the socket to make")
    serve.add_argument("target", nargs="?", default=access.CONTAINERD, help="in the box (default: containerd's)")
    verb("install", lambda o: _box(o).install_project(), "put the project in, or its newest state")
    verb("restart-containerd", lambda o: _box(o).restart_containerd(), "restart containerd, wait until it answers")
    for name in ("offline", "online"):
        switch = verb(name, lambda o, name=name: getattr(_box(o), name)(CPUSet.parse(o.cpus)), f"take CPUs {name}")
        switch.add_argument("cpus", help="such as 3,11")
    verb("reboot", lambda o: _box(o).reboot(), "reboot the kernel, wait until containerd answers")
    verb("logs", _logs, "print the ends of all logs")
    return parser


def _add_machine(parser: argparse.ArgumentParser) -> None:
    default = Machine()
    group = parser.add_argument_group("the machine")
    group.add_argument("--sockets", type=int, default=default.sockets)
    group.add_argument("--dies", type=int, default=default.dies, help="per socket; each has an L3 cache")
    group.add_argument("--cores", type=int, default=default.cores, help="per die")
    group.add_argument("--threads", type=int, default=default.threads, help="per core")
    group.add_argument("--nodes", type=int, default=default.nodes, help="NUMA nodes in all")
    group.add_argument("--memory", type=int, default=default.memory, help="MiB per NUMA node")
    group.add_argument("--siblings", choices=("split", "adjacent"), default=default.siblings)
    group.add_argument("--offline", type=CPUSet.parse, default=default.offline, metavar="CPUS")
    group.add_argument("--kernel-word", action="append", default=[], metavar="WORD", help="may be given repeatedly")


def _machine(options: argparse.Namespace) -> Machine:
    names = ("sockets", "dies", "cores", "threads", "nodes", "memory", "siblings", "offline")
    return Machine(**{name: getattr(options, name) for name in names}, kernel_words=tuple(options.kernel_word))


def _box(options: argparse.Namespace) -> Box:
    if options.box:
        return launch.attach(options.box)
    up = launch.running()
    if len(up) != 1:
        raise NodeError("no box is up: hack/box up" if not up else f"several boxes are up: --box {up[0]}, or another")
    return launch.attach(up[0])


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _image(_options: argparse.Namespace) -> None:
    path = image.image(_report)
    print(path, (path / "versions").read_text(), sep="\n", end="")


def _snapshot(options: argparse.Namespace) -> None:
    print(launch.snapshot(_machine(options), _report))


def _up(options: argparse.Namespace) -> None:
    began = time.monotonic()
    with launch.start(_machine(options), cold=options.cold, report=_report) as node:
        if options.install:
            node.install_project()
        print(f"{node.directory} is up after {time.monotonic() - began:.1f} s; Ctrl-C ends it", flush=True)
        with suppress(KeyboardInterrupt):
            while True:
                node.check_alive()
                time.sleep(1)


def _list(_options: argparse.Namespace) -> None:
    for path in launch.running():
        print(path)


def _exec(options: argparse.Namespace) -> int:
    command = options.command[0] if len(options.command) == 1 else options.command
    if not command:
        raise ValueError("exec what? hack/box exec COMMAND")
    stdin = sys.stdin.buffer.read() if options.stdin else b""
    done = _box(options).run(
        command,
        stdin=stdin,
        check=False,
        timeout=options.timeout,
        stdout=lambda part: _write(sys.stdout, part),
        stderr=lambda part: _write(sys.stderr, part),
    )
    return _exit_code(done.code)


def _exit_code(code: int) -> int:
    """As a shell has it: 128 and the signal's number for what a signal ended."""
    return code if code >= 0 else 128 - code


def _write(stream: TextIO, part: bytes) -> None:
    stream.buffer.write(part)
    stream.flush()


def _serve(options: argparse.Namespace) -> None:
    box = _box(options)
    with box.serve(options.target, options.path), suppress(KeyboardInterrupt):
        while True:
            box.check_alive()
            time.sleep(1)


def _logs(options: argparse.Namespace) -> None:
    for name, text in _box(options).logs().items():
        print(f"==> {name}", text, sep="\n", end="\n\n")


if __name__ == "__main__":
    sys.exit(main())

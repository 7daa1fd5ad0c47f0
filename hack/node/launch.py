"""Starting boxes: cold from the image, or as copies of a frozen machine that has containerd up already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hack import cache
from hack.node import acpi, cpio, image, kept, qemu
from hack.node.access import Box
from hack.node.channel import Channel
from hack.node.errors import NodeError
from hack.node.image import PLAIN, Variant
from hack.node.machine import Machine
from hack.node.node import Node
from hack.node.qemu import Memory, Process, overlay
from hack.node.qmp import Monitor
from hack.node.tools import TO_RUN, Report, need, silent
from nri_cpu.cpuset import EMPTY

# In a box's directory: the loopback port of its command channel.
PORT_FILE = "port"

_IMAGE_FILES = ("vmlinux", "initrd.img", "root.img")

# What the product imports: read once before the freeze, so that copies find it in memory.
_IMPORTS = "asyncio, http.client, json, ssl, google.protobuf.message, loguru, inotify_simple, yaml, grpc"


def start(
    machine: Machine | None = None,
    *,
    cold: bool = False,
    report: Report = silent,
    variant: Variant = PLAIN,
    network: str = "",
) -> Node:
    """Start a box and return it when its containerd answers. `network` is more options of QEMU's user network.

    A copy of a frozen machine takes about a second, `cold` boots instead (15 to 30 s). Image and frozen machine are
    made first if they are not there. Raises ToolsMissingError, BuildError, QemuError, ChannelError.
    """
    machine = machine or Machine()
    need(TO_RUN, report)
    if cold:
        return _boot(machine, image.image(report, variant), network)
    return _copy(machine, snapshot(machine, report, variant), network)


def snapshot(machine: Machine, report: Report = silent, variant: Variant = PLAIN) -> Path:
    """The directory of a frozen machine like this one, made first if need be (a boot and a first pod: 30 to 60 s)."""
    need(TO_RUN, report)
    machine = replace(machine, offline=EMPTY)  # done to each copy
    code = [Path(module.__file__ or "").read_bytes() for module in (acpi, cpio, qemu)]
    key = cache.key_of(image.key(variant), machine, qemu.version(), _IMPORTS, Path(__file__).read_bytes(), code)
    return cache.entry("snapshot", key, lambda out: _freeze(machine, variant, out, report), report)


@contextmanager
def _closed_on_error(process: Process) -> Iterator[None]:
    try:
        yield
    except BaseException:
        process.close()
        raise


def _boot(machine: Machine, files: Path, network: str) -> Node:
    process = Process()
    with _closed_on_error(process):
        disk = process.directory / "disk.qcow2"
        overlay(disk, str(files / "root.img"), "raw")
        return _booted(machine, process, files, disk, Memory(), network)


def _booted(machine: Machine, process: Process, files: Path, disk: Path, memory: Memory, network: str = "") -> Node:
    monitor = process.start(machine, files, disk, memory, network=network)
    node = _node(machine, process, monitor)
    node.wait_for_containerd()
    node.run(["ctr", "-n", "k8s.io", "images", "import", "/usr/lib/box/image.tar"])
    return node


def _node(machine: Machine, process: Process, monitor: Monitor) -> Node:
    port = monitor.forwarded_port()
    (process.directory / PORT_FILE).write_text(str(port))
    node = Node(machine, process, Channel(port))
    node.wait_for_boot()
    return node


def attach(directory: Path) -> Box:
    """A box that another process has started and owns."""
    try:
        return Box(directory, Channel(int((directory / PORT_FILE).read_text())))
    except (OSError, ValueError):
        raise NodeError(f"there is no running box in {directory}") from None


def running() -> list[Path]:
    """The directories of this user's boxes that are up."""
    return [path for path in kept.directories(qemu.PREFIX) if (path / PORT_FILE).exists() and kept.is_kept(path)]


def _copy(machine: Machine, frozen: Path, network: str) -> Node:
    process = Process()
    with _closed_on_error(process):
        disk = process.directory / "disk.qcow2"
        overlay(disk, str(frozen / "disk.qcow2"), "qcow2")
        monitor = process.start(machine, frozen, disk, Memory(frozen), "-S", "-incoming", "defer", network=network)
        monitor.load(str(frozen / "state"))
        node = _node(machine, process, monitor)
        node.channel.hello(resume=True)
        node.offline(machine.offline)
        return node


def _freeze(machine: Machine, variant: Variant, out: Path, report: Report) -> None:
    """Boot a machine, warm it up, and leave in `out` all that copies need."""
    files = image.image(report, variant)
    for name in _IMAGE_FILES:
        os.link(files / name, out / name)  # so that it outlives its image
    report("snapshot: booting")
    process = Process()
    with _closed_on_error(process):
        overlay(out / "disk.qcow2", "root.img", "raw")
        node = _booted(machine, process, out, out / "disk.qcow2", Memory(out, shared=True))
        report("snapshot: warming up")
        _warm_up(node, variant)
        report("snapshot: freezing")
        process.freeze(str(out / "state"))
    node.close()


def _warm_up(node: Node, variant: Variant) -> None:
    """Do once what every user does first, so that copies find it in memory: a pod, the product's imports."""
    with node.cri() as cri:
        sandbox = cri.sandbox("warm-up")
        container = cri.container(sandbox, "warm-up")
        cri.exec(container, "/bin/true")
        cri.update(container, cpuset_cpus="0")
        cri.remove_sandbox(sandbox)
    node.run(["python3", "-c", f"import {_IMPORTS}"], timeout=120)
    for line in variant.warm_up:
        node.run(line, timeout=120)
    node.run("rm -rf /var/log/pods/* && : > /var/log/containerd.log && sync")

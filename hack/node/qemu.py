"""QEMU's command line for a machine, and the process that it runs in."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hack.node.acpi import numbering_initrd
from hack.node.errors import QemuError
from hack.node.guest.frames import PORT
from hack.node.kept import Kept, locked_directory
from hack.node.machine import Machine
from hack.node.qmp import Monitor
from hack.node.tools import QEMU, run

# Of the boxes' directories.
PREFIX = "nri-cpu-box-"

# The timer frequency that Debian's kernels are built with.
_KERNEL_HZ = 250

_KERNEL_WORDS = (
    "console=ttyS0 quiet loglevel=4 panic=1 reboot=t mitigations=off nokaslr audit=0 random.trust_cpu=on "
    # An emulated CPU can't prove its clock and timer to the kernel; expedited grace periods save seconds of boot.
    "tsc=reliable clocksource=tsc no_timer_check rcupdate.rcu_expedited=1"
)


def version() -> str:
    """QEMU's version: a frozen machine can be loaded only by the version that froze it."""
    return run([QEMU, "--version"]).decode().splitlines()[0]


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the machine's memory lies: in no file, in files that it changes, or in files that are copied on write."""

    directory: Path | None = None
    shared: bool = False

    def backend(self, node: int, mebibytes: int) -> str:
        if not self.directory:
            return f"memory-backend-ram,id=m{node},size={mebibytes}M"
        share = "on" if self.shared else "off"
        path = f"{_escape(self.directory)}/ram{node}"
        return f"memory-backend-file,id=m{node},size={mebibytes}M,mem-path={path},share={share}"


def arguments(
    machine: Machine, files: Path, directory: Path, disk: Path, memory: Memory, monitor: int, network: str = ""
) -> list[str]:
    """The command line. `files` has vmlinux and initrd.img, `directory` takes what the box writes.

    `monitor` is the descriptor of a connected socket. `network` is more options of the user network.
    """
    m = machine
    return [
        *(QEMU, "-name", "nri-cpu-box", "-nodefaults", "-no-user-config", "-display", "none"),
        *("-machine", "q35,usb=off,sata=off,smbus=off,vmport=off,hpet=off", "-accel", "tcg,thread=multi,tb-size=512"),
        *("-cpu", m.cpu_model, "-m", f"{m.memory_total}M"),
        *("-smp", f"{m.total},sockets={m.sockets},dies={m.dies},cores={m.cores},threads={m.threads}"),
        *_numa(machine, memory),
        *("-drive", f"if=none,id=disk,file={_escape(disk)},format=qcow2,cache=unsafe,discard=unmap"),
        *("-device", "virtio-blk-pci,drive=disk"),
        # restrict: the box reaches nothing outside; port 0: the kernel chooses, and QEMU tells.
        *(
            "-netdev",
            ",".join(filter(None, ("user,id=net,restrict=on", f"hostfwd=tcp:127.0.0.1:0-:{PORT}", network))),
            "-device",
            "virtio-net-pci,netdev=net,romfile=",
        ),
        *("-serial", f"file:{_escape(directory)}/console.log"),
        *("-chardev", f"socket,id=monitor,fd={monitor}", "-mon", "chardev=monitor,mode=control"),
        *("-kernel", str(files / "vmlinux"), "-initrd", str(_initrd(machine, files, directory))),
        *("-append", " ".join(_kernel_words(machine))),
    ]


def _numa(m: Machine, memory: Memory) -> Iterator[str]:
    for node, mebibytes in enumerate(m.node_memory):
        if mebibytes:
            yield from ("-object", memory.backend(node, mebibytes))
        yield from ("-numa", f"node,nodeid={node}{f',memdev=m{node}' if mebibytes else ''}")
    for p in m.places():
        die = f",die-id={p.die}" if m.dies > 1 else ""  # QEMU refuses to be told of a single die
        where = f"socket-id={p.socket}{die},core-id={p.core},thread-id={p.thread}"
        yield from ("-numa", f"cpu,node-id={p.node},{where}")
    nodes = range(len(m.node_memory))
    if len(nodes) > 1:
        for one in nodes:
            for other in nodes:
                yield from ("-numa", f"dist,src={one},dst={other},val={m.distance(one, other)}")


def _initrd(machine: Machine, files: Path, directory: Path) -> Path:
    path = directory / "initrd.img"
    path.write_bytes(numbering_initrd(machine) + (files / "initrd.img").read_bytes())
    return path


def _kernel_words(machine: Machine) -> Iterator[str]:
    yield _KERNEL_WORDS
    # Without it each CPU measures its own delay loop, up to a second each.
    if found := re.search(r"^bogomips\s*:\s*([0-9.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
        yield f"lpj={int(float(found[1]) * 500_000 / _KERNEL_HZ)}"
    if machine.offline:
        yield "box.offline=" + ",".join(str(cpu) for cpu in machine.offline)
    yield from machine.kernel_words


def _escape(path: Path) -> str:
    return str(path).replace(",", ",,")


def overlay(path: Path, base: str, base_format: str) -> None:
    """A disk that holds what differs from `base`; a relative base is looked for beside the disk."""
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", base_format, path])


class Process:
    """A running QEMU in a directory of its own; both are gone when it is closed, or when this process ends."""

    def __init__(self) -> None:
        self.directory, self._lock = locked_directory(PREFIX)
        self._kept: Kept | None = None
        self.monitor: Monitor | None = None

    def start(
        self, machine: Machine, files: Path, disk: Path, memory: Memory, *extra: str, network: str = ""
    ) -> Monitor:
        """Start it; raises QemuError with what QEMU said. `network` is more options of its user network."""
        ours, theirs = socket.socketpair()
        self.monitor = Monitor(ours)
        with theirs:
            command = arguments(machine, files, self.directory, disk, memory, theirs.fileno(), network)
            self._kept = Kept(
                [*command, *extra],
                directory=self.directory,
                lock=self._lock,
                log=self.directory / "qemu.log",
                handed=[theirs.fileno()],
            )
        os.close(self._lock)
        self._lock = -1
        try:
            self.monitor.open()
        except QemuError as error:
            raise QemuError(f"QEMU did not start: {self.said() or error}") from error
        return self.monitor

    def said(self) -> str:
        """What QEMU wrote to its standard error, without its remarks on features that emulation lacks."""
        with suppress(FileNotFoundError):
            lines = (self.directory / "qemu.log").read_text(errors="replace").splitlines()
            return "\n".join(line for line in lines if "TCG doesn't support requested feature" not in line)
        return ""

    def ended(self) -> bool:
        """Whether QEMU is gone."""
        try:
            self._monitor().execute("query-status")
        except QemuError:
            return True
        return False

    def freeze(self, path: str) -> None:
        """Write the machine's state to `path`; QEMU ends."""
        self._monitor().save(path)

    def _monitor(self) -> Monitor:
        if not self.monitor:
            raise QemuError("QEMU was not started")
        return self.monitor

    def close(self) -> None:
        """End QEMU, if it runs, and remove the directory. May be called twice."""
        if self.monitor:
            self.monitor.close()
        if self._kept:
            self._kept.close()
        else:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

"""What can be done in a running box: commands, files, sockets, containerd, CPUs, reboot, the project's code in it."""

from __future__ import annotations

import io
import itertools
import os
import shlex
import signal
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hack.node.channel import Channel, Result
from hack.node.cri.client import Cri
from hack.node.errors import ChannelError, NodeError, QemuError
from hack.node.image import PRODUCT_DIRECTORY, PROJECT
from hack.node.relay import Relay
from hack.wait import wait_until
from nri_cpu import __version__
from nri_cpu.cpuset import CPUSet

CONTAINERD = "/run/containerd/containerd.sock"
NRI = "/var/run/nri/nri.sock"

# Packages of the product, and the commands they are known by.
PRODUCT = ("nri_cpu", "dra")
COMMANDS = {"nri-cpu": "nri_cpu.cli", "dra-cpu": "dra.cli"}

# The box is up this long after its start at the latest, on a machine that is busy with other things.
BOOT_LIMIT = 180.0

_CPU = "/sys/devices/system/cpu"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True)
class Daemon:
    """A program that was left running in the box; its output goes to `log` there.

    Its process is known by `boot`, the boot id, and `born`, its start time (proc(5): stat, field 22), too: after a
    reboot others have its id, threads among them.
    """

    box: Box
    name: str
    pid: int
    log: str
    boot: str
    born: str

    def alive(self) -> bool:
        """Whether the process is there and is no zombie."""
        answer = self.box.run(["cat", _BOOT_ID, f"/proc/{self.pid}/stat"], check=False)
        boot, _, stat = answer.text.partition("\n")
        return answer.code == 0 and (boot, _born(stat)) == (self.boot, self.born) and _state(stat) != "Z"

    def kill(self, signal_number: int = signal.SIGKILL, limit: float = 30) -> None:
        """Send a signal and wait until the process is gone. Raises NodeError when it was gone before."""
        if not self.alive():
            raise NodeError(f"{self.name} has ended before signal {int(signal_number)}: {self.output()[-1000:]}")
        self.box.run(["kill", f"-{int(signal_number)}", str(self.pid)])
        self.wait_for_end(limit, f" after signal {int(signal_number)}")

    def wait_for_end(self, limit: float, why: str = "") -> None:
        """Wait until the process is gone."""
        wait_until(f"the end of {self.name}{why}", lambda: not self.alive(), limit)

    def output(self) -> str:
        return self.box.read(self.log).decode(errors="replace")


class Box:
    """A running box, reached over its command channel. Every method raises subclasses of NodeError, and those
    that wait TimeoutError.

    `directory` is its directory on the host, with console.log and qemu.log.
    """

    def __init__(self, directory: Path, channel: Channel) -> None:
        self.directory = directory
        self.channel = channel
        self._relays = itertools.count(1)

    def check_alive(self) -> None:
        """Raise QemuError if the box is gone for good."""
        if not self.directory.exists():
            raise QemuError(f"there is no box in {self.directory} any more")

    def run(self, command: str | Sequence[str], **options: Any) -> Result:
        """Run a command in the box (Channel.run has the options)."""
        return self.channel.run(command, **options)

    def daemon(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Daemon:
        """Start a program that goes on when this call returns; output is appended to /var/log/<name>.log."""
        log = f"/var/log/{name}.log"
        # Read by the shell itself, which has not waited for the process: its stat is there even if it has ended.
        facts = f'read -r boot < {_BOOT_ID}; read -r stat < "/proc/$!/stat"; echo "$! $boot $stat"'
        answer = self.run(f"setsid {shlex.join(command)} < /dev/null >> {log} 2>&1 & {facts}", env=env)
        pid, boot, stat = f"{answer.text} ".split(" ", 2)
        return Daemon(self, name, int(pid), log, boot, _born(stat))

    def read(self, path: str) -> bytes:
        return self.run(["cat", path]).stdout

    def write(self, path: str, content: bytes | str, mode: int = 0o644) -> None:
        """Write a file; directories above it are made."""
        data = content.encode() if isinstance(content, str) else content
        quoted = shlex.quote(path)
        self.run(f'mkdir -p "$(dirname {quoted})" && cat > {quoted} && chmod {mode:o} {quoted}', stdin=data)

    def push(self, sources: Sequence[Path], directory: str) -> None:
        """Copy files and directories of the host into a directory of the box."""
        self._unpack(_pack({source.name: source for source in sources}), directory)

    def _unpack(self, archive: bytes, directory: str) -> None:
        quoted = shlex.quote(directory)
        self.run(f"mkdir -p {quoted} && tar -x -C {quoted}", stdin=archive, timeout=300)

    def pull(self, source: str, directory: Path) -> None:
        """Copy a file or directory of the box into a directory of the host."""
        path = PurePosixPath(source)
        packed = self.run(["tar", "-c", "-C", str(path.parent), path.name], timeout=300).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(directory, filter="data")

    @contextmanager
    def serve(self, path: str, at: Path | None = None) -> Iterator[Path]:
        """A unix socket of the box (CONTAINERD, NRI, ...) as one of the host, inside the context."""
        served = at or self.directory / f"{os.getpid()}-{next(self._relays)}.sock"
        with Relay(served, lambda: self.channel.connect(path)):
            yield served

    @contextmanager
    def cri(self) -> Iterator[Cri]:
        """A CRI client of the box's containerd, inside the context."""
        with self.serve(CONTAINERD) as path:
            client = Cri(path, self.read)
            try:
                yield client
            finally:
                client.close()

    def wait_for_containerd(self) -> None:
        with self.cri() as cri:
            cri.wait_until_ready(BOOT_LIMIT)

    def restart_containerd(self, signal_number: int = signal.SIGTERM) -> None:
        """End containerd by a signal; returns when the next one answers. Containers go on."""
        before = self.run(["pidof", "containerd"]).text
        self.run(["kill", f"-{int(signal_number)}", before])
        self._wait_for_another("containerd", before)
        self.wait_for_containerd()

    def _wait_for_another(self, program: str, pid: str) -> None:
        def now() -> bool:
            return self.run(["pidof", program], check=False).text not in ("", pid)

        wait_until(f"a new {program} in place of {pid}", now, BOOT_LIMIT)

    def online_cpus(self) -> CPUSet:
        return CPUSet.parse(self.read(f"{_CPU}/online").decode())

    def offline(self, cpus: CPUSet) -> None:
        """Take CPUs off line."""
        self._switch(cpus, "0")

    def online(self, cpus: CPUSet) -> None:
        """Bring CPUs back on line."""
        self._switch(cpus, "1")

    def _switch(self, cpus: CPUSet, value: str) -> None:
        if cpus:
            self.run(" && ".join(f"echo {value} > {_CPU}/cpu{cpu}/online" for cpu in cpus))

    def reboot(self) -> None:
        """Reboot the kernel in the box; returns when containerd answers. The disk stays, and nothing else."""
        before = self.channel.hello()
        with suppress(ChannelError):  # the channel goes down with everything else, perhaps before it answers
            self.run("sync; reboot")
        self.wait_for_boot(before)
        self.wait_for_containerd()

    def wait_for_boot(self, before: str = "") -> None:
        """Wait until the box answers with another boot id than `before`."""
        end = time.monotonic() + BOOT_LIMIT
        while True:
            with suppress(ChannelError):
                if self.channel.hello() != before:
                    return
            self.check_alive()
            if time.monotonic() > end:
                raise NodeError(f"the box did not answer within {BOOT_LIMIT:g} s; console: {self.console()[-1000:]}")
            time.sleep(0.05)

    def install_project(self, project: Path = PROJECT) -> None:
        """Put the product's packages where the box's Python finds them, and its commands into /usr/local/bin."""
        metadata = f"Metadata-Version: 2.1\nName: nri-cpu\nVersion: {__version__}\n"
        files: dict[str, Path | str] = {f"{PRODUCT_DIRECTORY}/{name}": project / name for name in PRODUCT}
        files[f"{PRODUCT_DIRECTORY}/nri_cpu-{__version__}.dist-info/METADATA"] = metadata
        for name, module in COMMANDS.items():
            files[f"usr/local/bin/{name}"] = (
                f"#!/usr/bin/python3 -I\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
            )
        self.run(["rm", "-rf", f"/{PRODUCT_DIRECTORY}"])
        self._unpack(_pack(files), "/")

    def console(self) -> str:
        """What the kernel and the boot script wrote."""
        with suppress(FileNotFoundError):
            return (self.directory / "console.log").read_text(errors="replace")
        return ""

    def logs(self, last: int = 20_000) -> dict[str, str]:
        """The ends of all logs, by name, for whoever has to find out what went wrong; never raises NodeError."""
        found = {"console.log": self.console()[-last:]}
        with suppress(NodeError):
            for name in self.run("ls -d /var/log/*.log").text.split():
                found[name] = self.run(["tail", "-c", str(last), name], timeout=20).stdout.decode(errors="replace")
        return {name: text for name, text in found.items() if text}


def _state(stat: str) -> str:
    """The state in a process's stat (proc(5)); the name before it is in parentheses, and may have any in it."""
    return stat.rpartition(")")[2].split()[0]


def _born(stat: str) -> str:
    """Its start time, in clock ticks since the boot; empty when there is none."""
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _pack(files: Mapping[str, Path | str]) -> bytes:
    """A tar archive: name in it -> host file or directory, or the text of a program; compiled Python stays behind."""

    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name.endswith("__pycache__"):
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, source in files.items():
            if isinstance(source, Path):
                archive.add(source, arcname=name, filter=keep)
            else:
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(source.encode()), 0o755
                archive.addfile(member, io.BytesIO(source.encode()))
    return buffer.getvalue()

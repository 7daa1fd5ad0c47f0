"""What hwloc reads from a machine's /sys: the second opinion of the tests of captures. hack/hwloc installs it.

Only the standard library and CPUSet are used: this must run before there is an environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from nri_cpu.cpuset import CPUSet

PROGRAM = "lstopo-no-graphics"
PACKAGE = "hwloc-nox"
_INSTALL = f"apt-get install -qq -y --no-install-recommends {PACKAGE}"


class HwlocMissingError(Exception):
    """hwloc isn't here; the message says how to get it, in one line."""


@dataclass(frozen=True, slots=True)
class Seen:
    """hwloc's view. `sockets` and `nodes` are by the kernel's number, the rest by lowest CPU. Nodes without CPUs are
    near those CPUs that hwloc finds near."""

    cpus: CPUSet
    cores: list[CPUSet]
    l3: list[CPUSet]
    dies: list[CPUSet]
    sockets: dict[int, CPUSet]
    nodes: dict[int, CPUSet]


def install() -> None:
    """Install hwloc where that is possible (root and apt). Raises HwlocMissingError."""
    if shutil.which(PROGRAM):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise HwlocMissingError(f"{PROGRAM} is not here: as root, apt-get install {PACKAGE}, or hwloc's own package")
    print(f"installing {PACKAGE}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in ("apt-get update -qq", _INSTALL):
        done = subprocess.run(step.split(), env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or "no output").splitlines()[-1]
            raise HwlocMissingError(f"{step} failed ({said}): install {PACKAGE} by hand")


def see(root: Path) -> Seen:
    """Read the /sys and /proc below `root` with hwloc. Raises HwlocMissingError."""
    if not shutil.which(PROGRAM):
        raise HwlocMissingError(f"{PROGRAM} is not here: hack/hwloc installs it")
    # The variables are what `-i ROOT` sets, which refuses a root without /proc.
    environment = {**os.environ, "HWLOC_COMPONENTS": "linux,stop", "HWLOC_FSROOT": str(root), "HWLOC_THISSYSTEM": "0"}
    command = [PROGRAM, "--disallowed", "--no-io", "--of", "xml", "-"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, list[tuple[int, CPUSet]]] = {}
    for item in ET.fromstring(done.stdout).iter("object"):
        index = int(item.get("os_index", "-1"))
        found.setdefault(item.get("type", ""), []).append((index, _cpus(item.get("cpuset") or "0x0")))

    def sets(kind: str) -> list[CPUSet]:
        return sorted((cpus for _, cpus in found.get(kind, [])), key=CPUSet.first)

    return Seen(
        cpus=CPUSet.union(sets("PU")),
        cores=sets("Core"),
        l3=sets("L3Cache"),
        dies=sets("Die"),
        sockets=dict(sorted(found.get("Package", []))),
        nodes=dict(sorted(found.get("NUMANode", []))),
    )


def _cpus(text: str) -> CPUSet:
    """hwloc's format of a set: 32-bit words in hexadecimal, each with its 0x, an empty one for 0."""
    mask = 0
    for word in text.split(","):
        mask = mask << 32 | int(word or "0", 16)
    return CPUSet.from_mask(mask)


def main() -> int:
    try:
        install()
    except HwlocMissingError as error:
        print(f"hwloc: {error}", file=sys.stderr)
        return 1
    return 0

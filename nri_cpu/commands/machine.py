"""The machine as commands read it that people call: what is odd about its files is logged, which they see with -v only,
and a line tells them that there is something."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nri_cpu.command import tell
from nri_cpu.topology import Overlay, Topology, read_topology


def read_for_people(command: str, host: Path, overlay: Overlay | None, *, verbose: bool) -> Topology:
    """As read_topology, and unless `verbose` has told all a line of `command` on stderr. Raises TopologyError."""

    def hint(oddities: Sequence[str]) -> None:
        if oddities:
            several = len(oddities) > 1
            ways = f"{len(oddities)} ways; -v tells them" if several else "1 way; -v tells it"
            tell(command, f"the machine's files are odd in {ways}")

    return read_topology(host, overlay) if verbose else read_topology(host, overlay, hint)

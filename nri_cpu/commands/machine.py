"""The machine as commands read it that people call: what is odd about its files is logged, which they see with -v only,
and a line tells them that there is something."""

from __future__ import annotations

import sys
from pathlib import Path

from nri_cpu.command import tell
from nri_cpu.topology import Overlay, Topology, read_topology


def read_for_people(command: str, host: Path, overlay: Overlay | None, *, verbose: bool) -> Topology:
    """As read_topology, and unless `verbose` has told all a line of `command` on stderr. Raises TopologyError."""
    if verbose:
        return read_topology(host, overlay)
    if "loguru" not in sys.modules:
        topology = read_topology(host, overlay)
        if "loguru" not in sys.modules:  # it takes 30 ms, and is imported there when something is odd only
            return topology
    from loguru import logger

    oddities: list[str] = []
    listening = logger.add(oddities.append, level="INFO", format="{message}", filter="nri_cpu.topology")
    try:
        topology = read_topology(host, overlay)  # where it was read before: once more, with somebody who counts
    finally:
        logger.remove(listening)
    if oddities:
        several = len(oddities) > 1
        ways = f"{len(oddities)} ways; -v tells them" if several else "1 way; -v tells it"
        tell(command, f"the machine's files are odd in {ways}")
    return topology

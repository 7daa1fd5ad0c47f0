"""Which sysfs overlay a command reads the machine with."""

from __future__ import annotations

from pathlib import Path

from nri_cpu.command import UsageError
from nri_cpu.config import Config
from nri_cpu.topology import Overlay, TopologyError, load_overlay


def overlay_of(argument: Path | None, config: Config) -> Overlay | None:
    """--sysfs-overlay, else sysfsOverlay, else none. Raises UsageError."""
    path = argument or config.sysfs_overlay
    try:
        return load_overlay(path) if path else None
    except TopologyError as error:
        raise UsageError(str(error)) from None

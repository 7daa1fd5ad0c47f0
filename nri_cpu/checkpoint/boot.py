"""Tells one boot of the machine from another."""

from __future__ import annotations

from pathlib import Path

from nri_cpu.checkpoint.errors import CheckpointError
from nri_cpu.checkpoint.files import read_bytes

_LIMIT = 64  # 36 characters and a newline


def boot_id(host: Path) -> str:
    """The kernel's random ID of this boot (Documentation/admin-guide/sysctl/kernel.rst).

    `host`: the folder that has /proc. "" when it can't be told: then nothing is known to be of this boot.
    """
    try:
        text = read_bytes(host / "proc/sys/kernel/random/boot_id", _LIMIT).decode("ascii").strip()
    except (CheckpointError, UnicodeDecodeError):
        return ""
    return text if text.isprintable() else ""

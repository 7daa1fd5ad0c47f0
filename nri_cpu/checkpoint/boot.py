"""Tells one boot of the machine from another."""

from __future__ import annotations

from pathlib import Path


def boot_id(host: Path) -> str:
    """The kernel's random ID of this boot (Documentation/admin-guide/sysctl/kernel.rst).

    `host`: the folder that has /proc. "" when it can't be told: then nothing is known to be of this boot.
    """
    try:
        text = (host / "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return text if text.isprintable() else ""

"""Tells one boot of the machine from another."""

from __future__ import annotations

import os
from pathlib import Path


def boot_id() -> str:
    """The kernel's random ID of this boot (Documentation/admin-guide/sysctl/kernel.rst), read under HOST_ROOT.

    "" when it can't be told: then nothing is known to be of this boot.
    """
    path = Path(os.environ.get("HOST_ROOT") or "/", "proc/sys/kernel/random/boot_id")
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return text if text.isprintable() else ""

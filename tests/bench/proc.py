"""What the kernel tells of a process under test."""

from __future__ import annotations

from pathlib import Path


def memory_mib(pid: int) -> float:
    """Resident memory."""
    return int(_status(pid, "VmRSS").split()[0]) / 1024


def threads(pid: int) -> int:
    return int(_status(pid, "Threads"))


def _status(pid: int, key: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{key}:"))

"""Runs our commands as somebody who may read only what everybody may, whoever runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_NOBODY = 65534

# Root keeps its files and loses what lets it read those of others (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH), for good:
# a capability that is out of the bounding set (PR_CAPBSET_DROP) is not had after exec either.
_DROP = """
import ctypes, os, sys
for capability in (1, 2):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def out_of_reach(directory: Path) -> None:
    """Make the directory somebody else's, whose content nobody else may reach."""
    directory.chmod(0o700 if os.geteuid() == 0 else 0)
    if os.geteuid() == 0:
        os.chown(directory, _NOBODY, _NOBODY)


def as_ordinary_user(*arguments: str, host: Path) -> subprocess.CompletedProcess[str]:
    """The interpreter with these arguments; `host` is HOST_ROOT."""
    return subprocess.run(
        [sys.executable, "-c", _DROP, *arguments],
        env={**os.environ, "HOST_ROOT": str(host)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

"""Whether the kubelet pins CPUs itself: its static CPU manager and nri-cpu would undo each other's work (fault B8).

The kubelet keeps its policy in cpu_manager_state under its root, and never runs with another policy than that file's.
"""

from __future__ import annotations

import json
from pathlib import Path

from loguru import logger

from dra.commands.errors import CommandError
from dra.values import shown
from nri_cpu.regular import NotRegularError, read_regular

STATE = "cpu_manager_state"
# A kubelet's own has a line for each container with CPUs.
_MAX_BYTES = 4 << 20


def check_cpu_manager(root: Path, *, refuse: bool) -> None:
    """Looks at the state of the kubelet whose root it is. Raises CommandError for a static policy when `refuse`, and
    says so in the log otherwise; a file that tells nothing is a line there too."""
    path = root / STATE
    try:
        policy = _policy(path)
    except FileNotFoundError:
        return
    except (OSError, NotRegularError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error) or "it is no regular file"
        logger.warning(
            "whether the kubelet pins CPUs itself is unknown, {} can't be used: {}; its cpuManagerPolicy must be none",
            *(path, why),
        )
        return
    if policy != "static":
        return
    problem = (
        f"{path} says that the kubelet's CPU manager has policy static, which would move containers off their claims' "
        "CPUs: drain the node, stop the kubelet, set its cpuManagerPolicy to none, remove that file, and start it again"
    )
    if refuse:
        raise CommandError(f"{problem} (kubeletCPUManagerConflict: warn starts dra-cpu all the same)")
    logger.warning("{}", problem)


def _policy(path: Path) -> object:
    """Raises OSError, NotRegularError, ValueError or RecursionError."""
    raw = read_regular(path, _MAX_BYTES)
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    state = json.loads(raw)
    if not isinstance(state, dict) or not isinstance(policy := state.get("policyName"), str):
        raise ValueError(f"it has no policyName in words: {shown(state)}")  # noqa: TRY004  # of a file, not of a caller
    return policy

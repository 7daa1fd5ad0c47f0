"""Promises about names that others choose: a request may hold anything, log and answer keep their form."""

import time
from pathlib import Path

from loguru import logger

from dra.claims import ClaimRef
from tests.unit.dra.manifests import uid
from tests.unit.dra.rig import Rig


def test_names_in_a_request_forge_no_lines_of_the_log(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    lines: list[str] = []
    sink = logger.add(lines.append, level=0, format="{message}")
    forged = ClaimRef(uid(9), "default\n2026-11-30 ERROR forged", "x\x1b[31m\ud800" + "y" * 10_000)
    odd = ClaimRef("u\n2026", "a", "b")
    good = rig.claim(1)
    answers = rig.outcome(forged, odd, good)
    rig.preparer.unprepare([forged, odd], time.monotonic() + 30)
    rig.plugin.release()
    rig.outcome(forged)
    logger.remove(sink)
    assert not isinstance(answers[good.uid], str)
    assert sum(line.count("\n") for line in lines) == len(lines) == 5
    assert all(line.strip().isprintable() and len(line) < 1500 for line in lines)
    assert all(answers[ref.uid].isprintable() for ref in (forged, odd))

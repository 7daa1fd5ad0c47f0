"""Waiting ends with what was waited for, or with its name."""

from __future__ import annotations

import pytest

from hack.wait import wait_until


def test_a_wait_gives_what_it_waited_for() -> None:
    things = iter(["", None, 0, "here"])
    assert wait_until("a thing", lambda: next(things)) == "here"


def test_a_wait_that_is_in_vain_names_what_it_waited_for() -> None:
    with pytest.raises(TimeoutError, match=r"the moon: not within 0\.05 s"):
        wait_until("the moon", lambda: None, 0.05)

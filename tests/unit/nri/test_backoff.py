"""Waiting before another try."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_cpu.nri import backoff


@pytest.mark.fault("R6")
@given(st.floats(0, 1, exclude_max=True))
def test_delays_never_end_and_stay_between_half_of_and_the_whole_of_a_doubling_bound(chance: float) -> None:
    bounds = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0] + [30.0] * 1000
    for bound, delay in zip(bounds, backoff.delays(chance=lambda: chance), strict=False):
        assert bound / 2 <= delay <= bound


@pytest.mark.fault("R6")
def test_two_plugins_do_not_come_back_in_step() -> None:
    assert list(islice(backoff.delays(), 5)) != list(islice(backoff.delays(), 5))


def test_a_first_delay_above_the_longest_is_cut() -> None:
    assert list(islice(backoff.delays(first=9, longest=2, chance=lambda: 1.0), 2)) == [2, 2]

"""Fixtures of the protocol tests: the test runtime, over each version of NRI that it is built with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from tests.nri_runtime.build import VERSIONS
from tests.nri_runtime.driver import NriRuntime, Option


class StartRuntime(Protocol):
    """Starts a runtime of the test's NRI version with options of its own; it ends with the test."""

    def __call__(self, **options: Option) -> NriRuntime: ...


@pytest.fixture(params=VERSIONS)
def nri_version(request: pytest.FixtureRequest) -> str:
    """Each version of NRI that the test runtime is built with."""
    version: str = request.param
    return version


@pytest.fixture
def start_runtime(nri_version: str) -> Iterator[StartRuntime]:
    """For tests that need a runtime with options, or several."""
    with ExitStack() as running:
        yield lambda **options: running.enter_context(NriRuntime(nri_version, **options))


@pytest.fixture
def runtime(start_runtime: StartRuntime) -> NriRuntime:
    """A runtime without pods, over each version of NRI."""
    return start_runtime()

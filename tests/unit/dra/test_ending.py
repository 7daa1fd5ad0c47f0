"""Promises of the end: a signal or a thread that fails, whichever is first, and it is known which one it was."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from loguru import logger

from dra.commands.ending import Ending

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def log() -> Iterator[list[str]]:
    """The log; signals and their mask are afterwards as they were."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    handlers = [signal.getsignal(number) for number in SIGNALS]
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), format="{message}", diagnose=False)
    yield lines
    logger.remove(sink)
    for number, handler in zip(SIGNALS, handlers, strict=True):
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def fail(name: str = "worker", error: type[BaseException] = ValueError) -> None:
    """A thread of this name fails."""

    def broken() -> None:
        raise error("of mine")

    thread = threading.Thread(target=broken, name=name)
    thread.start()
    thread.join()


@pytest.mark.fault("A25")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_the_end_and_no_failure(number: signal.Signals) -> None:
    with Ending() as ending:
        assert not ending.wait(0)
        os.kill(os.getpid(), number)
        assert ending.wait(30)
        assert ending.failure is None
        assert [signal.getsignal(each) for each in SIGNALS] == [signal.SIG_DFL] * 2  # a second one kills


@pytest.mark.fault("A25")
def test_a_signal_that_came_before_is_not_lost() -> None:
    with Ending() as ending:
        os.kill(os.getpid(), signal.SIGTERM)
        assert ending.wait()


@pytest.mark.fault("A37")
def test_a_thread_that_fails_is_the_end_and_is_named(log: list[str]) -> None:
    with Ending() as ending:
        fail("publisher")
        fail("node-watch", SystemExit)
        assert ending.wait()
        assert ending.failure == "its thread publisher has failed: ValueError; the log says where"
    assert "the thread publisher has failed, which is a fault of dra-cpu itself" in log[0]
    assert "in broken" in log[0]
    assert "the thread node-watch has failed" in log[1]


@pytest.mark.fault("A37")
def test_a_thread_that_fails_after_the_end_does_not_kill_the_process_that_stops(log: list[str]) -> None:
    with Ending() as ending:
        os.kill(os.getpid(), signal.SIGTERM)
        assert ending.wait()
        fail()
        assert ending.failure == "its thread worker has failed: ValueError; the log says where"
    assert len(log) == 1


def test_afterwards_threads_fail_as_before(log: list[str]) -> None:
    before = threading.excepthook
    with Ending():
        assert threading.excepthook is not before
    assert threading.excepthook is before
    assert log == []

"""Promises of the end: a signal or a thread that fails, whichever is first, and it is known which one it was.

Signals are sent to processes of their own: what they do to one depends on all of its threads.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from loguru import logger

from dra.commands.ending import Ending

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Threads beside the main one, as gRPC has them: the kernel may give a signal to any that does not block it.
PREAMBLE = """
import os, signal, subprocess, sys, threading, time
from dra.commands.ending import Ending
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
def send(number, to=None):
    os.kill(to or os.getpid(), number)
def say(*words):
    print(*words, flush=True)
def hang():
    while True:
        time.sleep(0.05)  # short: a signal just before a system call does not interrupt it
"""


def outcome(script: str, number: int = 0) -> tuple[int, str, str]:
    """Exit code, standard output and log of a process; with a number, it gets this signal at its first line."""
    command = [sys.executable, "-c", PREAMBLE + script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        first = ""
        if number:
            assert process.stdout
            first = process.stdout.readline()
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
    return process.returncode, first + out, err


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), format="{message}", diagnose=False)
    yield lines
    logger.remove(sink)


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
    script = """
with Ending() as ending:
    ending.keep()
    say(ending.wait(0))
    while not ending.wait(1):
        pass
    say(ending.wait(50), ending.failure)
"""
    assert outcome(script, number) == (0, "False\nTrue None\n", "")


@pytest.mark.fault("A25")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_it_at_once_whatever_it_waits_for(number: signal.Signals) -> None:
    script = f"""
with Ending() as ending:
    ending.keep()
    send(signal.SIGTERM)
    ending.wait(50)
    threading.Timer(0, send, [{number}]).start()
    hang()
"""
    assert outcome(script)[0] == 128 + number


@pytest.mark.fault("A25")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_anything_is_served_ends_it_at_once(number: signal.Signals) -> None:
    script = """
with Ending():
    try:
        say("starting")
        hang()
    finally:
        hang()
"""
    assert outcome(script, number) == (0, "starting\n", "dra-cpu: ended by a signal before it served\n")


@pytest.mark.fault("A25")
def test_a_program_that_it_starts_can_be_ended() -> None:
    script = """
with Ending():
    child = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(50)"],
                             stdout=subprocess.PIPE)
    child.stdout.readline()
    child.terminate()
    say(child.wait())
"""
    assert outcome(script) == (0, f"{-signal.SIGTERM}\n", "")


@pytest.mark.fault("A37")
def test_a_signal_after_a_thread_has_failed_does_not_cut_off_the_clean_end() -> None:
    script = """
with Ending() as ending:
    ending.keep()
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    say(ending.wait(50))
    send(signal.SIGTERM)
    say(ending.failure)
"""
    code, out, _ = outcome(script)
    assert code == 0
    assert out.splitlines()[0] == "True"
    assert "has failed: ZeroDivisionError" in out


@pytest.mark.fault("A37")
def test_a_thread_that_fails_is_the_end_and_is_named(log: list[str]) -> None:
    with Ending() as ending:
        assert not ending.wait(0)
        fail("publisher")
        fail("node-watch", SystemExit)
        assert ending.wait(50)
        assert ending.failure == "its thread publisher has failed: ValueError; the log says where"
    assert "the thread publisher has failed, which is a fault of dra-cpu itself" in log[0]
    assert "in broken" in log[0]
    assert "the thread node-watch has failed" in log[1]


def test_afterwards_threads_and_signals_are_as_before(log: list[str]) -> None:
    before = threading.excepthook, [signal.getsignal(number) for number in SIGNALS]
    with Ending():
        assert threading.excepthook is not before[0]
    assert (threading.excepthook, [signal.getsignal(number) for number in SIGNALS]) == before
    assert log == []


def test_an_error_in_it_is_passed_on() -> None:
    with pytest.raises(KeyError), Ending():
        raise KeyError

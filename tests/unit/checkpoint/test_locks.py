"""Locks between processes: one holder at a time, free the moment it is gone, and asked about without disturbing it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nri_cpu.checkpoint.errors import CheckpointUnreadable, CheckpointUnwritable
from nri_cpu.checkpoint.locks import FileLock, held_by_other

# Takes the lock, says whether it got it, and keeps it until its input ends.
HOLDER = """
import pathlib, sys
from nri_cpu.checkpoint.locks import FileLock
lock = FileLock(pathlib.Path(sys.argv[1]))
print("held" if lock.acquire() else "refused", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "synchronized.lock"


@contextmanager
def other_process(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that has tried to take the lock, and its answer."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_one_process_holds_the_lock_and_the_others_are_refused_until_it_is_gone(path: Path) -> None:
    lock = FileLock(path)
    with other_process(path) as (holder, answer):
        assert answer == "held"
        assert not lock.acquire()
        with other_process(path) as (_, second):
            assert second == "refused"
        holder.kill()  # no clean-up of its own
        holder.wait()
        assert lock.acquire()
        assert lock.held
    with other_process(path) as (_, answer):
        assert answer == "refused"
    lock.release()
    with other_process(path) as (_, answer):
        assert answer == "held"


def test_the_probe_tells_a_holder_and_leaves_it_alone(path: Path) -> None:
    assert not held_by_other(path), "no file, no holder"
    assert not path.exists(), "asking makes nothing"
    with other_process(path) as (holder, answer):
        assert answer == "held"
        assert held_by_other(path)
        assert held_by_other(path)
        assert not FileLock(path).acquire(), "still the holder's"
        holder.kill()
        holder.wait()
        assert not held_by_other(path)
        assert not held_by_other(path), "the probe keeps nothing"


def test_a_lock_of_this_process_is_held_by_other_for_whoever_asks(path: Path) -> None:
    lock = FileLock(path)
    assert lock.acquire()
    assert held_by_other(path)
    second = FileLock(path)
    assert not second.acquire()
    assert not second.held
    lock.release()
    assert not held_by_other(path)


def test_a_probe_at_the_same_moment_refuses_the_lock_but_no_other_probe(path: Path) -> None:
    path.touch()
    probing = os.open(path, os.O_RDONLY)
    fcntl.flock(probing, fcntl.LOCK_SH)  # a probe, stopped in its instant
    lock = FileLock(path)
    try:
        assert not held_by_other(path)
        assert not lock.acquire()
    finally:
        os.close(probing)
    assert lock.acquire(), "so the holder tries again"
    lock.release()


def test_taking_twice_and_giving_up_twice_is_harmless(path: Path) -> None:
    lock = FileLock(path)
    lock.release()
    assert lock.acquire()
    assert lock.acquire()
    lock.release()
    lock.release()
    assert not lock.held
    assert lock.acquire()
    lock.release()


def test_the_file_stays_and_is_private(path: Path) -> None:
    lock = FileLock(path)
    lock.acquire()
    lock.release()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_descriptors_do_not_add_up(path: Path) -> None:
    holder, second = FileLock(path), FileLock(path)
    assert holder.acquire()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        assert not second.acquire()
        assert held_by_other(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    holder.release()


@pytest.mark.parametrize("again", [True, False], ids=["replaced", "removed"])
def test_a_lock_on_a_file_that_was_removed_meanwhile_is_not_believed(
    path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    real = fcntl.flock
    opened: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        opened.append(descriptor)
        if len(opened) == 1:  # someone is between our open and our lock
            path.unlink()
            if again:
                path.touch()
        real(descriptor, operation)

    monkeypatch.setattr("nri_cpu.checkpoint.locks.fcntl.flock", flock)
    lock = FileLock(path)
    assert lock.acquire()
    assert len(opened) == 2
    monkeypatch.undo()
    assert not FileLock(path).acquire(), "the lock is on the file that others find"
    lock.release()


def test_a_held_lock_whose_directory_was_made_again_is_taken_anew(tmp_path: Path) -> None:
    path = tmp_path / "state" / "synchronized.lock"
    path.parent.mkdir()
    lock = FileLock(path)
    assert lock.acquire()
    before = len(list(Path("/proc/self/fd").iterdir()))
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    assert not held_by_other(path)
    assert lock.acquire()
    assert held_by_other(path)
    assert not FileLock(path).acquire()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    lock.release()


def test_a_lost_lock_that_another_has_taken_since_is_not_held(path: Path) -> None:
    lock, other = FileLock(path), FileLock(path)
    assert lock.acquire()
    path.unlink()
    assert other.acquire()
    assert not lock.acquire()
    assert not lock.held
    other.release()
    assert lock.acquire()
    lock.release()


def test_a_held_lock_whose_directory_is_gone_is_our_error_and_not_held(tmp_path: Path) -> None:
    path = tmp_path / "state" / "synchronized.lock"
    path.parent.mkdir()
    lock = FileLock(path)
    assert lock.acquire()
    shutil.rmtree(path.parent)
    for a_file_instead in (False, True):
        if a_file_instead:
            path.parent.touch()
        with pytest.raises(CheckpointUnwritable, match=f"{path} can't be locked"):
            lock.acquire()
        assert not lock.held


def test_a_place_where_no_lock_can_be_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "none" / "x.lock", tmp_path / "directory", tmp_path / "file" / "x.lock"):
        with pytest.raises(CheckpointUnwritable, match=f"{path} can't be locked"):
            FileLock(path).acquire()
    with pytest.raises(CheckpointUnreadable, match="can't be opened"):
        held_by_other(tmp_path / "file" / "x.lock")


def test_a_filesystem_without_locks_is_our_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    path.touch()
    monkeypatch.setattr("nri_cpu.checkpoint.locks.fcntl.flock", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CheckpointUnwritable, match="No locks available"):
        FileLock(path).acquire()
    with pytest.raises(CheckpointUnreadable, match="No locks available"):
        held_by_other(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before

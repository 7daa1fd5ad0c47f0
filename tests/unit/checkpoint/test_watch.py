"""The watch on the directory: a new file wakes the reader, through every fate of the directory."""

from __future__ import annotations

import errno
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inotify_simple import Event, INotify, flags

from nri_cpu.checkpoint import files
from nri_cpu.checkpoint.errors import CheckpointUnreadable
from nri_cpu.checkpoint.locks import FileLock
from nri_cpu.checkpoint.watch import DirectoryWatch


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "lib" / "dra-cpu"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def watched(directory: Path) -> Iterator[DirectoryWatch]:
    watched = DirectoryWatch(directory)
    yield watched
    watched.close()


def woken(watched: DirectoryWatch) -> bool:
    """Whether the descriptor is readable now: events are queued by the call that makes them."""
    return bool(select.select([watched.fileno()], [], [], 0)[0])


def test_nothing_wakes_nobody_and_reading_does_not_wait(watched: DirectoryWatch) -> None:
    assert not woken(watched)
    assert not watched.read()


@pytest.mark.parametrize("write", [files.write_durably, files.replace])
def test_a_written_file_wakes_and_reading_empties_the_queue(
    directory: Path, watched: DirectoryWatch, write: Callable[[Path, bytes], None]
) -> None:
    for _ in range(2):
        write(directory / "checkpoint.json", b"x")
        assert woken(watched)
        assert watched.read()
        assert not woken(watched)
        assert not watched.read()


def test_removal_and_an_edit_in_place_wake(directory: Path, watched: DirectoryWatch) -> None:
    file = directory / "checkpoint.json"
    for act in (lambda: file.write_bytes(b"x"), lambda: file.rename(directory / "aside"), (directory / "aside").unlink):
        act()
        assert watched.read()


def test_locks_and_temporary_files_are_no_news(directory: Path, watched: DirectoryWatch) -> None:
    lock = FileLock(directory / "nri-cpu.lock")
    lock.acquire()
    lock.release()
    (directory / ".checkpoint.json.0123456789abcdef.tmp").write_bytes(b"x")
    (directory / ".checkpoint.json.0123456789abcdef.tmp").unlink()
    assert not watched.read()


def test_a_directory_removed_and_made_again_is_watched_on(directory: Path, watched: DirectoryWatch) -> None:
    for _ in range(3):
        directory.rmdir()
        assert watched.read()
        assert not watched.read()
        directory.mkdir()
        assert woken(watched)
        assert watched.read()
        (directory / "checkpoint.json").write_bytes(b"x")
        assert watched.read()
        (directory / "checkpoint.json").unlink()
        watched.read()


def test_a_directory_replaced_between_two_reads_is_watched_on(directory: Path, watched: DirectoryWatch) -> None:
    for turn in range(3):
        directory.rename(directory.with_name(f"old-{turn}"))
        directory.mkdir()
        assert watched.read()
        assert not watched.read()
        (directory.with_name(f"old-{turn}") / "checkpoint.json").write_bytes(b"x")
        assert not woken(watched), "the old one is nobody's any more"
        (directory / "checkpoint.json").write_bytes(b"x")
        assert watched.read()


def test_a_directory_moved_away_and_back_is_watched_on(directory: Path, watched: DirectoryWatch) -> None:
    away = directory.rename(directory.with_name("away"))
    assert watched.read()
    assert not watched.read()
    away.rename(directory)
    assert woken(watched)
    assert watched.read()
    (directory / "checkpoint.json").write_bytes(b"x")
    assert watched.read()


def test_a_directory_whose_parents_come_later_is_found_step_by_step(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b" / "c"
    watched = DirectoryWatch(directory)
    assert not watched.read()
    for step in (tmp_path / "a", tmp_path / "a" / "b"):
        step.mkdir()
        assert woken(watched)
        assert not watched.read()
    (tmp_path / "a" / "b").rmdir()
    assert not watched.read()
    (tmp_path / "a" / "b").mkdir()
    assert not watched.read()
    directory.mkdir()
    assert watched.read()
    (directory / "checkpoint.json").write_bytes(b"x")
    assert watched.read()
    watched.close()


def test_the_whole_tree_gone_and_back_between_two_reads_is_watched_on(directory: Path, watched: DirectoryWatch) -> None:
    directory.rmdir()
    directory.parent.rmdir()
    assert watched.read()
    directory.mkdir(parents=True)
    (directory / "checkpoint.json").write_bytes(b"x")
    assert watched.read()
    (directory / "checkpoint.json").write_bytes(b"y")
    assert watched.read()


def test_a_file_in_the_place_of_the_directory_is_waited_out(directory: Path, watched: DirectoryWatch) -> None:
    directory.rmdir()
    directory.touch()
    assert watched.read()
    directory.unlink()
    directory.mkdir()
    assert watched.read()


def test_an_overflow_of_the_queue_is_news(watched: DirectoryWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Event(-1, flags.Q_OVERFLOW, 0, "")
    with monkeypatch.context() as patch:
        patch.setattr(INotify, "read", lambda *_, **__: iter([lost]))
        assert watched.read()
    assert not watched.read()


def test_a_directory_made_while_the_one_above_is_looked_for_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "a" / "dra-cpu"
    looks: list[Path] = []
    real = INotify.add_watch

    def add_watch(inotify: INotify, path: Path, mask: int) -> object:
        looks.append(path)
        if len(looks) == 3:  # the directory and the one above were not there a moment ago
            directory.mkdir(parents=True)
        return real(inotify, path, mask)

    monkeypatch.setattr(INotify, "add_watch", add_watch)
    watched = DirectoryWatch(directory)
    assert looks[:3] == [directory, directory.parent, tmp_path]
    (directory / "checkpoint.json").write_bytes(b"x")
    assert woken(watched)
    assert watched.read()
    watched.close()


@pytest.mark.parametrize("call", ["__init__", "add_watch"])
def test_no_watch_to_be_had_is_our_error_and_names_the_limit(
    directory: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(INotify, call, refuse)
    with pytest.raises(CheckpointUnreadable, match=rf"{directory} can't be watched: .*fs\.inotify"):
        DirectoryWatch(directory)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_directory_that_came_back_unwatchable_is_told_of(
    directory: Path, watched: DirectoryWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    directory.rmdir()
    with monkeypatch.context() as patch:
        patch.setattr(INotify, "add_watch", refuse)
        with pytest.raises(CheckpointUnreadable):
            watched.read()
    directory.mkdir()
    assert watched.read(), "the next read tries again"

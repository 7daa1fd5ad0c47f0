"""Files on the disk: a reader finds the old content or the new, whatever became of the writer."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_cpu.checkpoint import codec, files
from nri_cpu.checkpoint.errors import (
    CheckpointMissing,
    CheckpointUnreadable,
    CheckpointUnwritable,
    Corrupt,
    TooNew,
)
from nri_cpu.checkpoint.model import Checkpoint
from nri_cpu.cpuset import EMPTY
from tests.unit.checkpoint.faulty import FaultyOS, Killed
from tests.unit.checkpoint.samples import BOOT, CHECKPOINT, CLAIM_A, OWNERS, UID_A, file_with

Write = Callable[[Path, bytes], None]
OLD = codec.checkpoint_to_bytes(Checkpoint(EMPTY, {}), BOOT)
NEW = codec.checkpoint_to_bytes(CHECKPOINT, BOOT)

both_writes = pytest.mark.parametrize("write", [files.write_durably, files.replace])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.json"
    path.write_bytes(OLD)
    return path


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@both_writes
def test_what_was_written_is_read_back(path: Path, write: Write) -> None:
    write(path, NEW)
    assert files.read_checkpoint(path) == (CHECKPOINT, BOOT)
    assert [entry.name for entry in path.parent.iterdir()] == ["checkpoint.json"]


@both_writes
def test_only_the_owner_can_read_the_file_whatever_the_mode_of_the_old_one(path: Path, write: Write) -> None:
    path.chmod(0o666)
    before = os.umask(0)
    try:
        write(path, NEW)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_owners_have_their_own_reader(path: Path) -> None:
    files.replace(path, codec.owners_to_bytes(OWNERS, BOOT))
    assert files.read_owners(path) == (OWNERS, BOOT)
    with pytest.raises(Corrupt, match="reservedCPUs is missing"):
        files.read_checkpoint(path)


@pytest.mark.fault("A14")
def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = FaultyOS()
    monkeypatch.setattr(files, "os", system)
    files.write_durably(path, NEW)
    order = [name for name in system.calls if name in ("write", "fsync", "rename")]
    assert order == ["write", "fsync", "rename", "fsync"]


def test_a_replacement_waits_for_no_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = FaultyOS()
    monkeypatch.setattr(files, "os", system)
    files.replace(path, NEW)
    assert "fsync" not in system.calls
    assert "rename" in system.calls


def test_what_is_put_makes_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "new" / "one" / "file"
    files.put(path, NEW)
    assert path.read_bytes() == NEW
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointUnwritable, match="can't be made: "):
        files.put(tmp_path / "file" / "below", NEW)


def test_what_is_there_already_can_be_put_where_nothing_can_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, raw: bytes, mode: int) -> None:
        raise CheckpointUnwritable("disk full")

    monkeypatch.setattr(files, "replace", refuse)
    files.put(path, OLD)
    for other in (OLD[:-1], OLD + b" ", NEW, b""):
        with pytest.raises(CheckpointUnwritable, match="disk full"):
            files.put(path, other)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointUnwritable, match="disk full"):
        files.put(path, OLD)


def test_removing_what_is_not_there_is_no_failure(path: Path) -> None:
    files.remove(path, "the file")
    for gone in (path, path / "below", path.parent / "none" / "file"):
        files.remove(gone, "the file")
    path.touch()
    files.remove(path / "below", "the file")
    assert path.exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO])
def test_a_refusal_to_remove_counts_for_what_is_there_only(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A read-only mount refuses before it looks."""

    def refuse(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "unlink", refuse)
    (path.parent / "dangling").symlink_to("nowhere")
    for there in (path, path.parent / "dangling"):
        with pytest.raises(CheckpointUnwritable, match=f"^the file {there} can't be removed: {os.strerror(number)}; "):
            files.remove(there, "the file")
    files.remove(path.parent / "other", "the file")
    files.remove(path.parent / "none" / "other", "the file")


def test_what_can_not_even_be_looked_at_may_be_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    monkeypatch.setattr(Path, "lstat", refuse)
    with pytest.raises(CheckpointUnwritable, match="Permission denied"):
        files.remove(path, "the file")


def test_a_write_that_takes_one_byte_at_a_time_is_finished(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "os", FaultyOS(partial=True))
    files.write_durably(path, NEW)
    assert path.read_bytes() == NEW


def calls_of(write: Write, path: Path) -> int:
    """How many system calls one write makes."""
    system = FaultyOS()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "os", system)
        write(path, OLD)
    return len(system.calls)


@both_writes
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.fault("S1", "A14")
def test_a_writer_killed_at_any_step_leaves_the_old_file_or_the_new(path: Path, write: Write, partial: bool) -> None:
    found = set()
    for step in range(calls_of(write, path)):
        path.write_bytes(OLD)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "os", FaultyOS(step + (40 if partial and step > 2 else 0), Killed(), partial=partial))
            with pytest.raises(Killed):
                write(path, NEW)
        found.add(path.read_bytes())
        assert sorted(path.parent.glob("*.json")) == [path]
        assert not list(path.parent.glob("*.yaml"))
    assert found == ({OLD} if partial else {OLD, NEW})
    write(path, NEW)
    assert files.read_checkpoint(path) == (CHECKPOINT, BOOT)


@both_writes
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_an_error_at_any_step_is_ours_and_leaves_the_old_file_and_no_other(
    path: Path, write: Write, number: int
) -> None:
    steps = calls_of(write, path)
    for step in range(steps):
        path.write_bytes(OLD)
        before = descriptors()
        system = FaultyOS(step, OSError(number, os.strerror(number)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "os", system)
            with pytest.raises(CheckpointUnwritable, match=f"{path} can't be written: .*; check"):
                write(path, NEW)
        renamed = "rename" in system.calls[:step]
        assert path.read_bytes() == (NEW if renamed else OLD), system.calls
        assert [entry.name for entry in path.parent.iterdir()] == ["checkpoint.json"], system.calls
        assert descriptors() == before


@both_writes
def test_the_first_write_makes_the_file_and_a_failed_one_makes_none(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "checkpoint.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "os", FaultyOS(3, OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(CheckpointUnwritable, match="No space left"):
            write(path, NEW)
    assert list(tmp_path.iterdir()) == []
    write(path, NEW)
    assert path.read_bytes() == NEW


@both_writes
def test_a_directory_that_is_not_there_is_our_error(tmp_path: Path, write: Write) -> None:
    for path in (tmp_path / "none" / "checkpoint.json", Path("/proc/self/checkpoint.json")):
        with pytest.raises(CheckpointUnwritable, match=str(path)):
            write(path, NEW)


@both_writes
def test_a_directory_in_the_place_of_the_file_is_our_error(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "checkpoint.json"
    path.mkdir()
    with pytest.raises(CheckpointUnwritable, match=str(path)):
        write(path, NEW)
    assert list(tmp_path.iterdir()) == [path]


@both_writes
@pytest.mark.fault("A14")
def test_a_reader_beside_the_writer_never_sees_a_part(path: Path, write: Write) -> None:
    stop = threading.Event()
    seen: list[object] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(files.read_checkpoint(path))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(50):
            write(path, NEW)
            write(path, OLD)
    finally:
        stop.set()
        reader.join()
    empty = (Checkpoint(EMPTY, {}), BOOT)
    assert all(one in (empty, (CHECKPOINT, BOOT)) for one in seen)


def test_a_missing_file_is_missing_and_not_empty(tmp_path: Path) -> None:
    for path in (tmp_path / "checkpoint.json", tmp_path / "none" / "checkpoint.json"):
        with pytest.raises(CheckpointMissing, match=f"{path} does not exist: "):
            files.read_checkpoint(path)


def test_what_is_no_regular_file_is_unreadable_and_reading_it_does_not_hang(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    before = descriptors()
    for path in (tmp_path, fifo, Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(CheckpointUnreadable, match=f"{path} is no regular file"):
            files.read_checkpoint(path)
    assert descriptors() == before


@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ELOOP])
def test_a_file_that_the_system_does_not_give_is_unreadable_and_not_empty(path: Path, call: str, number: int) -> None:
    at = {"open": 0, "read": 2}[call]
    before = descriptors()
    system = FaultyOS(at, OSError(number, os.strerror(number)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "os", system)
        with pytest.raises(CheckpointUnreadable, match=f"{path} can't be read: {os.strerror(number)}; check"):
            files.read_checkpoint(path)
    assert system.calls[at] == call
    assert descriptors() == before


def test_a_loop_of_links_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    path.symlink_to(path)
    with pytest.raises(CheckpointUnreadable, match="symbolic links"):
        files.read_checkpoint(path)


def test_a_file_larger_than_the_limit_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Corrupt, match=f"{path} is larger than 4096 bytes"):
        files.read_bytes(path, limit=4096)
    path.write_bytes(bytes(4096))
    assert files.read_bytes(path, limit=4096) == bytes(4096)


@pytest.mark.fault("S2")
def test_errors_of_the_content_name_the_file_and_the_way_out(path: Path) -> None:
    path.write_bytes(NEW[:-20])
    with pytest.raises(Corrupt, match=f"^{path}: is not JSON: .*; its writer makes it anew when it starts$") as corrupt:
        files.read_checkpoint(path)
    assert CLAIM_A.preparation not in repr(corrupt.value)
    path.write_bytes(file_with({}, format=9, readableBy=9))
    with pytest.raises(TooNew, match=f"^{path}: has format 9.*; run the version that wrote it"):
        files.read_checkpoint(path)
    path.write_bytes(b"")
    with pytest.raises(Corrupt, match=str(path)):
        files.read_owners(path)


def test_the_directory_is_private_when_we_make_it_and_left_alone_when_not(tmp_path: Path) -> None:
    ours = tmp_path / "var" / "lib" / "dra-cpu"
    files.ensure_directory(ours)
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700
    tmp_path.chmod(0o755)
    files.ensure_directory(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_directory_that_can_not_be_made_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(CheckpointUnwritable, match=f"{path} can't be made"):
            files.ensure_directory(path)


@pytest.mark.fault("S2")
def test_a_corrupt_file_is_kept_aside_under_a_name_that_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nri_cpu.checkpoint.files.time.strftime", lambda *_: "20261130T102405Z")
    aside = files.move_aside(path)
    assert aside == path.with_name("checkpoint.json.corrupt-20261130T102405Z")
    assert aside.read_bytes() == OLD
    assert not path.exists()
    path.write_bytes(NEW)
    second = files.move_aside(path)
    assert second != aside
    assert (aside.read_bytes(), second.read_bytes()) == (OLD, NEW), "an earlier one is not overwritten"
    assert not list(path.parent.glob("*.json"))
    with pytest.raises(CheckpointMissing):
        files.move_aside(path)


def test_a_file_that_can_not_be_moved_aside_is_our_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(CheckpointUnwritable, match=f"{path} can't be renamed: Read-only file system; check"):
        files.move_aside(path)


@pytest.mark.fault("A14")
def test_leftovers_of_a_killed_writer_are_removed_and_nothing_else(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "os", FaultyOS(4, Killed()))
        with pytest.raises(Killed):
            files.write_durably(path, NEW)
    others = [
        "owners.json",
        ".owners.json.0123456789abcdef.tmp",
        "checkpoint.json.tmp",
        ".checkpoint.json.x.tmp",
        "a.tmp",
    ]
    for name in others:
        (path.parent / name).touch()
    assert files.remove_leftovers(path.parent, "checkpoint.json") == 1
    assert {entry.name for entry in path.parent.iterdir()} == {"checkpoint.json", *others}
    assert files.remove_leftovers(path.parent / "none", "checkpoint.json") == 0
    with pytest.raises(CheckpointUnwritable, match="can't be cleaned"):
        files.remove_leftovers(path, "checkpoint.json")


def test_the_claim_in_the_file_is_the_one_written(path: Path) -> None:
    files.write_durably(path, NEW)
    assert files.read_checkpoint(path)[0].claims[UID_A] == CLAIM_A


def test_a_file_for_others_has_the_mode_it_is_meant_to_have_whatever_the_umask(path: Path) -> None:
    before = os.umask(0o077)
    try:
        files.replace(path, NEW, 0o644)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644

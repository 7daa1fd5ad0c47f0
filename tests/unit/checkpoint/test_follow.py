"""Following the checkpoint: every new file is noticed, and a bad one is told of once and never read as empty."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nri_cpu.checkpoint import codec, files, follow
from nri_cpu.checkpoint.errors import CheckpointMissing, CheckpointUnreadable, Corrupt, TooNew
from nri_cpu.checkpoint.follow import CheckpointFile
from nri_cpu.checkpoint.model import Checkpoint
from nri_cpu.cpuset import EMPTY, CPUSet
from tests.unit.checkpoint.faulty import FaultyOS
from tests.unit.checkpoint.samples import BOOT, CHECKPOINT, CLAIM_B, UID_B, file_with

OTHER = Checkpoint(EMPTY, {UID_B: CLAIM_B})
FILE = codec.checkpoint_to_bytes(CHECKPOINT, BOOT)
OTHER_FILE = codec.checkpoint_to_bytes(OTHER, "another-boot")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.json"
    path.write_bytes(FILE)
    return path


@pytest.fixture
def followed(path: Path) -> CheckpointFile:
    """A file that has been read once."""
    followed = CheckpointFile(path)
    assert followed.poll() == CHECKPOINT
    return followed


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_first_poll_reads_and_the_next_has_nothing_new(path: Path) -> None:
    followed = CheckpointFile(path)
    assert followed.poll() == CHECKPOINT
    assert followed.poll() is None


def test_an_unchanged_file_costs_one_stat(followed: CheckpointFile, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    real = os.stat

    class Counting(FaultyOS):
        def stat(self, path: str) -> os.stat_result:
            calls.append(path)
            return real(path)

    system = Counting()
    monkeypatch.setattr(follow, "os", system)
    monkeypatch.setattr(files, "os", system)
    assert followed.poll() is None
    assert len(calls) == 1
    assert system.calls == []


@pytest.mark.parametrize("write", [files.write_durably, files.replace])
def test_a_new_file_is_noticed_even_with_the_size_and_time_of_the_old(
    path: Path, followed: CheckpointFile, write: Callable[[Path, bytes], None]
) -> None:
    other = replace(CHECKPOINT, reserved=CPUSet.parse("6"))
    for checkpoint in (other, CHECKPOINT):
        before = path.stat()
        write(path, codec.checkpoint_to_bytes(checkpoint, BOOT))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        assert followed.poll() == checkpoint


def test_an_inode_is_never_taken_for_the_file_that_had_it_before(path: Path, followed: CheckpointFile) -> None:
    for turn in range(20):
        content, expected = ((OTHER_FILE, OTHER), (FILE, CHECKPOINT))[turn % 2]
        path.unlink()  # frees the inode, if nothing holds it
        path.write_bytes(content)
        assert followed.poll() == expected
        assert followed.poll() is None


def test_a_file_repaired_in_place_is_noticed(path: Path, followed: CheckpointFile) -> None:
    path.write_bytes(OTHER_FILE)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert followed.poll() == OTHER


@pytest.mark.fault("B2")
def test_a_removed_file_is_told_of_once(path: Path, followed: CheckpointFile) -> None:
    path.unlink()
    with pytest.raises(CheckpointMissing, match=str(path)):
        followed.poll()
    assert followed.poll() is None
    path.write_bytes(OTHER_FILE)
    assert followed.poll() == OTHER
    path.unlink()
    with pytest.raises(CheckpointMissing):
        followed.poll()


def test_the_same_file_back_in_its_place_is_news_again(path: Path, followed: CheckpointFile) -> None:
    aside = path.rename(path.with_name("aside"))
    with pytest.raises(CheckpointMissing):
        followed.poll()
    aside.rename(path)
    assert followed.poll() == CHECKPOINT
    assert followed.poll() is None


@pytest.mark.fault("S2", "B2")
def test_a_corrupt_file_is_told_of_once(path: Path, followed: CheckpointFile) -> None:
    for raw, error in ((b"", Corrupt), (FILE[:-1], Corrupt), (file_with({}, format=2, readableBy=2), TooNew)):
        files.replace(path, raw)
        with pytest.raises(error, match=str(path)):
            followed.poll()
        assert followed.poll() is None
    files.replace(path, b"")
    with pytest.raises(Corrupt):
        followed.poll()
    files.replace(path, b"")
    with pytest.raises(Corrupt):
        followed.poll()  # another file with the same fault is another bad state
    files.replace(path, OTHER_FILE)
    assert followed.poll() == OTHER


def test_each_change_between_bad_states_is_told(path: Path, followed: CheckpointFile) -> None:
    files.replace(path, b"x")
    with pytest.raises(Corrupt):
        followed.poll()
    aside = path.rename(path.with_name("aside"))
    with pytest.raises(CheckpointMissing):
        followed.poll()
    aside.rename(path)
    with pytest.raises(Corrupt):
        followed.poll()
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointUnreadable, match="no regular file"):
        followed.poll()
    assert followed.poll() is None
    path.rmdir()
    path.write_bytes(FILE)
    assert followed.poll() == CHECKPOINT


@pytest.mark.parametrize(("call", "at"), [("open", 0), ("read", 2)])
def test_an_unreadable_file_is_told_of_once_and_tried_again_with_each_poll(
    path: Path, followed: CheckpointFile, monkeypatch: pytest.MonkeyPatch, call: str, at: int
) -> None:
    files.replace(path, OTHER_FILE)
    before = descriptors()
    with monkeypatch.context() as patch:
        for expected in (True, False, False):
            system = FaultyOS(at, OSError(errno.EACCES, "Permission denied"))
            patch.setattr(files, "os", system)
            if expected:
                with pytest.raises(CheckpointUnreadable, match="Permission denied"):
                    followed.poll()
            else:
                assert followed.poll() is None
            assert system.calls[at] == call
    assert descriptors() == before - 1, "the old file is let go, and nothing else is open"
    assert followed.poll() == OTHER, "a mode put right changes neither inode nor mtime"


def test_a_path_below_a_file_or_in_a_loop_is_unreadable_or_missing_and_not_empty(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "file" / "checkpoint.json", tmp_path / "loop"):
        followed = CheckpointFile(path)
        with pytest.raises(CheckpointUnreadable, match=str(path)):
            followed.poll()
        assert followed.poll() is None


def test_descriptors_do_not_add_up(path: Path) -> None:
    before = descriptors()
    followed = CheckpointFile(path)
    for turn in range(10):
        files.replace(path, (FILE, OTHER_FILE)[turn % 2])
        assert followed.poll() is not None
        files.replace(path, b"x")
        with pytest.raises(Corrupt):
            followed.poll()
        assert descriptors() == before + 1
    followed.close()
    assert descriptors() == before


def test_after_close_the_file_is_read_afresh_and_what_is_wrong_told_anew(path: Path, followed: CheckpointFile) -> None:
    followed.close()
    assert followed.poll() == CHECKPOINT
    path.unlink()
    for _ in range(2):
        with pytest.raises(CheckpointMissing):
            followed.poll()
        followed.close()


def test_what_its_writer_skips_is_no_news_and_what_comes_after_it_is(path: Path, followed: CheckpointFile) -> None:
    before = descriptors()
    for turn in range(3):
        files.replace(path, OTHER_FILE)
        followed.skip()
        assert followed.poll() is None
        assert descriptors() == before
        files.replace(path, (FILE, OTHER_FILE, FILE)[turn])
        assert followed.poll() == (CHECKPOINT, OTHER, CHECKPOINT)[turn]


def test_skipping_a_file_that_is_not_there_hides_nothing(path: Path, followed: CheckpointFile) -> None:
    path.unlink()
    followed.skip()
    with pytest.raises(CheckpointMissing):
        followed.poll()
    path.write_bytes(FILE)
    followed.skip()
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointUnreadable):
        followed.poll()

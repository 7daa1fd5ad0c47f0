"""Promises of reading files that others may have put there."""

import os
from pathlib import Path

import pytest

from nri_cpu.regular import NotRegularError, read_regular


@pytest.mark.parametrize(("limit", "read"), [(4, b"abc"), (3, b"abc"), (2, b"abc"), (1, b"ab")])
def test_a_file_is_read_to_a_byte_more_than_its_limit(tmp_path: Path, limit: int, read: bytes) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert read_regular(tmp_path / "file", limit) == read


def test_what_is_no_file_is_refused_at_once_and_leaves_no_descriptor(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path, error in ((tmp_path / "fifo", NotRegularError), (Path("/dev/zero"), NotRegularError)):
        with pytest.raises(error):
            read_regular(path, 10)
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        read_regular(tmp_path, 10)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing", 10)
    assert len(list(Path("/proc/self/fd").iterdir())) == before

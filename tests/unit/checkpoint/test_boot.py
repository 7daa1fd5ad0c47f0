"""The boot ID."""

from __future__ import annotations

import os
from pathlib import Path

from nri_cpu.checkpoint.boot import boot_id


def test_it_is_the_kernels_own() -> None:
    assert boot_id(Path("/")) == Path("/proc/sys/kernel/random/boot_id").read_text().strip() != ""


def test_it_is_read_below_the_host_and_what_is_no_id_is_none(tmp_path: Path) -> None:
    assert boot_id(tmp_path) == ""
    file = tmp_path / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    for raw, expected in (
        (b"0b3f7a4e-5d1c-4d4b-9a43-0c5a1e3f7b21\n", "0b3f7a4e-5d1c-4d4b-9a43-0c5a1e3f7b21"),
        (b"", ""),
        (b"\xff\xfe", ""),
        (b"a\0b", ""),
        (b"a" * 65, ""),
    ):
        file.write_bytes(raw)
        assert boot_id(tmp_path) == expected


def test_what_never_ends_or_never_answers_is_none(tmp_path: Path) -> None:
    file = tmp_path / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    file.symlink_to("/dev/zero")
    assert boot_id(tmp_path) == ""
    file.unlink()
    os.mkfifo(file)
    assert boot_id(tmp_path) == ""

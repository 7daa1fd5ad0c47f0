"""The boot ID."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_cpu.checkpoint.boot import boot_id


def test_it_is_the_kernels_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOST_ROOT", raising=False)
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    monkeypatch.setenv("HOST_ROOT", "")
    assert boot_id() != ""


def test_it_is_read_under_host_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_ROOT", str(tmp_path))
    assert boot_id() == ""
    file = tmp_path / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    for raw, expected in (
        (b"0b3f7a4e-5d1c-4d4b-9a43-0c5a1e3f7b21\n", "0b3f7a4e-5d1c-4d4b-9a43-0c5a1e3f7b21"),
        (b"", ""),
        (b"\xff\xfe", ""),
        (b"a\0b", ""),
    ):
        file.write_bytes(raw)
        assert boot_id() == expected

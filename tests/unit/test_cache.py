"""What takes long to make is made once, whoever asks and whatever happens to its maker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hack import cache

ROOT = Path(__file__).parents[2]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "nri-cpu" / "thing"


MAKER = """
import pathlib, sys, time
from hack import cache

def make(out):
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")
    (out / "one").touch()
    if sys.argv[2:]:
        print("half", flush=True)
        time.sleep(1000)
    (out / "two").touch()

print(sorted(p.name for p in cache.entry("thing", "key", make).iterdir()))
"""


def maker(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", MAKER, *arguments], cwd=ROOT, stdout=-1, text=True)


def test_of_several_that_ask_at_once_one_makes_the_entry(own_cache: Path, tmp_path: Path) -> None:
    makers = [maker(str(tmp_path / "log")) for _ in range(4)]
    assert [process.communicate()[0] for process in makers] == ["['one', 'two']\n"] * 4
    assert (tmp_path / "log").read_text() == "made\n"
    assert not list(own_cache.glob("*.part"))


def test_an_entry_whose_maker_was_killed_is_made_anew(own_cache: Path, tmp_path: Path) -> None:
    victim = maker(str(tmp_path / "log"), "stop half way")
    assert victim.stdout
    assert victim.stdout.readline() == "half\n"
    waiting = maker(str(tmp_path / "log"))
    victim.kill()
    victim.communicate()
    assert waiting.communicate()[0] == "['one', 'two']\n"
    assert [p.name for p in own_cache.iterdir() if not p.suffix] == ["key"]


def test_an_entry_that_could_not_be_made_leaves_nothing(own_cache: Path) -> None:
    def fail(out: Path) -> None:
        (out / "half").touch()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.entry("thing", "key", fail)
    assert [p.name for p in own_cache.iterdir()] == ["key.lock"]
    assert cache.entry("thing", "key", lambda _out: None) == own_cache / "key"


def test_entries_that_nobody_uses_any_more_go_when_a_new_one_is_made(own_cache: Path) -> None:
    for key in ("old", "used"):
        cache.entry("thing", key, lambda _out: None)
        long_ago = time.time() - cache.UNUSED_SECONDS - 100
        os.utime(own_cache / key, (long_ago, long_ago))
    cache.entry("thing", "used", lambda _out: pytest.fail("it is there"))
    (own_cache / "old.part").mkdir()  # left by a maker that died
    cache.entry("thing", "new", lambda _out: None)
    assert sorted(p.name for p in own_cache.iterdir() if p.is_dir()) == ["new", "used"]


def test_a_key_changes_with_facts_and_with_names_contents_and_modes_of_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    keys = [cache.key_of("a", files=tmp_path), cache.key_of("b", files=tmp_path)]
    (tmp_path / "file").chmod(0o755)
    keys.append(cache.key_of("a", files=tmp_path))
    (tmp_path / "file").write_text("2")
    keys.append(cache.key_of("a", files=tmp_path))
    (tmp_path / "file").rename(tmp_path / "other")
    keys.append(cache.key_of("a", files=tmp_path))
    assert len(set(keys)) == len(keys)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/x.pyc").touch()
    assert cache.key_of("a", files=tmp_path) == keys[-1]

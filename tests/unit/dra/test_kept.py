"""Promises of a socket that is looked after: it comes back, at a pace that suits a mistake and bears with a fight."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from dra.kubelet.kept import KeptSocket
from dra.kubelet.server import UnixServer
from tests.unit.dra.virtual_time import VirtualTime


class Scene:
    """A server's socket, and each second a look at it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = VirtualTime()
        self.gone = 0
        self.server = UnixServer(path, [])
        self.server.start()
        self.kept = KeptSocket(self.server, self.count, self.clock)

    def count(self) -> None:
        self.gone += 1

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.clock.wait(threading.Event(), 1)
            self.kept.look()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "dra/dra.sock")
    yield scene
    scene.server.stop()


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message).rstrip()), format="{level} {message}")
    yield lines
    logger.remove(sink)


def test_a_socket_that_is_there_is_left_alone(scene: Scene, log: list[str]) -> None:
    before = scene.path.stat()
    scene.seconds(3600)
    assert scene.path.stat() == before
    assert (scene.gone, log) == (0, [])


@pytest.mark.fault("K7")
def test_a_socket_that_goes_is_back_within_seconds_and_told(scene: Scene, log: list[str]) -> None:
    scene.path.unlink()
    scene.seconds(2)
    assert scene.server.is_there()
    assert log == [f"WARNING somebody has removed the socket {scene.path}: it is served anew"]
    assert scene.gone == 1
    scene.seconds(3600)
    scene.path.unlink()
    scene.seconds(2)
    assert scene.server.is_there()


@pytest.mark.fault("A10")
def test_somebody_who_removes_it_each_time_is_answered_ever_more_rarely(scene: Scene, log: list[str]) -> None:
    for _ in range(3600):
        scene.path.unlink(missing_ok=True)
        scene.seconds(1)
    assert 50 <= len(log) <= 80


@pytest.mark.fault("A36", "A10")
def test_what_stands_in_its_way_is_told_once_and_tried_again(scene: Scene, log: list[str]) -> None:
    scene.path.unlink()
    scene.path.parent.rmdir()
    scene.path.parent.write_text("no directory")
    scene.seconds(3600)
    told = f"ERROR somebody has removed the socket {scene.path}, and the socket {scene.path} can't be made: "
    assert len(log) == 1
    assert log[0].startswith(told)
    assert 50 <= scene.gone <= 80
    scene.path.parent.unlink()
    scene.seconds(90)
    assert scene.server.is_there()


@pytest.mark.fault("K7", "K9")
def test_a_socket_that_another_process_serves_is_left_to_it_until_it_ends(scene: Scene, log: list[str]) -> None:
    scene.path.unlink()
    other = UnixServer(scene.path, [])
    other.start()
    scene.seconds(3600)
    assert other.is_there()
    assert [line.partition(", and ")[2] for line in log] == [f"another process serves {scene.path}: end it first"]
    other.stop()
    scene.seconds(90)
    assert scene.server.is_there()


@pytest.mark.fault("A36")
def test_what_stands_in_its_way_a_second_time_is_told_a_second_time(scene: Scene, log: list[str]) -> None:
    for _ in range(2):
        scene.path.unlink()
        scene.path.parent.rmdir()
        scene.path.parent.write_text("no directory")
        scene.seconds(10)
        scene.path.parent.unlink()
        scene.seconds(90)
        assert scene.server.is_there()
    assert [line.partition(" ")[0] for line in log] == ["ERROR", "WARNING"] * 2


def test_a_socket_that_was_away_for_a_moment_has_its_time_anew_when_it_goes_again(scene: Scene) -> None:
    away = scene.path.with_name("away")
    for _ in range(10):
        scene.path.rename(away)
        scene.seconds(1)
        away.rename(scene.path)
        scene.seconds(1)
    assert scene.gone == 0
    assert scene.server.is_there()

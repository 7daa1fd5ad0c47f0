"""Promises of the sockets' names: where a kubelet looks for them, alone and side by side, short enough for a socket."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.kubelet.server import SOCKET_PATH_LIMIT, ServerError, UnixServer
from dra.kubelet.sockets import Leftovers, Sockets, remove_stale, sockets
from tests.unit.dra.virtual_time import VirtualTime

UID = "11111111-2222-3333-4444-555555555555"
STATIC = "0123456789abcdef0123456789abcdef"  # of a static pod
H2 = "KMx14UzMfiSWcmF1Jb_YNA"
ROOT = Path("/var/lib/kubelet")


def root(size: int) -> Path:
    """A root whose path has this many bytes."""
    return Path("/" + "r" * (size - 1))


def names(root: Path, driver: str = "dra.cpu") -> tuple[str, str]:
    found = sockets(root, UID, driver)
    assert found.dra.parent == root / "plugins" / driver
    assert found.registration.parent == root / "plugins_registry"
    return found.dra.name, found.registration.name


@pytest.mark.fault("A31")
def test_sockets_are_where_a_kubelet_looks_for_them() -> None:
    assert sockets(ROOT, None) == Sockets(
        Path("/var/lib/kubelet/plugins/dra.cpu/dra.sock"),
        Path("/var/lib/kubelet/plugins_registry/dra.cpu-reg.sock"),
    )
    assert sockets(Path("/data/kubelet"), None).registration == Path("/data/kubelet/plugins_registry/dra.cpu-reg.sock")


@pytest.mark.fault("K8", "K9")
def test_an_instance_with_a_pod_s_uid_has_names_of_its_own() -> None:
    assert names(ROOT) == (f"dra-{UID}.sock", f"dra.cpu-{UID}-reg.sock")
    static = sockets(ROOT, STATIC)
    assert (static.dra.name, static.registration.name) == (f"dra-{STATIC}.sock", f"dra.cpu-{STATIC}-reg.sock")


@pytest.mark.fault("A31", "K9")
def test_long_names_are_shortened_as_the_go_helper_does() -> None:
    driver = "gpu.example.com"
    whole, short, shortest = f"{driver}-{UID}-reg.sock", f"{driver}-Zm_2zKpbPAc-reg.sock", f"dra-{H2}-reg.sock"
    registry, data = len("/plugins_registry/"), len(f"/plugins/{driver}/")
    for size, name in (
        (107 - registry - len(whole), whole),  # what is left for the root, to the byte
        (108 - registry - len(whole), short),
        (107 - registry - len(short), short),
        (108 - registry - len(short), shortest),
    ):
        assert names(root(size), driver)[1] == name
    assert names(root(107 - data - len(f"dra-{UID}.sock")), driver)[0] == f"dra-{UID}.sock"
    assert names(root(108 - data - len(f"dra-{UID}.sock")), driver)[0] == "dra-Zm_2zKpbPAc"


@pytest.mark.fault("A31")
@pytest.mark.parametrize(("pod_uid", "room"), [(None, 73), (UID, 61)], ids=["alone", "side by side"])
def test_a_root_for_which_no_name_is_short_enough_is_told_in_bytes(pod_uid: str | None, room: int) -> None:
    sockets(root(room), pod_uid)
    with pytest.raises(ServerError, match=r"dra\.cpu-.*reg\.sock has 108 bytes, 1 more .* shorter --root-dir"):
        sockets(root(room + 1), pod_uid)


@pytest.mark.parametrize(
    "pod_uid",
    ["", "x", "../../../etc/passwd", "a/b", UID.upper() + "x", f"{UID}\n", "\0", "ä" * 36, STATIC[1:], STATIC.upper()],
)
def test_what_is_no_uid_becomes_no_path(pod_uid: str) -> None:
    with pytest.raises(ServerError, match=r"is no UID of a pod: give what the downward API has in metadata.uid"):
        sockets(ROOT, pod_uid)


@given(root=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=120), uid=st.uuids())
def test_every_path_fits_or_is_refused_and_two_instances_never_meet(root: str, uid: object) -> None:
    try:
        found = [sockets(Path(f"/{root}"), each) for each in (None, UID, str(uid))]
    except ServerError:
        return
    paths = [path for each in found for path in (each.dra, each.registration)]
    assert all(len(os.fsencode(path)) <= SOCKET_PATH_LIMIT for path in paths)
    assert len(set(paths)) == 6 or str(uid) == UID
    assert not any(path.name.startswith(".") for path in paths)  # the kubelet looks at no hidden ones


def leave(path: Path, age: float = 60) -> Path:
    """A socket that nobody serves, made some seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    then = time.time() - age
    os.utime(path, (then, then))
    return path


@pytest.fixture
def kubelet_root() -> Iterator[Path]:
    """Short enough for the names of sockets, which the tests' own directories are not."""
    with tempfile.TemporaryDirectory(prefix="k") as root:
        yield Path(root)


@pytest.fixture
def own(kubelet_root: Path) -> Sockets:
    return sockets(kubelet_root, UID)


@pytest.mark.fault("K7", "K9")
def test_what_killed_instances_of_other_names_left_is_removed(kubelet_root: Path, own: Sockets) -> None:
    other = sockets(kubelet_root, UID.replace("1", "9"))
    plain = sockets(kubelet_root, None)
    left = [leave(path) for each in (plain, other) for path in (each.dra, each.registration)]
    static = sockets(kubelet_root, STATIC)
    left += [leave(path) for path in (static.dra, static.registration)]
    left.append(leave(own.dra.with_name("dra-Zm_2zKpbPAc")))
    left.append(leave(own.registration.with_name("dra.cpu-Zm_2zKpbPAc-reg.sock")))
    # Of one that was killed just before it served.
    left += [leave(path.with_name(".dra.cpu-0123abc")) for path in (own.dra, own.registration)]
    assert sorted(remove_stale(own)) == sorted(left)
    assert not list(own.dra.parent.iterdir())
    assert remove_stale(own) == []


@pytest.mark.fault("K7", "K9")
def test_what_may_be_another_s_stays(kubelet_root: Path, own: Sockets) -> None:
    other = sockets(kubelet_root, UID.replace("1", "9"))
    server = UnixServer(other.dra, [])
    server.start()
    watched = own.registration.parent
    stay = [
        leave(other.registration, age=0),  # perhaps about to listen
        leave(watched / "gpu.example-reg.sock"),
        leave(watched / "dra.cpu-extra-reg.sock"),  # of a driver whose name begins as ours
        leave(watched / "dra.cpu-extra.driver-reg.sock"),
        leave(watched / "dra.cpu-extradriver-reg.sock"),  # with as many characters as a hash
        leave(watched / "dra.cpu-11111111-2222-reg.sock"),
        leave(watched / f"dra.cpu-{UID}"),
        leave(watched / "dra.cpux-reg.sock"),
        leave(watched / "draxcpu-reg.sock"),
        leave(watched / ".dra.cpu-extra"),
        leave(watched / "dra-KMx14UzMfiSWcmF1Jb_YNA-reg.sock"),  # a hash does not say whose it is
        leave(own.dra.parent / "other.sock"),
    ]
    file = own.dra.with_name("dra-file.sock")
    file.write_text("no socket")
    link = own.dra.with_name("dra-link.sock")
    link.symlink_to(stay[-1])
    folder = own.dra.with_name("dra-device-metadata")
    folder.mkdir()
    assert remove_stale(own) == []
    assert all(path.exists() for path in (*stay, file, link, folder, other.dra))
    server.stop()


@pytest.mark.fault("K7")
def test_what_was_young_at_the_start_is_removed_when_it_can_not_be_any_more(own: Sockets) -> None:
    clock = VirtualTime()
    leftovers = Leftovers(own, clock)
    young = leave(own.dra.with_name("dra.sock"), age=0)
    old = leave(own.registration.with_name("dra.cpu-reg.sock"))
    leftovers.look()
    assert (young.exists(), old.exists()) == (True, False)
    os.utime(young, (0, 0))  # as time passes
    clock.wait(threading.Event(), 10)
    leftovers.look()
    assert young.exists()
    clock.wait(threading.Event(), 1)
    leftovers.look()
    assert not young.exists()
    later = leave(own.dra.with_name("dra.sock"))
    clock.wait(threading.Event(), 3600)
    leftovers.look()
    assert later.exists()  # it is looked for at the start, not for ever


def test_without_the_directories_there_is_nothing_to_remove(own: Sockets) -> None:
    assert remove_stale(own) == []
    assert not own.dra.parent.exists()

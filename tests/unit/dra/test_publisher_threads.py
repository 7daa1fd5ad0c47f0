"""Promises of the publisher with real threads and real time; and of its delays."""

import threading
from collections.abc import Callable, Iterator

import pytest

from dra.devices import Device, DeviceMode, devices_of
from dra.slices.api import ApiError
from dra.slices.objects import Manifest
from dra.slices.pace import Backoff, Clock, Repairs
from dra.slices.publisher import Publisher
from hack.wait import wait_until
from tests.unit.dra.slice_server import SliceServer
from tests.unit.dra.virtual_time import VirtualTime
from tests.unit.topology.machines import machine

NODE = "node-a"
LIMIT = 30.0


def cpus(number: int) -> tuple[Device, ...]:
    topology = machine(cores=number)
    return devices_of(topology, topology.online, DeviceMode.INDIVIDUAL)


class Live:
    """A publisher that runs; `reached` waits until the server was asked for something a number of times."""

    def __init__(self) -> None:
        self.server = SliceServer(Clock())
        self.publisher = Publisher(self.server, NODE)
        self._asked = threading.Condition()
        self.error: ApiError | None = None
        self.server.fault = self._fault
        self._count: dict[str, int] = {}

    def _fault(self, verb: str, manifest: Manifest | None) -> None:
        with self._asked:
            self._count[verb] = self._count.get(verb, 0) + 1
            self._asked.notify_all()
        if self.error:
            raise self.error

    def reached(self, verb: str, number: int = 1) -> None:
        with self._asked:
            assert self._asked.wait_for(lambda: self._count.get(verb, 0) >= number, LIMIT)

    def ends(self) -> None:
        self.publisher.stop()
        assert not any(thread.name == "publisher" for thread in threading.enumerate())


@pytest.fixture
def live() -> Iterator[Live]:
    live = Live()
    yield live
    live.publisher.stop()


def test_it_publishes_repairs_and_stops_in_the_middle_of_a_watch(live: Live) -> None:
    live.publisher.start()
    live.publisher.want(cpus(4))
    live.reached("watch")
    assert live.publisher.published
    (name,) = live.server.objects
    live.server.remove(name)
    live.reached("watch", 2)
    assert live.publisher.published
    assert name not in live.server.objects
    live.ends()
    assert len(live.server.objects) == 1


def test_what_is_wanted_later_ends_the_watch_and_is_published(live: Live) -> None:
    live.publisher.want(cpus(4))
    live.publisher.start()
    live.reached("watch")
    live.publisher.want(cpus(5))
    live.reached("watch", 2)
    assert [len(spec["devices"]) for spec in live.server.specs] == [5]
    live.publisher.poke()
    live.reached("watch", 3)
    live.ends()


def test_it_stops_in_the_middle_of_a_back_off(live: Live) -> None:
    live.error = ApiError("asked to wait", retry_after=200.0)
    live.publisher.want(cpus(4))
    live.publisher.start()
    live.reached("node")
    live.ends()


def test_it_stops_while_nothing_is_wanted(live: Live) -> None:
    live.publisher.start()
    live.ends()
    assert live.server.calls == []


def test_it_stops_before_it_is_started(live: Live) -> None:
    live.publisher.stop()


def test_a_request_that_hangs_does_not_hold_up_the_end(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr("dra.slices.publisher._STOP_LIMIT", 0.01)
    told = live.server.fault

    def hang(verb: str, manifest: Manifest | None) -> None:
        told(verb, manifest)
        if verb == "list":
            go.wait(LIMIT)

    live.server.fault = hang
    live.publisher.want(cpus(4))
    live.publisher.start()
    live.reached("list")
    live.publisher.stop()
    go.set()
    for thread in threading.enumerate():
        if thread.name == "publisher":
            thread.join(LIMIT)
            assert not thread.is_alive()


@pytest.mark.fault("K9")
def test_of_two_instances_the_one_that_stays_has_its_way(live: Live) -> None:
    """A rolling update to another configuration: each repairs what the other one does until the older one stops."""
    live.publisher.want(cpus(4))
    live.publisher.start()
    live.reached("watch")
    newer = Publisher(live.server, NODE)
    newer.want(cpus(5))
    newer.start()
    live.reached("update", 2)
    live.publisher.stop()
    try:
        wait_until("its devices", lambda: [len(spec["devices"]) for spec in live.server.specs] == [5], LIMIT)
        wait_until("publication", lambda: newer.published, LIMIT)
    finally:
        newer.stop()


def test_many_threads_may_want(live: Live) -> None:
    live.publisher.start()
    actions: list[Callable[[], None]] = [
        *(lambda number=number: live.publisher.want(cpus(number)) for number in range(1, 9)),
        *(live.publisher.poke for _ in range(8)),
    ]
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    live.publisher.want(cpus(9))
    live.reached("watch")
    live.publisher.want(cpus(10))
    live.publisher.poke()
    wait_until("publication", lambda: live.publisher.published, LIMIT)
    assert [len(spec["devices"]) for spec in live.server.specs] == [10]
    live.ends()


def test_delays_double_up_to_their_limit_and_begin_again() -> None:
    backoff = Backoff(0.5, 60.0, VirtualTime())
    assert [backoff.next() for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    backoff.reset()
    assert backoff.next() == 0.5


def test_delays_of_nodes_differ_by_a_quarter_at_the_most() -> None:
    delays = [Backoff(60.0, 60.0, Clock()).next() for _ in range(100)]
    assert 45 <= min(delays) < max(delays) <= 75


def test_repairs_are_quick_when_they_are_rare_and_slow_when_they_are_not() -> None:
    clock = VirtualTime()
    repairs = Repairs(1.0, 300.0, clock)
    rare, often = [], []
    for at in range(0, 630, 63):
        clock.at(at, lambda: rare.append(repairs.next()))
    for at in range(1000, 1100, 10):
        clock.at(at, lambda: often.append(repairs.next()))
    clock.at(5000, lambda: rare.append(repairs.next()))
    clock.wait(threading.Event(), 6000)
    assert set(rare) == {1.0}
    assert often == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]

"""Promises of the watch of the machine: CPUs that come and go change the node, what can't be read changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from loguru import logger

from dra import node_watch
from dra.devices import CAPACITY, DeviceMode
from dra.health import health_of
from dra.node_watch import NodeWatch
from dra.prepare.choice import Node
from dra.slices.pace import Clock
from hack.wait import wait_until
from nri_cpu.cpuset import EMPTY, CPUSet
from nri_cpu.topology import Topology, TopologyError, read_online, read_topology
from tests.unit.dra.manifests import NODE
from tests.unit.dra.records import prepared, record
from tests.unit.topology.machines import machine, t1, t2, write_sysfs


class Machine:
    """What the watch reads; `broken`: what reading ends in."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.broken: Exception | None = None
        self.unlisted: Exception | None = None
        self.reads = 0
        self.changes = 0
        self.happened: Callable[[], None] = lambda: None
        self.clock = Hours()

    def read(self) -> Topology:
        self.reads += 1
        if self.broken:
            raise self.broken
        return self.topology

    def online(self) -> CPUSet:
        if self.unlisted:
            raise self.unlisted
        return self.topology.online

    def node_of(self, topology: Topology) -> Node:
        return Node.of(NODE, DeviceMode.GROUPED, topology, EMPTY)

    def changed(self) -> None:
        self.changes += 1
        self.happened()

    def watch(self, interval: float = 3600) -> NodeWatch:
        return NodeWatch(self.read, self.node_of, self.online, interval, self.clock)


class Hours(Clock):
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def jitter(self) -> float:
        return 1.0


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO", format="{message}")
    yield lines
    logger.remove(sink)


def offline(cpus: Iterable[int]) -> Topology:
    return t1(offline=cpus)


def capacity(watch: NodeWatch) -> dict[str, int]:
    return {name: device.capacity[CAPACITY] for name, device in watch.node.devices.items()}


def test_the_machine_is_looked_at_at_once_and_not_read_again_while_nothing_happens(log: list[str]) -> None:
    there = Machine(t2())
    watch = there.watch()
    assert capacity(watch) == {"cpudevnuma000": 8, "cpudevnuma001": 8}
    assert watch.seen.online == t2().online
    assert not any(watch.look() for _ in range(10))
    assert (there.reads, there.changes, log) == (1, 0, [])


@pytest.mark.fault("B11", "H1")
def test_cpus_that_go_off_line_and_come_back_change_the_devices(log: list[str]) -> None:
    there = Machine(t1())
    watch = there.watch()
    there.topology = offline([7, 15])
    assert watch.look()
    assert capacity(watch) == {"cpudevnuma000": 14}
    assert log == ["CPUs on line are 0-6,8-14 now, before 0-15: 1 devices, before 1"]
    there.topology = t1()
    assert watch.look()
    assert capacity(watch) == {"cpudevnuma000": 16}


@pytest.mark.fault("B11", "H2")
def test_cpus_that_are_added_while_it_runs_can_be_had() -> None:
    there = Machine(machine(cores=4))
    watch = there.watch()
    there.topology = machine(cores=8)
    assert watch.look()
    assert capacity(watch) == {"cpudevnuma000": 8}
    assert watch.node.topology.present == CPUSet(range(8))


@pytest.mark.fault("H3", "R12")
def test_a_core_whose_sibling_goes_off_line_is_a_core_of_one_thread_now() -> None:
    there = Machine(t1())
    watch = there.watch()
    there.topology = offline([8])
    watch.look()
    assert CPUSet([0]) in watch.node.topology.cores
    assert CPUSet([0, 8]) not in watch.node.topology.cores


@pytest.mark.fault("H5", "B10")
def test_a_whole_numa_node_off_line_has_no_device_and_the_health_of_its_claims_is_told() -> None:
    there = Machine(t2())
    watch = there.watch()
    there.topology = machine(sockets=2, cores=4, threads=2, offline=CPUSet.parse("4-7,12-15"))
    watch.look()
    assert list(watch.node.devices) == ["cpudevnuma000"]
    told = health_of(watch.node, prepared(record(1, ("cpudevnuma001", "4-5"))), watch.seen.online)
    assert [(each.device, each.healthy) for each in told] == [("cpudevnuma000", True), ("cpudevnuma001", False)]


@pytest.mark.fault("B11")
def test_a_machine_that_can_not_be_read_leaves_the_node_as_it_was_and_is_logged_once(log: list[str]) -> None:
    there = Machine(t1())
    watch = there.watch()
    there.topology, there.broken = offline([15]), TopologyError("/sys has gone")
    assert watch.look()  # health follows the list all the same
    assert not watch.look()
    assert watch.node.topology == t1()
    assert watch.seen.online == offline([15]).online
    assert log == ["the machine can't be read again: /sys has gone. Devices stay as they are"]
    there.broken = None
    there.clock.seconds += 60
    assert watch.look()
    assert capacity(watch) == {"cpudevnuma000": 15}
    assert not watch.look()


@pytest.mark.fault("B11", "A10")
def test_a_machine_that_can_not_be_read_for_an_hour_is_read_ever_more_rarely_and_its_list_each_time() -> None:
    there = Machine(t1())
    watch = there.watch()
    there.topology, there.broken = offline([15]), TopologyError("/sys has gone")
    for second in range(3600):
        there.clock.seconds += 1
        there.topology = offline([15] if second % 2 else [14])
        assert watch.look()
        assert watch.seen.online == there.topology.online
        assert watch.listed_at == there.clock.seconds
    assert 60 <= there.reads <= 80
    there.broken = None
    there.clock.seconds += 60
    assert watch.look()
    there.broken = TopologyError("again")
    there.topology = t1()
    reads = there.reads
    watch.look()
    assert there.reads == reads + 1  # at once, after it could be read


@pytest.mark.fault("B10")
def test_it_tells_when_the_cpus_were_listed_last(log: list[str]) -> None:
    there = Machine(t1())
    watch = there.watch()
    assert watch.listed_at == there.clock.seconds
    there.unlisted = TopologyError("no list")
    there.clock.seconds += 30
    watch.look()
    assert watch.listed_at == there.clock.seconds - 30
    there.unlisted = None
    watch.look()
    assert watch.listed_at == there.clock.seconds


@pytest.mark.fault("K9")
def test_each_look_has_what_is_beside_done_too() -> None:
    there = Machine(t1())
    watch = there.watch(interval=0.01)
    looks: list[None] = []

    def beside() -> None:
        looks.append(None)
        if len(looks) == 3:
            watch.told()  # as the ledger does when another instance has changed claims

    watch.start(there.changed, beside)
    wait_until("what it told is passed on", lambda: there.changes)
    watch.stop()
    assert len(looks) > 3


@pytest.mark.fault("A25")
def test_a_look_that_never_ends_does_not_keep_it_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "_STOP_LIMIT", 0.01)
    there = Machine(t1())
    watch = there.watch()
    inside, go_on = threading.Event(), threading.Event()

    def happened() -> None:
        inside.set()
        go_on.wait(60)

    there.happened = happened
    watch.start(there.changed)
    watch.told()
    assert inside.wait(30)
    watch.stop()
    go_on.set()


def test_a_list_of_cpus_that_can_not_be_read_changes_nothing_and_is_logged_once(log: list[str]) -> None:
    there = Machine(t1())
    watch = there.watch()
    before = watch.seen
    there.unlisted = TopologyError("/sys/devices/system/cpu/online tells of no CPU")
    assert not any(watch.look() for _ in range(5))
    assert watch.seen is before
    assert len(log) == 1
    there.unlisted = TopologyError("something else")
    watch.look()
    assert len(log) == 2
    there.unlisted = None
    assert not watch.look()
    there.unlisted = TopologyError("something else")
    watch.look()
    assert len(log) == 3  # it was away meanwhile


@pytest.mark.fault("A37")
def test_a_fault_of_ours_in_the_watch_is_logged_and_does_not_end_it(log: list[str]) -> None:
    there = Machine(t1())
    watch = there.watch()
    there.topology, there.broken = offline([15]), ValueError("a machine nobody thought of")
    watch.look()
    watch.look()
    (line,) = log
    assert "can't be read again: ValueError: a machine nobody thought of, a fault of dra-cpu itself. Devices" in line
    there.broken = None
    there.clock.seconds += 60
    assert watch.look()


def test_a_machine_without_cpus_at_the_start_is_an_error_of_the_start() -> None:
    there = Machine(t1())
    there.unlisted = TopologyError("tells of no CPU")
    with pytest.raises(TopologyError, match="tells of no CPU"):
        there.watch()


def test_a_list_that_the_machine_does_not_agree_with_is_no_reason_to_read_it_again_and_again() -> None:
    """`online` may name CPUs that have no directory, which the topology leaves out."""
    there = Machine(t1())
    listed = t1().online | CPUSet([99])
    watch = NodeWatch(there.read, there.node_of, lambda: listed)
    assert not any(watch.look() for _ in range(5))
    assert there.reads == 1


def test_a_change_between_the_list_and_the_machine_is_seen_at_the_next_look() -> None:
    there = Machine(offline([15]))
    lists = iter([t1().online, offline([15]).online, offline([15]).online])
    watch = NodeWatch(there.read, there.node_of, lambda: next(lists))
    assert watch.look()
    assert not watch.look()
    assert watch.seen.online == watch.node.topology.online


@pytest.mark.fault("B11")
def test_the_thread_notices_by_itself_and_calls_what_has_to_know() -> None:
    there = Machine(t1())
    watch = there.watch(interval=0.01)
    watch.start(there.changed)
    there.topology = offline([3])
    wait_until("the change", lambda: there.changes)
    assert 3 not in watch.node.topology.online
    watch.stop()
    before = there.changes
    there.topology = t1()
    assert there.changes == before


def test_what_is_told_is_passed_on_at_once_and_calls_never_overlap() -> None:
    there = Machine(t1())
    inside, most = 0, 0
    first, go_on = threading.Event(), threading.Event()

    def happened() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        first.set()
        assert go_on.wait(10)
        inside -= 1

    there.happened = happened
    watch = there.watch()
    watch.start(there.changed)
    watch.told()
    assert first.wait(10)
    for _ in range(100):
        watch.told()  # while one is under way: one more follows, whatever their number
    go_on.set()
    wait_until("the call after", lambda: there.changes == 2)
    watch.stop()
    assert (there.changes, most) == (2, 1)


def test_a_watch_that_was_never_started_can_be_stopped() -> None:
    Machine(t1()).watch().stop()


@pytest.mark.fault("B11", "H1")
def test_on_files_as_the_kernel_has_them(tmp_path: Path) -> None:
    host = write_sysfs(tmp_path, t1())
    there = Machine(t1())
    watch = NodeWatch(lambda: read_topology(host), there.node_of, lambda: read_online(host))
    (host / "sys/devices/system/cpu/online").write_text("0-14\n")
    (host / "sys/devices/system/cpu/cpu15/online").write_text("0\n")
    assert watch.look()
    assert capacity(watch) == {"cpudevnuma000": 15}
    assert not watch.look()


def test_what_is_told_is_passed_on_after_a_moment_and_what_is_told_meanwhile_with_it() -> None:
    """So claims are answered before anybody works on what follows of them."""
    there = Machine(t1())
    watch = there.watch()
    moments: list[tuple[float, int]] = []

    class Moment(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            moments.append((timeout or 0, there.changes))
            watch.told()
            return self.is_set()

    watch._end = Moment()
    watch.told()
    watch.start(there.changed)
    wait_until("the call", lambda: there.changes)
    watch.stop()
    assert moments[0] == (node_watch._SETTLE, 0)
    assert node_watch._SETTLE > 0
    assert there.changes == 1

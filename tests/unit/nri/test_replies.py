"""The hand-made encoder says what protobuf would say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_cpu.cpuset import EMPTY, MAX_CPUS, CPUSet
from nri_cpu.nri import nri_pb2 as pb
from nri_cpu.nri import replies

Groups = list[tuple[CPUSet, list[str]]]

few_cpus = st.sets(st.integers(0, MAX_CPUS - 1), min_size=1, max_size=8).map(CPUSet)
# Every other CPU: 1.1 to 19 kB of text, so that each enclosing length needs two bytes, or three.
many_cpus = st.integers(256, MAX_CPUS // 2).map(lambda count: CPUSet(range(0, 2 * count, 2)))
cpusets = few_cpus | many_cpus

plain_ids = st.binary(min_size=32, max_size=32).map(bytes.hex)
odd_ids = st.text(max_size=12) | st.integers(100, 300).map("i".__mul__) | st.integers(60, 200).map("ü".__mul__)


@st.composite
def updates(draw: st.DrawFn) -> Groups:
    ids = draw(st.lists(plain_ids, unique=True, max_size=8) | st.lists(plain_ids | odd_ids, unique=True, max_size=8))
    groups = []
    while ids:
        size = draw(st.integers(1, len(ids)))
        groups.append((draw(cpusets), ids[:size]))
        ids = ids[size:]
    return groups


def expected(groups: Groups) -> list[pb.ContainerUpdate]:
    """The same updates through protobuf alone."""
    made = []
    for cpus, ids in groups:
        for container_id in ids:
            update = pb.ContainerUpdate(container_id=container_id, ignore_failure=True)
            update.linux.resources.cpu.cpus = str(cpus)
            made.append(update)
    return made


@given(updates())
def test_protobuf_reads_the_same_updates_in_the_same_order(groups: Groups) -> None:
    wanted = expected(groups)
    assert pb.SynchronizeResponse.FromString(replies.synchronize_reply(groups)) == pb.SynchronizeResponse(update=wanted)
    assert pb.UpdateContainerResponse.FromString(replies.update_reply(groups)) == pb.UpdateContainerResponse(
        update=wanted
    )
    assert pb.StopContainerResponse.FromString(replies.stop_reply(groups)) == pb.StopContainerResponse(update=wanted)


@given(st.none() | cpusets, updates())
def test_protobuf_reads_the_same_adjustment(cpus: CPUSet | None, groups: Groups) -> None:
    wanted = pb.CreateContainerResponse(update=expected(groups))
    if cpus is not None:
        wanted.adjust.linux.resources.cpu.cpus = str(cpus)
    assert pb.CreateContainerResponse.FromString(replies.create_reply(cpus, groups)) == wanted


@given(st.lists(plain_ids, unique=True, max_size=8), cpusets)
def test_for_ids_of_a_runtime_the_bytes_are_protobufs_own(ids: list[str], cpus: CPUSet) -> None:
    wanted = pb.SynchronizeResponse(update=expected([(cpus, ids)]))
    assert replies.synchronize_reply([(cpus, ids)]) == wanted.SerializeToString()


def test_a_known_reply_is_these_bytes() -> None:
    got = replies.create_reply(CPUSet.parse("2-3"), [(CPUSet.parse("0-1,4"), ["abc"])])
    assert got.hex() == "0a0b3209120712053203322d3312140a03616263120b0a0912073205302d312c341801"


def test_nothing_to_say_is_no_bytes() -> None:
    assert replies.create_reply(None, ()) == b""
    assert replies.stop_reply([]) == b""
    assert replies.update_reply([(CPUSet([1]), [])]) == b""


def test_the_answer_to_a_part_has_more_and_nothing_else() -> None:
    assert pb.SynchronizeResponse.FromString(replies.MORE) == pb.SynchronizeResponse(more=True)


@pytest.mark.fault("A23")
def test_an_empty_cpuset_is_refused() -> None:
    with pytest.raises(ValueError, match="empty cpuset"):
        replies.update_reply([(CPUSet([1]), ["a"]), (EMPTY, ["b"])])
    with pytest.raises(ValueError, match="empty cpuset"):
        replies.create_reply(EMPTY, ())


@pytest.mark.parametrize("groups", [[(CPUSet([1]), ["a", "a"])], [(CPUSet([1]), ["a", "b"]), (CPUSet([2]), ["a"])]])
def test_two_updates_for_one_container_are_refused(groups: Groups) -> None:
    with pytest.raises(ValueError, match="have one already"):
        replies.synchronize_reply(groups)

"""CPUSet: a set of CPU ids as Python's own sets behave, and the kernel's list format without loss or leniency."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_cpu.cpuset import EMPTY, MAX_CPUS, CPUSet, CPUSetError

ids = st.frozensets(st.integers(0, MAX_CPUS - 1), max_size=30) | st.frozensets(st.integers(0, 20))
blanks = st.text(" \t\n", max_size=2)


def kernel_text(cpus: frozenset[int]) -> str:
    """The list as the kernel prints it (lib/vsprintf.c, bitmap_list_string), the slow and plain way."""
    parts: list[str] = []
    left = sorted(cpus)
    while left:
        first = last = left.pop(0)
        while left and left[0] == last + 1:
            last = left.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


@given(ids)
@pytest.mark.fault("P-4")
def test_text_is_the_kernels_and_gives_back_the_set(cpus: frozenset[int]) -> None:
    made = CPUSet(cpus)
    assert str(made) == kernel_text(cpus)
    assert CPUSet.parse(str(made)) == made
    assert CPUSet.from_mask(made.mask) == made
    assert eval(repr(made)) == made


@given(ids)
def test_it_holds_what_it_was_made_of_in_ascending_order(cpus: frozenset[int]) -> None:
    made = CPUSet(cpus)
    assert list(made) == sorted(cpus)
    assert len(made) == len(cpus)
    assert bool(made) == bool(cpus)
    assert made.mask == sum(1 << cpu for cpu in cpus)
    assert all(cpu in made for cpu in cpus)
    assert [cpu for cpu in (*range(25), MAX_CPUS - 1, MAX_CPUS, -1, -(10**9), 10**9) if cpu in made] == sorted(
        cpus & {*range(25), MAX_CPUS - 1}
    )
    if cpus:
        assert made.first() == min(cpus)


@given(ids, ids)
def test_it_combines_and_compares_as_pythons_sets_do(one: frozenset[int], other: frozenset[int]) -> None:
    a, b = CPUSet(one), CPUSet(other)
    assert a | b == CPUSet(one | other)
    assert a & b == CPUSet(one & other)
    assert a - b == CPUSet(one - other)
    assert (a <= b, a < b, a >= b, a > b, a == b, a != b) == (
        one <= other,
        one < other,
        one >= other,
        one > other,
        one == other,
        one != other,
    )
    assert a.isdisjoint(b) == one.isdisjoint(other)
    assert (hash(a) == hash(b)) or a != b
    assert (CPUSet(one), CPUSet(other)) == (a, b), "the operands are what they were"


@given(st.lists(ids, max_size=5))
def test_a_union_has_every_cpu_of_every_set(sets: list[frozenset[int]]) -> None:
    assert CPUSet.union(map(CPUSet, sets)) == CPUSet(frozenset[int]().union(*sets))


@given(st.lists(st.tuples(st.integers(0, MAX_CPUS - 1), st.integers(0, 40)), min_size=1, max_size=6), blanks, blanks)
def test_parts_may_overlap_and_come_in_any_order(parts: list[tuple[int, int]], before: str, after: str) -> None:
    spans = [(first, min(first + more, MAX_CPUS - 1)) for first, more in parts]
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    assert set(CPUSet.parse(before + text + after)) == {cpu for first, last in spans for cpu in range(first, last + 1)}


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", []),
        (" \t\n", []),
        ("0\n", [0]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("3,1,2,2", [1, 2, 3]),
        ("0-2,1-4", [0, 1, 2, 3, 4]),
        ("5-5", [5]),
        ("007", [7]),
        ("8191", [8191]),
        ("0-2,511,1024,4095", [0, 1, 2, 511, 1024, 4095]),
    ],
)
@pytest.mark.fault("P-4")
def test_known_texts(text: str, cpus: list[int]) -> None:
    assert list(CPUSet.parse(text)) == cpus


@pytest.mark.fault("P-4")
def test_ids_above_1024_keep_their_text() -> None:
    for text in ("0-2,511,4095", "1023-1025", "8191", "0-8191"):
        assert str(CPUSet.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *[",", "0,", ",0", "0,,1", "-", "-1", "1-", "--1", "1--2", "1-2-3", "+1", "1+2", "3-1", "8192", "0-8192"],
        *["99999999", "0-99999999", "123456789", "9" * 100_000, "0 1", "0, 1", "0 -1", "1\n2", "\n1\n,2", "0\0", "\0"],
        *[
            "0x1",
            "1e3",
            "1.0",
            "1_0",
            "0-31:1/2",
            "all",
            "N",
            "off",
            "^1",
            "!1",
            "0;1",
            "0-1/2",
            "\ufeff0",
            "\x0b1",
            "\xa01",
        ],
        *["٣", "²", "１", "0\u20131", "𝟎", "\ud800", "0\r"],  # noqa: RUF001  # digits and dashes of other scripts
    ],
)
def test_text_that_is_no_list_is_refused_and_quoted_on_one_short_line(text: str) -> None:
    with pytest.raises(CPUSetError) as error:
        CPUSet.parse(text)
    told = str(error.value)
    assert told.isprintable()
    assert len(told) < 250
    assert isinstance(error.value, ValueError)


@given(st.text(max_size=30) | st.text("0123456789-, ", max_size=30))
def test_any_text_is_a_set_or_our_error(text: str) -> None:
    try:
        made = CPUSet.parse(text)
    except CPUSetError:
        return
    assert CPUSet.parse(str(made)) == made


@pytest.mark.parametrize("cpu", [-1, MAX_CPUS, 10**30, -(10**30)])
def test_ids_that_no_cpu_can_have_are_refused(cpu: int) -> None:
    with pytest.raises(CPUSetError):
        CPUSet([0, cpu])


@pytest.mark.parametrize(
    "mask", [-1, 1 << MAX_CPUS, -(1 << MAX_CPUS), 1 << 100_000], ids=["-1", "1<<max", "-1<<max", "huge"]
)
def test_masks_that_no_machine_can_have_are_refused(mask: int) -> None:
    with pytest.raises(CPUSetError) as error:
        CPUSet.from_mask(mask)
    assert len(str(error.value)) < 250


def test_the_largest_set_is_fine() -> None:
    whole = CPUSet.from_mask((1 << MAX_CPUS) - 1)
    assert (len(whole), str(whole)) == (MAX_CPUS, f"0-{MAX_CPUS - 1}")
    assert str(CPUSet(range(0, MAX_CPUS, 2))).count(",") == MAX_CPUS // 2 - 1


def test_the_empty_set_is_empty() -> None:
    assert (EMPTY, str(EMPTY), len(EMPTY), bool(EMPTY), list(EMPTY)) == (CPUSet(), "", 0, False, [])
    with pytest.raises(CPUSetError, match="no first CPU"):
        EMPTY.first()


def test_it_is_a_value() -> None:
    made = CPUSet([1, 9])
    assert {made: "x"}[CPUSet.parse("9,1")] == "x"
    assert made != frozenset([1, 9])
    assert made != made.mask
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(AttributeError):
        made.anything = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        made.mask = 1  # type: ignore[misc]
    for other in ([1], {1}, 1, "1", None):
        with pytest.raises((TypeError, AttributeError)):
            made | other  # type: ignore[operator]


def test_texts_that_print_the_same_set_are_the_same_text() -> None:
    assert len({str(CPUSet.parse(text)) for text in ("0-1", "1,0", "00,01", " 0,1\n", "0-0,0-1")}) == 1

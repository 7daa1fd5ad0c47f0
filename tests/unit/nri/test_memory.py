"""What is collected when, and what is kept."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nri_cpu.nri import memory


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_until_memory_is_settled() -> None:
    memory.put_off()
    assert not gc.isenabled()
    memory.settle()
    assert gc.isenabled()


def test_nothing_is_collected_until_there_is_nobody_who_waits() -> None:
    memory.put_off()
    memory.resume()
    assert gc.isenabled()


def test_settled_memory_is_out_of_the_collectors_way_and_can_be_settled_again() -> None:
    memory.settle()
    assert gc.get_freeze_count() > 1000
    memory.settle()
    assert gc.get_freeze_count() > 1000


# Each block is larger than all before it: what glibc would take from the kernel, page by page.
_FAULTS = """
import resource
from nri_cpu.nri import memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size in range(200_000, 900_000, 50_000):
        bytes(b"x" * size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
{keep}
print(faults())
"""


def test_freed_memory_is_used_again() -> None:
    def faults(keep: str) -> int:
        ran = subprocess.run([sys.executable, "-c", _FAULTS.format(keep=keep)], capture_output=True, check=True)
        return int(ran.stdout)

    without, with_it = faults(""), faults("memory.keep_freed()")
    if platform.libc_ver()[0] == "glibc":
        assert with_it < without / 2
    else:
        assert with_it <= without * 1.1

"""When memory is looked after: not while a runtime waits for an answer."""

from __future__ import annotations

import gc
from typing import Final

# Freed blocks up to this size, in bytes, are used again. Enough for the Synchronize of a thousand containers.
KEPT: Final = 1 << 20


def keep_freed() -> None:
    """Let freed memory be used again; once in a process.

    glibc takes each block of 128 KiB and more from the kernel, which hands it out page by page, and gives it back as
    soon as it is free, but no block smaller than one that has been freed (mallopt(3), M_MMAP_THRESHOLD). Parsing
    Synchronize takes several, a tenth of its time. With another C library this does nothing.
    """
    bytes(KEPT)


def put_off() -> None:
    """No garbage collection until settle() or resume(): a runtime is about to synchronize, and waits."""
    gc.disable()


def settle() -> None:
    """Keep what has been loaded and learned so far out of later garbage collections.

    A full collection takes 2 to 3 ms with a node's containers in memory, and would come in the middle of a hook. What
    an earlier session left behind goes now.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.enable()


def resume() -> None:
    """Garbage collection as usual, whether or not it was put off."""
    gc.enable()

"""What is missing or wrong in a machine's files, told in one line for each kind, however many CPUs it is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nri_cpu.cpuset import CPUSet

_NAMES_TOLD = 8


class Oddities:
    """Collects while a machine is read."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int | str, None]] = {}

    def note(self, kind: str, which: int | str) -> None:
        """Remember one CPU, or name, that is odd in this way. `kind`: a sentence with {} in the place of all of them,
        which are either CPUs or names."""
        self._found.setdefault(kind, {})[which] = None

    def note_all(self, kind: str, cpus: Iterable[int]) -> None:
        """The same for several CPUs; of none nothing is told."""
        for cpu in cpus:
            self.note(kind, cpu)

    def sentences(self) -> tuple[str, ...]:
        """One for each kind, in the order in which they were found."""
        return tuple(kind.format(_listed(list(which))) for kind, which in self._found.items())


def log(oddities: Sequence[str]) -> None:
    """A log line for each."""
    if not oddities:
        return
    from loguru import logger  # 30 ms, which commands on a machine without oddities do without

    for oddity in oddities:
        logger.info("topology: {}", oddity)


def _listed(which: list[int | str]) -> str:
    cpus = [item for item in which if isinstance(item, int)]
    if cpus:
        return str(CPUSet(cpus))
    more = len(which) - _NAMES_TOLD
    return ", ".join(map(str, which[:_NAMES_TOLD])) + (f" and {more} more" if more > 0 else "")

"""Random requests to both allocators: how often their answers differ, and in what.

`python -m tests.kubelet_allocator.survey 5000` prints it.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from dra.allocation import Strategy
from nri_cpu.topology import Topology
from tests.kubelet_allocator.compare import Difference, Outcome, held_against
from tests.kubelet_allocator.driver import Kubelet
from tests.kubelet_allocator.ways import WAYS, Way
from tests.unit.dra.allocation.random_machines import Request, random_request


def outcomes(kubelet: Kubelet, way: Way, seeds: Iterable[int]) -> Iterator[tuple[Request, Outcome]]:
    """Each random request that this way can be asked, and what came of it; raises OursIsWorseError."""
    for seed in seeds:
        request = random_request(Random(seed))
        if askable(request.topology, way):
            yield request, held_against(kubelet, request.topology, request.free, request.count, way)


def askable(topology: Topology, way: Way) -> bool:
    """Whole cores are not distributed where they have several widths: that is refused."""
    whole_cores_shared = way.options.full_physical_cores and way.options.strategy is Strategy.DISTRIBUTED
    return not whole_cores_shared or len(set(map(len, topology.cores))) == 1


def main(arguments: Sequence[str]) -> int:
    """Print a table; returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.kubelet_allocator.survey")
    parser.add_argument("requests", type=int, help="how many, for each way to choose")
    requests = parser.parse_args(arguments).requests
    with Kubelet() as kubelet:
        for way in WAYS:
            counts = Counter(outcome.difference for _, outcome in outcomes(kubelet, way, range(requests)))
            print(f"{way.name}: {counts.total()} requests")
            for difference in (None, *Difference):
                if counts[difference]:
                    print(f"{counts[difference]:8}  {difference or 'the same'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

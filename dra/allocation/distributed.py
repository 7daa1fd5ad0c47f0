"""Distributed allocation (the kubelet's distribute-cpus-across-numa, KEP-2902): even shares on several NUMA nodes.

What is shared out are units: single CPUs, or the threads of one core with full physical cores. How many nodes is said
by numaNodes; which of them, and who gets the odd units, is dra.allocation.shares; within each node the
share is packed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dra.allocation.errors import AllocationError, SMTAlignmentError, said
from dra.allocation.full_cores import on_whole_cores
from dra.allocation.machine import Machine, holds_several_sockets, numa_nodes, numa_nodes_touched, touching
from dra.allocation.options import AllocationOptions, NumaNodes
from dra.allocation.packed import packed
from dra.allocation.shares import Node, Sharing, even_shares_fit, nodes_in_order

# NUMA nodes that a refusal lists.
_SHOWN_NODES = 8


def distributed(machine: Machine, free: int, count: int, options: AllocationOptions) -> int:
    """Exactly `count` CPUs (1 or more) out of `free` (all of the machine; at least as many, or full cores), as a mask.

    Raises AllocationError when numaNodes is `all` or a number and shares that differ by at most one unit can't be had
    (fault B5), and SMTAlignmentError with full physical cores when whole free cores can't give `count`, or the cores
    of the nodes that have CPUs in `free` have several widths, so that there is no unit.
    """
    width = _unit(machine, free, count, options)
    units = count // width
    nodes = nodes_in_order(machine, free, width if options.full_physical_cores else None)
    automatic = _is_automatic(options)
    number = _fewest_nodes(nodes, units) if automatic else _as_said(nodes, units, options)
    if automatic and number < 2:
        cpus = packed(machine, free, count, options)
        # Packed prefers one socket to one node: then it is one node as with `numaNodes: 1`.
        if number == 0 or numa_nodes_touched(machine, cpus) == 1:
            return cpus
    elif not automatic and not even_shares_fit(nodes, number, units):
        raise AllocationError(
            f"{said(count)} requested on {number} NUMA node{'s' if number > 1 else ''}{_wanted(number, units, width)};"
            f" free are {_listed(nodes, options)}",
            _fitting(nodes, count, width, options),
        )

    def pack(node: Node, share: int) -> int:
        return packed(machine, node.cpus, share * width, options)

    sharing = Sharing(nodes, number, units, width, even=not automatic)
    if holds_several_sockets(machine):
        return sharing.on_fewest_touched_sockets(machine.sockets, pack)
    return sum(pack(node, share) for node, share in sharing.on_fewest_sockets())


def distributed_would_fit(machine: Machine, free: int, count: int, options: AllocationOptions) -> tuple[int, ...]:
    """The numbers of CPUs nearest to `count`, which can't be had, that can be had; full physical cores left aside."""
    if _is_automatic(options):
        return (free.bit_count(),) if free else ()
    return _fitting(nodes_in_order(machine, free, None), count, 1, options)


def distributed_quality(machine: Machine, free: int, cpus: int) -> Mapping[str, object]:
    """The quality of `cpus` out of `free` by name, in the order in which it counts.

    `shares`: CPUs of each node that gives any, by number of the node. `deviation`: standard deviation of the free
    CPUs of all nodes that had some, afterwards.
    """
    nodes = [node for _, node in numa_nodes(machine) if node & free]
    shares = tuple(share for node in nodes if (share := (node & cpus).bit_count()))
    left = [(node & free & ~cpus).bit_count() for node in nodes]
    mean = sum(left) / len(left)
    return {
        "numaNodes": len(shares),
        "shares": shares,
        "sockets": touching(machine.sockets, cpus),
        "deviation": round(math.sqrt(sum((each - mean) ** 2 for each in left) / len(left)), 3),
    }


def _is_automatic(options: AllocationOptions) -> bool:
    return options.numa_nodes is None or options.numa_nodes is NumaNodes.AUTO


def _unit(machine: Machine, free: int, count: int, options: AllocationOptions) -> int:
    """CPUs of a unit. Raises SMTAlignmentError when whole free cores can't give `count`, or cores differ in width.

    All cores of the nodes that have free CPUs count, also those that others hold: a claim must not pass or fail with
    which cores of a node are free just now.
    """
    if not options.full_physical_cores:
        return 1
    inside = sum(node for node in machine.nodes if node & free)
    widths = [width for width, leads in machine.widths if leads & inside]
    if len(widths) > 1:
        raise SMTAlignmentError(
            f"requested {said(count)} cannot be distributed as full physical cores: cores of these NUMA nodes have"
            f" {' and '.join(map(str, widths))} threads, so shares can't be even; use strategy: packed"
        )
    try:
        on_whole_cores(machine, free, count)
    except SMTAlignmentError as error:
        if widths and not _is_automatic(options):
            nodes = nodes_in_order(machine, free, widths[0])
            raise SMTAlignmentError(str(error), _fitting(nodes, count, widths[0], options)) from None
        raise
    return widths[0]


def _fewest_nodes(nodes: list[Node], units: int) -> int:
    """auto: the fewest nodes that can each give the even share, rounded down, and together all.

    0 when there are none such, and the request is packed over everything.
    """
    most = sorted((node.units for node in nodes if node.units), reverse=True)
    together = 0
    for number, poorest in enumerate(most, 1):
        together += poorest
        if poorest >= units // number and together >= units:
            return number
    return 0


def _as_said(nodes: list[Node], units: int, options: AllocationOptions) -> int:
    """all: every node with free CPUs, whole cores or not, but no more than there are units. A number is a number."""
    return options.numa_nodes if isinstance(options.numa_nodes, int) else min(len(nodes), units)


def _wanted(number: int, units: int, width: int) -> str:
    """The shares that were asked for, for a message."""
    share, odd = divmod(units, number)
    if not share:
        return f", too few for {width} on each"
    return f", {share * width} on each" if not odd else f", {share * width} or {(share + 1) * width} on each"


def _listed(nodes: list[Node], options: AllocationOptions) -> str:
    def told(node: Node) -> str:
        on_cores = f" ({said(node.cores)} on whole cores)" if options.full_physical_cores else ""
        return f"{node.free} on node {node.number}{on_cores}"

    told_ones = [told(node) for node in sorted(nodes, key=lambda node: node.number)[:_SHOWN_NODES]]
    more = f" and {len(nodes) - _SHOWN_NODES} more" if len(nodes) > _SHOWN_NODES else ""
    return ", ".join(told_ones) + more


def _fitting(nodes: list[Node], count: int, width: int, options: AllocationOptions) -> tuple[int, ...]:
    """The nearest numbers below and above `count` that `all` these nodes, or a number of them, give in even shares.

    A number of nodes gives all from one unit each to the most: as much on each as the poorest of the richest has, and
    one more where there is more. `all` are fewer nodes where there are fewer units than nodes.
    """
    most = sorted((node.units for node in nodes if node.units), reverse=True)
    number = _as_said(nodes, len(nodes), options)
    least = number if isinstance(options.numa_nodes, int) else 1
    largest = 0 if isinstance(options.numa_nodes, int) else len(most)
    if 0 < number <= len(most):
        poorest = most[number - 1]
        largest = number * poorest + sum(1 for each in most if each > poorest)
    near = (min(largest, (count - 1) // width), max(least, count // width + 1))
    return tuple(units * width for units in near if least <= units <= largest)

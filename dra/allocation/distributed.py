"""Distributed allocation (the kubelet's distribute-cpus-across-numa, KEP-2902): even shares on several NUMA nodes.

What is shared out are units: single CPUs, or the threads of one core with full physical cores. How many nodes is said
by numaNodes (`_how_many`); which of them, and who gets the odd units, is dra.allocation.shares; within each node the
share is packed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dra.allocation.cores import whole
from dra.allocation.errors import AllocationError, SMTAlignmentError, said
from dra.allocation.full_cores import on_whole_cores
from dra.allocation.machine import Machine, holds_several_sockets, touching
from dra.allocation.options import AllocationOptions, NumaNodes
from dra.allocation.packed import packed
from dra.allocation.shares import Node, Sharing, even_shares_fit, nodes_in_order


def distributed(machine: Machine, free: int, count: int, options: AllocationOptions) -> int:
    """Exactly `count` CPUs (1 or more) out of `free` (at least as many, all of the machine), as a mask.

    Raises AllocationError when numaNodes is `all` or a number and shares that differ by at most one unit can't be had
    (fault B5), and SMTAlignmentError with full physical cores when whole free cores can't give `count`, or have
    several widths, so that there is no unit.
    """
    width = _unit(machine, free, count, options)
    units = count // width
    nodes = nodes_in_order(machine, free, width if options.full_physical_cores else None)
    number = _how_many(nodes, count, width, options)
    if number < 2:
        cpus = packed(machine, free, count, options)
        # Packed prefers one socket to one node, which is not what `numaNodes: 1` says where a node has several.
        if number == 0 or _is_automatic(options) or touching(machine.nodes, cpus) == 1:
            return cpus

    def pack(node: Node, share: int) -> int:
        return packed(machine, node.cpus, share * width, options)

    sharing = Sharing(nodes, number, units, width, even=not _is_automatic(options))
    if holds_several_sockets(machine):
        return sharing.on_fewest_touched_sockets(machine.sockets, pack)
    return sum(pack(node, share) for node, share in sharing.on_fewest_sockets())


def distributed_quality(machine: Machine, free: int, cpus: int) -> Mapping[str, object]:
    """The quality of `cpus` out of `free` by name, in the order in which it counts.

    `shares`: CPUs of each node that gives any, by number of the node. `deviation`: standard deviation of the free
    CPUs of all nodes that had some, afterwards.
    """
    nodes = [node for node in machine.nodes if node & free]
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
    """CPUs of a unit. Raises SMTAlignmentError when whole free cores can't give `count`, or differ in width."""
    if not options.full_physical_cores:
        return 1
    cores = whole(machine.shapes, free)
    widths = [width for width, leads in machine.widths if leads & cores]
    if len(widths) > 1:
        raise SMTAlignmentError(
            f"requested {said(count)} cannot be distributed as full physical cores: whole free cores have"
            f" {' and '.join(map(str, widths))} threads, so shares can't be even; use strategy: packed"
        )
    on_whole_cores(machine, free, count)
    return widths[0]


def _how_many(nodes: list[Node], count: int, width: int, options: AllocationOptions) -> int:
    """The number of nodes to take; 0 when none is right and the request is packed over everything.

    auto: the fewest that can each give the even share, rounded down, and together all. all: those that can give a
    unit, but no more than there are units. A number is a number. Raises AllocationError when they can't be even.
    """
    units = count // width
    if _is_automatic(options):
        most = sorted((node.units for node in nodes), reverse=True)
        for number in range(1, len(nodes) + 1):
            if most[number - 1] >= units // number and sum(most[:number]) >= units:
                return number
        return 0
    number = options.numa_nodes if isinstance(options.numa_nodes, int) else min(len(nodes), units)
    if even_shares_fit(nodes, number, units):
        return number
    raise AllocationError(
        f"{said(count)} requested on {number} NUMA node{'s' if number > 1 else ''}{_wanted(number, units, width)};"
        f" free are {_listed(nodes, options)}",
        _would_fit(nodes, number, units, width),
    )


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

    return ", ".join(told(node) for node in sorted(nodes, key=lambda node: node.number))


def _would_fit(nodes: list[Node], number: int, units: int, width: int) -> tuple[int, ...]:
    """The nearest number of CPUs that as many nodes could give in even shares, if there is one.

    That is all from one unit each to the most: as much on each as the poorest of the richest has, and one more where
    there is more.
    """
    most = sorted((node.units for node in nodes), reverse=True)
    if number > len(most):
        return ()
    poorest = most[number - 1]
    largest = number * poorest + sum(1 for each in most if each > poorest)
    return (max(number, min(units, largest)) * width,)

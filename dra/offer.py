"""What of the node's devices is published: less the CPUs of claims that the scheduler counts elsewhere. Pure.

The scheduler takes a claim off the device that it is allocated. After a change of cpuDeviceMode, groupBy or the node's
name, prepared claims are allocated devices that aren't published any more, or that are other CPUs now; their CPUs would
be given away a second time, and each such claim be refused by Prepare (fault R17; features.md D2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dra.devices import CAPACITY, NUM_CPUS, Device
from dra.prepare.choice import Node
from nri_cpu.checkpoint.model import ClaimRecord
from nri_cpu.cpuset import EMPTY, CPUSet

# Pool and name of a device.
Place = tuple[str, str]


def offered(node: Node, records: Mapping[str, ClaimRecord]) -> tuple[Device, ...]:
    """The node's devices, in their order, without the CPUs that claims hold under another pool or device.

    A group has as many CPUs less, and one without any CPU left is not published; so isn't a single CPU that is held
    under another name. What a claim holds under the device's own name stays: the scheduler counts it. So what the
    scheduler takes for free is never more than what is: a claim's CPU that is off line or reserved by now counts twice.

    `records`: the prepared claims by UID.
    """
    held = _held(records.values())
    everywhere = CPUSet.union(held.values())
    found = []
    for name, device in node.devices.items():
        own = held.get((node.pool, name), EMPTY)
        # Claims are disjoint: what is held under this name is held under no other.
        if left := device.cpus - (everywhere - own):
            found.append(device if left == device.cpus else _less(device, left))
    return tuple(found)


def by_device(record: ClaimRecord) -> Mapping[Place, CPUSet]:
    """The CPUs that a claim has of each device: several of its requests may have some of one."""
    found: dict[Place, CPUSet] = {}
    for entry in record.devices:
        place = (entry.pool, entry.device)
        found[place] = found.get(place, EMPTY) | entry.cpus
    return found


def _held(records: Iterable[ClaimRecord]) -> Mapping[Place, CPUSet]:
    found: dict[Place, CPUSet] = {}
    for record in records:
        for place, cpus in by_device(record).items():
            found[place] = found.get(place, EMPTY) | cpus
    return found


def _less(group: Device, left: CPUSet) -> Device:
    return replace(
        group,
        cpus=left,
        attributes={**group.attributes, NUM_CPUS: len(left)},
        capacity={**group.capacity, CAPACITY: len(left)},
    )

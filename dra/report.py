"""The node's report (gatherinfo): what a machine is, how the driver is configured, who has CPUs. Pure.

    toolVersion     what wrote it
    layoutVersion   v1
    cpuDetails      topology {numCPUs, numCores, numUncoreCache, numSockets, numNUMANodes, smtEnabled},
                    cpus [{cpuID, coreID, socketID, clusterID, numaNodeID, numaNodeCPUSet, sibling, coreType,
                    uncoreCacheID}]; -1 is none, sibling only where a core has two threads
    driverConfig    the configuration, in the words of its file
    claims          those that are prepared
    containers      those that own them
    notes           what could not be read, and why; only if there is something

These are the words of dra-driver-cpu, whose reports are read too, except for the last three. Ours have for each CPU
also dieID, siblings (a list of CPUs, with itself) and online (of a CPU that is not on line only the node is known); in
cpuDetails possibleCPUs, isolatedCPUs, memoryNodes (memory and no CPU), memorylessNodes and pcieRoots. No secret gets
in: claims without their preparation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dra.values import shown
from nri_cpu import __version__
from nri_cpu.checkpoint.model import ClaimRecord, Owner
from nri_cpu.cpuset import EMPTY, MAX_CPUS, CPUSet, CPUSetError
from nri_cpu.topology.model import CoreType, Cpu, Topology

LAYOUT = "v1"

# A machine of MAX_CPUS has some 3 MB; claims and containers are as much again.
MAX_REPORT_BYTES = 16 << 20
# The same in values: 30 a CPU, and as many a claim.
_MAX_VALUES = 1_000_000
_LARGEST = 10**18 - 1  # the kernel's numbers are unsigned, and sysfs is read up to this


class ReportError(ValueError):
    """Text that is no report; the message names key and value."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is read back of a report. `driver_config`: as it stands there, nothing of it is checked. `claimed`: the CPUs
    of prepared claims."""

    topology: Topology
    driver_config: Mapping[str, object]
    claimed: CPUSet = EMPTY


# ---- writing


def report_of(
    topology: Topology,
    driver_config: Mapping[str, object],
    claims: Iterable[ClaimRecord] = (),
    owners: Mapping[str, Owner] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, object]:
    """The report as plain values. `owners`: by UID of the claim."""
    report: dict[str, object] = {
        "toolVersion": {"version": __version__, "pythonVersion": sys.version.split()[0]},
        "layoutVersion": LAYOUT,
        "cpuDetails": {
            "topology": {
                "numCPUs": len(topology.online),
                "numCores": len(topology.cores),
                "numUncoreCache": len(topology.l3_caches),
                "numSockets": len(topology.sockets),
                "numNUMANodes": len(topology.nodes),
                "smtEnabled": topology.smt_enabled,
            },
            "cpus": _cpus_said(topology),
            "possibleCPUs": str(topology.possible),
            "isolatedCPUs": str(topology.isolated),
            "memoryNodes": list(topology.memory_nodes),
            "memorylessNodes": list(topology.memoryless_nodes),
            "pcieRoots": {name: str(cpus) for name, cpus in topology.pcie_roots.items()},
        },
        "driverConfig": dict(driver_config),
        "claims": [_claim_said(record) for record in claims],
        "containers": [_owner_said(uid, owner) for uid, owner in (owners or {}).items()],
    }
    return report | ({"notes": list(notes)} if notes else {})


def _cpus_said(topology: Topology) -> list[dict[str, object]]:
    core_of = {cpu: core for core in topology.cores for cpu in core}
    said: list[dict[str, object]] = []
    for number in topology.present:
        cpu = topology.cpus.get(number)
        if cpu is None:
            said.append(_offline_said(number, topology.offline_nodes.get(number, -1)))
            continue
        others = list(core_of[number] - CPUSet([number]))
        said.append(
            {
                "cpuID": number,
                "coreID": cpu.core,
                "socketID": cpu.socket,
                "clusterID": cpu.cluster,
                "dieID": cpu.die,
                "numaNodeID": cpu.numa_node,
                "numaNodeCPUSet": str(topology.nodes[cpu.numa_node]),
                "sibling": others[0] if len(others) == 1 else -1,
                "siblings": str(core_of[number]),
                "coreType": str(cpu.core_type),
                "uncoreCacheID": -1 if cpu.l3 is None else cpu.l3,
                "online": True,
            }
        )
    return said


def _offline_said(number: int, node: int) -> dict[str, object]:
    """All keys, since readers may count on them; the kernel tells of the node only."""
    unknown = dict.fromkeys(("coreID", "socketID", "clusterID", "dieID"), -1)
    nobody = {"numaNodeCPUSet": "", "sibling": -1, "siblings": "", "coreType": "", "uncoreCacheID": -1}
    return {"cpuID": number, **unknown, "numaNodeID": node, **nobody, "online": False}


def _claim_said(record: ClaimRecord) -> dict[str, object]:
    """By name of each field: whatever else a record gets must not leave the node by itself."""
    return {
        "uid": record.uid,
        "namespace": record.namespace,
        "name": record.name,
        "cpus": str(record.cpus),
        "podUIDs": list(record.pod_uids),
        "preparedAt": record.prepared_at,
        "devices": [
            {
                "request": device.request,
                "pool": device.pool,
                "device": device.device,
                "cpus": str(device.cpus),
                "shareID": device.share_id,
            }
            for device in record.devices
        ],
        "options": dict(record.options),
    }


def _owner_said(uid: str, owner: Owner) -> dict[str, object]:
    return {
        "claimUID": uid,
        "podUID": owner.pod_uid,
        "podNamespace": owner.pod_namespace,
        "podName": owner.pod_name,
        "container": owner.container,
        "containerID": owner.container_id,
        "cgroup": owner.cgroup,
    }


# ---- reading


def read_report(text: str) -> Report:
    """The machine and configuration of a report, ours or dra-driver-cpu's. Unknown keys are passed over.

    Raises ReportError for everything else that is not as above.
    """
    from nri_cpu import plain_yaml

    if len(text) > MAX_REPORT_BYTES:
        raise ReportError(f"is larger than {MAX_REPORT_BYTES} characters: no report of a node")
    try:
        documents = plain_yaml.parse(text, _MAX_VALUES)
    except plain_yaml.PlainYamlError as error:
        raise ReportError(str(error)) from None
    if len(documents) != 1:
        raise ReportError(f"has {len(documents)} YAML documents where one report belongs")
    top = _object(documents[0], "the whole")
    layout = top.get("layoutVersion")
    if layout != LAYOUT:
        raise ReportError(f"layoutVersion is {shown(layout)}: it must be {LAYOUT}, the one that is known here")
    config = top.get("driverConfig")
    topology = _topology(_object(top.get("cpuDetails"), "cpuDetails"))
    return Report(topology, {} if config is None else _object(config, "driverConfig"), _claimed(top.get("claims")))


def _claimed(claims: object) -> CPUSet:
    """The CPUs of all claims; a report without claims (dra-driver-cpu's) is one of none."""
    if claims is None:
        return EMPTY
    if not isinstance(claims, list):
        raise ReportError(f"claims is {shown(claims)} where a list belongs")
    cpus = EMPTY
    for at, value in enumerate(claims):
        where = f"claims[{at}]"
        cpus |= cpus_of(_object(value, where).get("cpus"), f"{where}.cpus")
    return cpus


def _topology(details: Mapping[str, object]) -> Topology:
    entries = details.get("cpus")
    if not isinstance(entries, list):
        raise ReportError(f"cpuDetails.cpus is {shown(entries)} where a list belongs")
    ours = any(isinstance(entry, dict) and "dieID" in entry for entry in entries)
    cpus: dict[int, Cpu] = {}
    offline: dict[int, int] = {}
    siblings: dict[int, CPUSet] = {}
    for at, value in enumerate(entries):
        where = f"cpuDetails.cpus[{at}]"
        entry = _Entry(_object(value, where), where)
        number = entry.integer("cpuID", 0, highest=MAX_CPUS - 1)
        if number in cpus or number in offline:
            raise ReportError(f"{where}.cpuID is {number}, as in an entry before it")
        if entry.switch("online", True):
            cpus[number] = entry.cpu(number)
            siblings[number] = entry.cpuset("siblings")
        else:
            offline[number] = entry.integer("numaNodeID", -1, missing=-1)
    if not cpus:
        raise ReportError("cpuDetails.cpus has no CPU that is on line")
    place = _Entry(details, "cpuDetails")
    topology = Topology.of(
        cpus.values() if ours else _parted_l3(cpus.values()),
        CPUSet([*cpus, *offline]),
        {number: node for number, node in offline.items() if node >= 0},
        possible=place.cpuset("possibleCPUs"),
        isolated=place.cpuset("isolatedCPUs"),
        memory_nodes=place.integers("memoryNodes"),
        memoryless_nodes=place.integers("memorylessNodes"),
        pcie_roots=place.cpusets("pcieRoots"),
    )
    _check_siblings(topology, siblings)
    return topology


def _parted_l3(cpus: Iterable[Cpu]) -> list[Cpu]:
    """The CPUs with L3 numbers that are one cache's only: without ours, each socket may count its own."""
    known = list(cpus)
    caches = {(cpu.socket, cpu.l3) for cpu in known if cpu.l3 is not None}
    if len(caches) == len({l3 for _, l3 in caches}):
        return known
    number_of: dict[tuple[int, int], int] = {}
    return [
        cpu if cpu.l3 is None else replace(cpu, l3=number_of.setdefault((cpu.socket, cpu.l3), len(number_of)))
        for cpu in known
    ]


def _check_siblings(topology: Topology, siblings: Mapping[int, CPUSet]) -> None:
    for core in topology.cores:
        for cpu in core:
            if siblings[cpu] and siblings[cpu] & topology.online | CPUSet([cpu]) != core:
                raise ReportError(
                    f"siblings of CPU {cpu} is {siblings[cpu]}, but socketID, dieID, clusterID and coreID say {core}"
                )


class _Entry:
    """The fields of one object, by name and as what they must be.

    Each method raises ReportError naming the place and the value. `missing`: what stands for a field that isn't there;
    None where there must be one. Whole numbers are at least `lowest` and at most `highest`.
    """

    __slots__ = ("_found", "_where")

    def __init__(self, found: Mapping[str, object], where: str) -> None:
        self._found = found
        self._where = where

    def cpu(self, number: int) -> Cpu:
        l3 = self.integer("uncoreCacheID", -1, missing=-1)
        self.integer("sibling", -1, missing=-1)
        self.cpuset("numaNodeCPUSet")
        return Cpu(
            id=number,
            socket=self.integer("socketID", 0),
            die=self.integer("dieID", -1, missing=-1),
            cluster=self.integer("clusterID", -1, missing=-1),
            core=self.integer("coreID", 0),
            numa_node=self.integer("numaNodeID", 0),
            l3=None if l3 < 0 else l3,
            core_type=self._core_type(),
        )

    def integer(self, key: str, lowest: int, *, highest: int = _LARGEST, missing: int | None = None) -> int:
        value = self._found.get(key)
        if value is None and missing is not None:
            return missing
        if type(value) is not int or not lowest <= value <= highest:  # True is an int too
            raise ReportError(f"{self._where}.{key} is {shown(value)}: it must be a number from {lowest} to {highest}")
        return value

    def integers(self, key: str) -> list[int]:
        value = self._found.get(key, [])
        if not isinstance(value, list) or any(type(one) is not int or not 0 <= one <= _LARGEST for one in value):
            raise ReportError(f"{self._where}.{key} is {shown(value)}: it must be a list of numbers")
        return value

    def switch(self, key: str, missing: bool) -> bool:
        value = self._found.get(key, missing)
        if not isinstance(value, bool):
            raise ReportError(f"{self._where}.{key} is {shown(value)}: it must be true or false")
        return value

    def cpuset(self, key: str) -> CPUSet:
        return cpus_of(self._found.get(key, ""), f"{self._where}.{key}")

    def cpusets(self, key: str) -> dict[str, CPUSet]:
        where = f"{self._where}.{key}"
        return {
            name: cpus_of(value, f"{where}.{name}") for name, value in _object(self._found.get(key, {}), where).items()
        }

    def _core_type(self) -> CoreType:
        value = self._found.get("coreType", CoreType.STANDARD)
        if not isinstance(value, str) or value.lower() not in tuple(CoreType):
            raise ReportError(f"{self._where}.coreType is {shown(value)}: it must be {', '.join(CoreType)}")
        return CoreType(value.lower())


def cpus_of(value: object, where: str) -> CPUSet:
    """A list of CPUs out of a report. Raises ReportError."""
    # One CPU without quotes is a number for YAML.
    if not isinstance(value, str) and type(value) is not int:
        raise ReportError(f"{where} is {shown(value)}: it must be a list of CPUs such as 0-3,8")
    try:
        return CPUSet.parse(str(value)) if value != "" else EMPTY
    except CPUSetError as error:
        raise ReportError(f"{where}: {error}") from None


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ReportError(f"{where} is {shown(value)} where an object belongs")
    return value

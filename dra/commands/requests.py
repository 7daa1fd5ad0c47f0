"""Requests to the allocator as people and programs write them, and what they mean on one machine. Pure.

A line of a batch is a JSON object:

    cpus               how many, a number
    free               the CPUs that may be taken, "0-3,8"
    device             a device's name: only its CPUs
    strategy, numaNodes, fullPhysicalCores, alignL3
                       as in a claim's parameters

What a line leaves out is as the command's arguments say, then as the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra.allocation import AllocationOptions, OptionsError
from dra.cpu_config import API_VERSION, CpuConfig, CpuConfigError, merge, parse_cpu_config
from dra.devices import Device, every_device
from dra.values import shown
from nri_cpu.checkpoint.errors import Corrupt
from nri_cpu.checkpoint.strictjson import loads
from nri_cpu.cpuset import MAX_CPUS, CPUSet, CPUSetError, quote
from nri_cpu.topology import Topology

OPTIONS = ("strategy", "numaNodes", "fullPhysicalCores", "alignL3")
_KEYS = ("cpus", "free", "device", *OPTIONS)

# Bytes, without the newline. The longest list of CPUs has 23 KiB, and nothing else in a request is long.
MAX_LINE = 64 << 10

# Devices that an error names.
_SHOWN_DEVICES = 8


class RequestError(ValueError):
    """A request that means nothing; the message names key and value."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked; None is what is left to the arguments. `config`: how to choose."""

    cpus: int
    free: str | None = None
    device: str | None = None
    config: CpuConfig = field(default_factory=CpuConfig)

    def over(self, other: Request) -> Request:
        """This one, with what it leaves out as `other` has it."""
        return Request(
            self.cpus,
            other.free if self.free is None else self.free,
            other.device if self.device is None else self.device,
            merge([other.config, self.config]),
        )


@dataclass(frozen=True, slots=True)
class Question:
    """What the allocator gets beside the topology."""

    free: CPUSet
    count: int
    options: AllocationOptions


class Situation:
    """What a request means on one machine. `taken`: not free unless a request says so; `default`: how to choose."""

    def __init__(self, topology: Topology, taken: CPUSet, default: CpuConfig) -> None:
        self.topology = topology
        self._taken = taken
        self._default = default
        self._devices: Mapping[str, Device] | None = None

    def question(self, request: Request) -> Question:
        """Raises RequestError."""
        free = self.free(request)
        if not free and request.free is not None and request.device is not None:
            raise RequestError(
                f"free ({self._listed(request.free) or 'none on line'}) and device {request.device} "
                f"({self._device(request.device)}) have no CPU in common: name others, or leave one of them out"
            )
        try:
            options = merge([self._default, request.config]).options()
        except OptionsError as error:
            raise RequestError(str(error)) from None
        return Question(free, request.cpus, options)

    def free(self, request: Request) -> CPUSet:
        """What the request may take. Raises RequestError."""
        free = self.topology.online - self._taken if request.free is None else self._listed(request.free)
        return free if request.device is None else free & self._device(request.device)

    def _listed(self, text: str) -> CPUSet:
        try:
            free = CPUSet.parse(text)
        except CPUSetError as error:
            raise RequestError(f"free: {error}") from None
        if not free:
            raise RequestError("free is empty: name CPUs such as 0-3,8, or leave it out")
        if missing := free - self.topology.present:
            raise RequestError(f"free: CPUs {missing} do not exist: this machine has {self.topology.present}")
        return free & self.topology.online

    def _device(self, name: str) -> CPUSet:
        if self._devices is None:
            self._devices = every_device(self.topology, self.topology.online)
        if name in self._devices:
            return self._devices[name].cpus
        names = [other for other, device in self._devices.items() if device.group_by is not None]
        shown = ", ".join(names[:_SHOWN_DEVICES])
        more = f", {len(names) - _SHOWN_DEVICES} more like these" if len(names) > _SHOWN_DEVICES else ""
        raise RequestError(
            f"device {quote(name)} does not exist on this machine: there are {shown}{more}, and cpudevNNN"
        )


def parse_line(raw: bytes) -> Request:
    """The request of one line. Raises RequestError."""
    if len(raw.removesuffix(b"\n")) > MAX_LINE:
        raise RequestError(f"the line is longer than {MAX_LINE} bytes: no request is")
    if not raw.strip():
        raise RequestError('the line is empty: a request is a JSON object such as {"cpus": 2}')
    try:
        found = loads(raw)
    except Corrupt as error:
        raise RequestError(f"the line {error}") from None
    if not isinstance(found, dict):
        raise RequestError(f'the line is {shown(found)}: a request is a JSON object such as {{"cpus": 2}}')
    for key, value in found.items():
        if key not in _KEYS:
            raise RequestError(f"unknown key {quote(key)} ({shown(value)}); known are {', '.join(_KEYS)}")
    return Request(
        cpus=_count(found.get("cpus")),
        free=_text(found, "free", ' of CPUs in quotes, such as "0-3,8"'),
        device=_text(found, "device", ' in quotes, such as "cpudevnuma001"'),
        config=config_of({key: found[key] for key in OPTIONS if key in found}),
    )


def config_of(values: Mapping[str, object]) -> CpuConfig:
    """How to choose, of keys in OPTIONS and their values. Raises RequestError."""
    if not values:
        return CpuConfig()
    try:
        return parse_cpu_config({"apiVersion": API_VERSION, "cpuConfig": values}, "")
    except CpuConfigError as error:
        raise RequestError(str(error).removeprefix(".cpuConfig.")) from None


def _count(value: object) -> int:
    if type(value) is int and 1 <= value <= MAX_CPUS:  # True is an int too
        return value
    quotes = ", without quotes" if isinstance(value, str) else ""
    raise RequestError(f"cpus is {shown(value)}: it must be a number from 1 to {MAX_CPUS}{quotes}")


def _text(found: Mapping[str, object], key: str, form: str) -> str | None:
    if key not in found:
        return None
    value = found[key]
    if not isinstance(value, str):
        what = "a list" if key == "free" else "a name"
        raise RequestError(f"{key} is {shown(value)}: it must be {what}{form}")
    return value

"""How to choose a claim's CPUs, as users write it: opaque parameters, their precedence, the node's default. Pure.

    apiVersion: v1alpha1
    cpuConfig:
      cpuset: 2-5                            # a claim's own choice; excludes all others
      strategy: packed|spread|distributed
      numaNodes: auto|all|<number>           # distributed only
      fullPhysicalCores: true|false
      alignL3: true|false

Set in the configuration (without cpuset), in a DeviceClass or in a claim, and merged key by key in this order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from dra.allocation import AllocationOptions, NumaNodes, OptionsError, Strategy
from dra.values import shown
from nri_cpu.config import Config
from nri_cpu.cpuset import MAX_CPUS, CPUSet, CPUSetError, quote

API_VERSION = "v1alpha1"

# What the API server takes (resource.k8s.io, OpaqueParametersMaxLength); of other sources we take no more.
MAX_PARAMETERS = 10 << 10


class CpuConfigError(ValueError):
    """Parameters that can't be used; the message names the key with its path, and the value."""


@dataclass(frozen=True, slots=True)
class CpuConfig:
    """What one place sets, or several merged; None is what is left to others. `cpuset`: exactly these CPUs."""

    strategy: Strategy | None = None
    numa_nodes: NumaNodes | int | None = None
    full_physical_cores: bool | None = None
    align_l3: bool | None = None
    cpuset: CPUSet | None = None

    def __str__(self) -> str:
        """For messages."""
        said = ((key, shown(value) if isinstance(value, bool) else str(value)) for key, value in self.as_json().items())
        return ", ".join(f"{key}: {value[:100]}" for key, value in said) or "nothing"

    def options(self) -> AllocationOptions:
        """How to choose, the unset by its default. Raises OptionsError for what excludes each other.

        A cpuset leaves nothing to choose: a configuration that has one has no options.
        """
        if self.cpuset is not None:
            raise OptionsError(f"{self}: a cpuset leaves nothing to choose")
        return AllocationOptions(
            strategy=self.strategy or Strategy.PACKED,
            numa_nodes=self.numa_nodes,
            full_physical_cores=bool(self.full_physical_cores),
            align_l3=self.align_l3 is not False,
        )

    def as_json(self) -> dict[str, object]:
        """The keys that are set and their values, as parameters have them."""
        values: dict[str, object] = {}
        for key, (field, _) in _KEYS.items():
            value = getattr(self, field)
            if value is not None:
                values[key] = value if isinstance(value, bool | int) else str(value)
        return values


def parse_cpu_config(parameters: object, path: str) -> CpuConfig:
    """What the opaque parameters, which stand at `path`, set. Raises CpuConfigError for all that is not as above."""
    _check_size(parameters, path)
    top = _object(parameters, path)
    version = top.get("apiVersion")
    if version != API_VERSION:
        raise CpuConfigError(f"{path}.apiVersion is {shown(version)}, not {API_VERSION}, the one that is known here")
    _refuse_unknown(top, ("apiVersion", "cpuConfig"), path)
    path = f"{path}.cpuConfig"
    found = _object(top.get("cpuConfig"), path)
    _refuse_unknown(found, _KEYS, path)
    if not found:
        raise CpuConfigError(f"{path} is empty: set {', '.join(_KEYS)}, or take it away")
    values = {_KEYS[key][0]: _KEYS[key][1](value, f"{path}.{key}") for key, value in found.items()}
    if "cpuset" in found and len(found) > 1:
        others = ", ".join(key for key in found if key != "cpuset")
        raise CpuConfigError(
            f"{path}.cpuset: {str(values['cpuset'])[:100]} excludes {others}: it leaves nothing to choose"
        )
    return CpuConfig(**values)


def merge(configs: Iterable[CpuConfig]) -> CpuConfig:
    """All of them in one, key by key; where several set a key the last one counts."""
    merged: dict[str, Any] = {}
    for config in configs:
        for field in fields(config):
            if (value := getattr(config, field.name)) is not None:
                merged[field.name] = value
    return CpuConfig(**merged)


def node_default(config: Config) -> CpuConfig:
    """What the configuration file sets for the node.

    Raises OptionsError for a strategy and what it excludes. A numaNodes without a strategy is taken: a DeviceClass may
    set strategy: distributed, and what excludes each other after merging is refused then.
    """
    numa_nodes = config.numa_nodes
    default = CpuConfig(
        strategy=None if config.strategy is None else Strategy(config.strategy),
        numa_nodes=NumaNodes(numa_nodes) if isinstance(numa_nodes, str) else numa_nodes,
        full_physical_cores=config.full_physical_cores,
        align_l3=config.align_l3,
    )
    if default.strategy is not None:
        default.options()
    return default


def _check_size(parameters: object, path: str) -> None:
    try:
        size = len(json.dumps(parameters, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))
    except (TypeError, ValueError, RecursionError):
        raise CpuConfigError(f"{path} is no JSON, or nested too deep") from None
    if size > MAX_PARAMETERS:
        raise CpuConfigError(f"{path} has {size} bytes, {MAX_PARAMETERS} are the most that parameters can have")


def _object(value: object, path: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise CpuConfigError(f"{path} is {shown(value)} where an object belongs")
    return value


def _refuse_unknown(found: Mapping[str, object], known: Iterable[str], path: str) -> None:
    for key, value in found.items():
        if key not in known:
            raise CpuConfigError(
                f"{path} has the unknown key {quote(str(key))} ({shown(value)}); known are {', '.join(known)}"
            )


def _strategy(value: object, path: str) -> Strategy:
    if not isinstance(value, str) or value not in tuple(Strategy):
        raise CpuConfigError(f"{path} is {shown(value)}: it must be {', '.join(Strategy)}")
    return Strategy(value)


def _numa_nodes(value: object, path: str) -> NumaNodes | int:
    if isinstance(value, str) and value in tuple(NumaNodes):
        return NumaNodes(value)
    # True is an int too.
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CPUS:
        raise CpuConfigError(
            f"{path} is {shown(value)}: it must be {', '.join(NumaNodes)} or a number from 1 to {MAX_CPUS}, "
            "without quotes"
        )
    return value


def _switch(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise CpuConfigError(f"{path} is {shown(value)}: it must be true or false, without quotes")
    return value


def _cpuset(value: object, path: str) -> CPUSet:
    if not isinstance(value, str):
        raise CpuConfigError(f'{path} is {shown(value)}: it must be a list of CPUs in quotes, such as "2-5,8"')
    try:
        cpus = CPUSet.parse(value)
    except CPUSetError as error:
        raise CpuConfigError(f"{path}: {error}") from None
    if not cpus:
        raise CpuConfigError(f"{path} is empty: name CPUs, such as 2-5,8, or take it away")
    return cpus


_KEYS: Mapping[str, tuple[str, Callable[[object, str], Any]]] = {
    "cpuset": ("cpuset", _cpuset),
    "strategy": ("strategy", _strategy),
    "numaNodes": ("numa_nodes", _numa_nodes),
    "fullPhysicalCores": ("full_physical_cores", _switch),
    "alignL3": ("align_l3", _switch),
}

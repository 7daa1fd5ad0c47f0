"""The configuration file that both processes read: flat YAML, every key checked, all that is wrong told in one error.

    apiVersion        v1alpha1
    cpuDeviceMode     individual | grouped
    groupBy           numanode | socket | machine
    reservedCPUs      CPUs for nobody's claim and nobody's container, in the kernel's list format
    hostnameOverride  the node's name, when it is not the host's
    kubeconfig        path; in a cluster the pod's own account is used without it
    sysfsOverlay      path
    minSharedCPUs     CPUs that claims must leave for everybody else
    checkpoint        path of the checkpoint; owners and locks lie beside it
    cdiDir            directory of the claims' CDI specs
    requirePlugin     whether claims are prepared only while nri-cpu is in the runtime
    strategy          packed | spread | distributed: how CPUs are chosen for claims that don't say
    numaNodes         auto | all | a number: over how many NUMA nodes, with strategy distributed
    fullPhysicalCores whether only whole cores are taken
    alignL3           whether a claim is kept in as few L3 caches as possible
    exposePCIeRoots   whether devices name the PCIe roots near them
    publishNodeAllocatableResourceMapping
                      whether the scheduler takes claims off the node's allocatable CPUs (KEP-5517)
    kubeletCPUManagerConflict
                      refuse | warn: what becomes of a start beside the kubelet's static CPU manager

YAML's own readings of a value are not used: `08`, `off`, `1_2` and `10:30` mean what is written (fault A34).
Anchors, tags and nesting have no use in a flat file and are refused, and with them everything that can explode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nri_cpu.cpuset import MAX_CPUS, CPUSet, CPUSetError, quote
from nri_cpu.regular import NotRegularError, read_regular

# All keys together need less than 1 KiB; the rest is for comments.
MAX_CONFIG_BYTES = 64 << 10
_MAX_NESTING = 16  # of values, which are refused anyway; looking through more is a waste of time


@dataclass(frozen=True, slots=True)
class Config:
    """What the file sets; None is what it leaves to the default or to a flag."""

    api_version: str | None = None
    cpu_device_mode: str | None = None
    group_by: str | None = None
    reserved_cpus: CPUSet | None = None
    hostname_override: str | None = None
    kubeconfig: Path | None = None
    sysfs_overlay: Path | None = None
    min_shared_cpus: int | None = None
    checkpoint: Path | None = None
    cdi_dir: Path | None = None
    require_plugin: bool | None = None
    strategy: str | None = None
    numa_nodes: str | int | None = None
    full_physical_cores: bool | None = None
    align_l3: bool | None = None
    expose_pcie_roots: bool | None = None
    publish_node_allocatable_resource_mapping: bool | None = None
    kubelet_cpu_manager_conflict: str | None = None


class ConfigError(ValueError):
    """A configuration that can't be used. `problems`: each one with file, line and key, in the order of the file."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def load(path: Path) -> Config:
    """The configuration in the file at `path`; raises ConfigError, also when there is no such file."""
    try:
        raw = read_regular(path, MAX_CONFIG_BYTES)
    except (NotRegularError, IsADirectoryError):
        raise ConfigError([f"{path}: is no regular file; name one"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: can't be read: {error.strerror}; check the path and its mode"]) from error
    if len(raw) > MAX_CONFIG_BYTES:
        raise ConfigError([f"{path}: is larger than {MAX_CONFIG_BYTES} bytes: no configuration of ours"])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: is not UTF-8: {error.reason}"]) from None
    return parse(text, str(path))


def parse(text: str, source: str) -> Config:
    """The configuration that `text` holds; `source` stands for it in messages. Raises ConfigError with all problems."""
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError([f"{source}: is larger than {MAX_CONFIG_BYTES} characters: no configuration of ours"])
    known = f"known are {', '.join(_KEYS)}"
    problems: list[_Problem] = []
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in _pairs(text, problems):
        if key.kind in _NO_SCALARS:
            problems.append(_Problem(key.line, "", f"has {key.kind} for a key"))
        elif key.text not in _KEYS:
            problems.append(_Problem(key.line, _shown(key.text), f"unknown key; {_guess(key.text, _KEYS) or known}"))
        elif key.text in lines:
            problems.append(_Problem(key.line, key.text, f"duplicate key, first on line {lines[key.text]}; remove one"))
        else:
            lines[key.text] = key.line
            field, read = _KEYS[key.text]
            try:
                values[field] = read(value)
            except _Wrong as error:
                problems.append(_Problem(key.line, key.text, str(error)))
    if problems:
        raise ConfigError(f"{source}:{line}: {key + ': ' if key else ''}{what}" for line, key, what in sorted(problems))
    return Config(**values)


def is_node_name(text: str) -> bool:
    """Whether a node can have this name: a DNS subdomain as Kubernetes has it, of 253 characters in all; that RFC 1123
    allows 63 in a label only doesn't count there (ValidateNodeName)."""
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    return len(text) <= 253 and re.fullmatch(rf"{label}(\.{label})*", text) is not None


class _Problem(NamedTuple):
    line: int
    key: str  # empty when it is about the text as a whole
    what: str


class _Scalar(NamedTuple):
    """A key or a value as it is written. kind: what YAML takes it for, "text" also for whatever is in quotes."""

    text: str
    kind: str
    line: int


class _Wrong(Exception):  # noqa: N818  # never leaves this module
    """The value does not fit its key."""


# ---- YAML


_KINDS = {"int": "a number", "float": "a number", "bool": "a boolean", "null": "nothing", "timestamp": "a date"}
_NO_SCALARS = ("a list", "a mapping", "an alias", "an anchor", "a tag")


def _pairs(text: str, problems: list[_Problem]) -> Iterator[tuple[_Scalar, _Scalar]]:
    """The keys and values of the one flat mapping in `text`; what is wrong with it as a whole goes to `problems`.

    Works on the parser's events: nothing is built, nothing recurses, nothing is expanded.
    """
    import yaml

    try:
        yield from _walk(yaml.parse(text, yaml.SafeLoader), problems)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problems.append(_Problem(mark.line + 1 if mark else 1, "", f"is not YAML: {error.problem}"))
    except yaml.reader.ReaderError as error:
        problems.append(_Problem(text.count("\n", 0, error.position) + 1, "", f"is not YAML: {error.reason}"))
    except (ValueError, OverflowError):  # of int() and chr(), which the scanner does not look after
        problems.append(_Problem(1, "", "is not YAML: it has a number or an escape that is out of range"))


def _walk(events: Iterator[Any], problems: list[_Problem]) -> Iterator[tuple[_Scalar, _Scalar]]:
    from yaml import events as kinds

    start = next(event for event in events if not isinstance(event, kinds.StreamStartEvent))
    if isinstance(start, kinds.StreamEndEvent):
        return  # an empty file sets nothing
    event = next(events)
    if isinstance(event, kinds.MappingStartEvent) and not event.anchor and not event.tag:
        while not isinstance(event := next(events), kinds.MappingEndEvent):
            key = _scalar(event, events)
            yield key, _scalar(next(events), events)
    elif (root := _scalar(event, events)).kind != "nothing" or root.text:
        problems.append(_Problem(root.line, "", "is no list of keys and values such as `groupBy: numanode`"))
        return
    following = next(event for event in events if not isinstance(event, kinds.DocumentEndEvent))
    if isinstance(following, kinds.DocumentStartEvent):
        problems.append(_Problem(_line(following), "", "has a second document; remove it"))


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def _scalar(event: Any, events: Iterator[Any]) -> _Scalar:
    """The key or value that starts with `event`; of anything but a scalar only the kind, and its events are skipped."""
    from yaml import events as kinds

    line = _line(event)
    if isinstance(event, kinds.AliasEvent):
        return _Scalar("", "an alias", line)
    if isinstance(event, kinds.CollectionStartEvent):
        _skip(events)
        return _Scalar("", "a list" if isinstance(event, kinds.SequenceStartEvent) else "a mapping", line)
    if event.anchor or event.tag:
        return _Scalar("", "an anchor" if event.anchor else "a tag", line)
    return _Scalar(event.value, _kind(event.value) if event.implicit[0] else "text", line)


def _skip(events: Iterator[Any]) -> None:
    """Pass over the rest of a collection."""
    from yaml import events as kinds

    depth = 1
    while depth:
        event = next(events)
        depth += isinstance(event, kinds.CollectionStartEvent) - isinstance(event, kinds.CollectionEndEvent)
        if depth > _MAX_NESTING:
            raise _too_deep(event)


def _too_deep(event: Any) -> Exception:
    from yaml import MarkedYAMLError

    return MarkedYAMLError(problem="values are nested too deep", problem_mark=event.start_mark)


def _kind(plain: str) -> str:
    """What YAML 1.1 takes text without quotes for."""
    from yaml.nodes import ScalarNode
    from yaml.resolver import Resolver

    tag: str = Resolver().resolve(ScalarNode, plain, (True, False))  # type: ignore[no-untyped-call]
    return _KINDS.get(tag.rpartition(":")[2], "text")


# ---- values


def _text(value: _Scalar) -> str:
    if value.kind == "nothing":
        raise _Wrong("has no value; write one, or remove the line")
    if value.kind in _NO_SCALARS:
        raise _Wrong(f"is {value.kind} where text belongs")
    if value.kind != "text":
        raise _Wrong(f'is {value.kind} where text belongs; if it is meant as text, put it in quotes: "{value.text}"')
    if not value.text.isprintable():
        raise _Wrong("has characters that can't be shown")
    return value.text


def _one_of(*words: str) -> Callable[[_Scalar], str]:
    def read(value: _Scalar) -> str:
        text = _text(value)
        if text not in words:
            way_out = f"write {words[0]}" if len(words) == 1 else _guess(text, words) or "write one of them"
            raise _Wrong(f"{quote(text)} is not {_listed(words)}; {way_out}")
        return text

    return read


def _listed(words: tuple[str, ...]) -> str:
    """a or b, and a, b or c"""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _cpus(value: _Scalar) -> CPUSet:
    """As it is written, with or without quotes: 2 is CPU 2, 08 is CPU 8, and 10:30 is no number."""
    if value.kind == "nothing" or value.kind in _NO_SCALARS:
        _text(value)  # which refuses it
    try:
        return CPUSet.parse(value.text)
    except CPUSetError as error:
        raise _Wrong(str(error)) from None


def _count(value: _Scalar) -> int:
    if value.kind != "a number" or not re.fullmatch(r"0|[1-9][0-9]{0,8}", value.text):
        found = value.kind if value.kind in _NO_SCALARS else quote(value.text)
        raise _Wrong(f"{found} is no number of CPUs: write decimal digits without quotes")
    if int(value.text) > MAX_CPUS:
        raise _Wrong(f"{value.text} is more CPUs than the {MAX_CPUS} that a machine can have")
    return int(value.text)


def _numa_nodes(value: _Scalar) -> str | int:
    """A number is one only without quotes, as in a claim's parameters."""
    if value.kind == "text" and value.text in ("auto", "all"):
        return value.text
    if value.kind != "a number" or not re.fullmatch(r"[1-9][0-9]{0,8}", value.text):
        found = value.kind if value.kind in _NO_SCALARS else quote(value.text)
        raise _Wrong(f"{found} is not auto, all or a number from 1: write one of them, a number without quotes")
    if int(value.text) > MAX_CPUS:
        raise _Wrong(f"{value.text} is more than the {MAX_CPUS} NUMA nodes that a machine could have")
    return int(value.text)


def _switch(value: _Scalar) -> bool:
    if value.kind != "a boolean" or value.text not in ("true", "false"):
        found = value.kind if value.kind in _NO_SCALARS else quote(value.text)
        raise _Wrong(f"{found} is neither true nor false: write one of them without quotes")
    return value.text == "true"


def _node_name(value: _Scalar) -> str | None:
    """Empty as in the flag: not set."""
    text = _text(value)
    if text and not is_node_name(text):
        raise _Wrong(f"{quote(text)} is no name of a node (lower-case letters, digits, - and .)")
    return text or None


def _path(value: _Scalar) -> Path:
    text = _text(value)
    if not text:
        raise _Wrong("is an empty path; write one, or remove the line")
    return Path(text)


def _file(value: _Scalar) -> Path:
    """A file that has others beside it, named after it."""
    path = _path(value)
    if path.name in ("", ".."):
        raise _Wrong(f"{quote(value.text)} is a directory; name a file in it")
    return path


def _path_or_none(value: _Scalar) -> Path | None:
    """Empty as in the flag: not set."""
    return Path(text) if (text := _text(value)) else None


_KEYS: dict[str, tuple[str, Callable[[_Scalar], object]]] = {
    "apiVersion": ("api_version", _one_of("v1alpha1")),
    "cpuDeviceMode": ("cpu_device_mode", _one_of("individual", "grouped")),
    "groupBy": ("group_by", _one_of("numanode", "socket", "machine")),
    "reservedCPUs": ("reserved_cpus", _cpus),
    "hostnameOverride": ("hostname_override", _node_name),
    "kubeconfig": ("kubeconfig", _path_or_none),
    "sysfsOverlay": ("sysfs_overlay", _path_or_none),
    "minSharedCPUs": ("min_shared_cpus", _count),
    "checkpoint": ("checkpoint", _file),
    "cdiDir": ("cdi_dir", _path),
    "requirePlugin": ("require_plugin", _switch),
    "strategy": ("strategy", _one_of("packed", "spread", "distributed")),
    "numaNodes": ("numa_nodes", _numa_nodes),
    "fullPhysicalCores": ("full_physical_cores", _switch),
    "alignL3": ("align_l3", _switch),
    "exposePCIeRoots": ("expose_pcie_roots", _switch),
    "publishNodeAllocatableResourceMapping": ("publish_node_allocatable_resource_mapping", _switch),
    "kubeletCPUManagerConflict": ("kubelet_cpu_manager_conflict", _one_of("refuse", "warn")),
}


def _shown(key: str) -> str:
    """A key for a message: as it is written if it looks like one, else quoted."""
    return key if re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", key) else quote(key)


def _guess(word: str, known: Iterable[str]) -> str:
    """What may have been meant by `word`: the same letters spelt otherwise (reserved-cpus), else the nearest, or ""."""
    import difflib

    plain = {re.sub("[-_ ]", "", one).lower(): one for one in known}
    near = difflib.get_close_matches(re.sub("[-_ ]", "", word[:60]).lower(), plain, n=1)
    return f"did you mean {plain[near[0]]}?" if near else ""

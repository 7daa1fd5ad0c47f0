"""A dra-cpu without sockets for tests: preparer, ledger and directories of its own, which can end and start again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dra.cdi import CdiDirectory
from dra.claims import ClaimError, ClaimRef
from dra.devices import AttributeValue, DeviceMode
from dra.metadata import spec_file
from dra.metadata_files import MetadataDirectory
from dra.prepare.choice import Node
from dra.prepare.ledger import Ledger
from dra.prepare.preparer import Preparer
from dra.prepare.start import recover
from nri_cpu.checkpoint.cdi import FILE_PREFIX, file_name
from nri_cpu.checkpoint.files import read_checkpoint
from nri_cpu.checkpoint.locks import FileLock
from nri_cpu.checkpoint.model import Checkpoint
from nri_cpu.cpuset import CPUSet
from nri_cpu.topology import Topology
from tests.unit.dra.manifests import NODE, manifest, result, uid
from tests.unit.topology.machines import t1

BOOT = "0b1c2d3e-0000-4000-8000-00000000b007"


class Claims:
    """A source of claims that is a table; `before` runs at each read and may wait or raise."""

    def __init__(self) -> None:
        self.manifests: dict[str, dict[str, Any]] = {}
        self.before: Callable[[ClaimRef], None] = lambda ref: None
        self.reads: list[ClaimRef] = []

    def put(self, claim: dict[str, Any]) -> ClaimRef:
        metadata = claim["metadata"]
        self.manifests[metadata["name"]] = claim
        return ClaimRef(metadata["uid"], metadata["namespace"], metadata["name"])

    def reader(self, deadline: float) -> Callable[[ClaimRef], object]:
        def read(ref: ClaimRef) -> object:
            self.reads.append(ref)
            self.before(ref)
            if ref.name not in self.manifests:
                raise ClaimError(f"there is no claim {ref.name}")
            return self.manifests[ref.name]

        return read


class Rig:
    """`plugin`: the lock that nri-cpu holds, taken at first."""

    def __init__(self, directory: Path, topology: Topology | None = None, **configured: Any) -> None:
        self.checkpoint = directory / "state" / "checkpoint.json"
        self.cdi = CdiDirectory(directory / "cdi")
        self.metadata = directory / "kubelet/plugins/dra.cpu/dra-device-metadata"
        self.claims = Claims()
        self.changes = 0
        self.topology = topology or t1()
        self.online = self.topology.online
        self.start(**configured)
        self.plugin = FileLock(self.checkpoint.with_name("synchronized.lock"))
        assert self.plugin.acquire()

    def start(
        self,
        *,
        mode: DeviceMode = DeviceMode.GROUPED,
        reserved: str = "",
        min_shared: int | None = 0,
        require_plugin: bool = True,
        boot: str = BOOT,
        online: Callable[[], CPUSet] | None = None,
        **configured: Any,
    ) -> None:
        """A start of dra-cpu: the first one, or the next after a stop or a crash; `configured` goes to Node.of."""
        self.node = Node.of(NODE, mode, self.topology, CPUSet.parse(reserved), min_shared, **configured)
        metadata = MetadataDirectory(self.metadata, self.cdi.path, self.attributes)
        state = recover(self.checkpoint, self.cdi, metadata, self.node, boot)
        self.ledger = Ledger(self.checkpoint, self.cdi, metadata, state, boot, changed=self.count_change)
        synchronized = self.checkpoint.with_name("synchronized.lock") if require_plugin else None
        self.preparer = Preparer(
            lambda: self.node,
            self.claims,
            self.ledger,
            synchronized=synchronized,
            online=online or (lambda: self.online),
        )

    def another(self, **configured: Any) -> Rig:
        """A second dra-cpu on the same node, as there is during an upgrade."""
        second = Rig.__new__(Rig)
        second.__dict__.update(self.__dict__, changes=0)
        second.start(**configured)
        return second

    def attributes(self, name: str) -> Mapping[str, AttributeValue]:
        return self.node.attributes(name)

    def count_change(self) -> None:
        self.changes += 1

    def claim(self, number: int = 1, *results: dict[str, Any], cpus: object = "2", pod: str | None = None) -> ClaimRef:
        """An allocated claim in the source; without results, one of `cpus` CPUs on NUMA node 0."""
        return self.claims.put(
            manifest(*(results or [result(cpus=cpus)]), claim_uid=uid(number), name=f"c{number}", pod=pod)
        )

    def outcome(self, *refs: ClaimRef, seconds: float = 30) -> dict[str, Any]:
        return self.preparer.prepare(refs, time.monotonic() + seconds)

    def prepare(self, ref: ClaimRef) -> CPUSet:
        """Prepares, and gives the CPUs."""
        answer = self.outcome(ref)
        assert not isinstance(answer[ref.uid], str), answer
        return self.recorded[ref.uid]

    def refusal(self, ref: ClaimRef) -> str:
        answer = self.outcome(ref)[ref.uid]
        assert isinstance(answer, str), answer
        return answer

    def unprepare(self, ref: ClaimRef) -> str:
        return self.preparer.unprepare([ref], time.monotonic() + 30)[ref.uid]

    def on_disk(self) -> Checkpoint:
        return read_checkpoint(self.checkpoint)[0]

    @property
    def recorded(self) -> dict[str, CPUSet]:
        return {uid_: record.cpus for uid_, record in self.on_disk().claims.items()}

    def spec(self, ref: ClaimRef) -> Path:
        return self.cdi.path / file_name(ref.uid)

    def metadata_of(self, ref: ClaimRef, request: str = "cpus") -> dict[str, Any]:
        """What a container of the claim reads: the newest version in the file that its CDI device mounts."""
        (device,) = json.loads((self.cdi.path / spec_file(ref.uid, request)).read_bytes())["devices"]
        (mount,) = device["containerEdits"]["mounts"]
        found: dict[str, Any] = json.loads(Path(mount["hostPath"]).read_bytes().splitlines()[0])
        return found

    def has_metadata(self, ref: ClaimRef) -> bool:
        """Whether anything of the claim's metadata is there."""
        return any(ref.uid in name and not name.startswith(FILE_PREFIX) for name in self.snapshot()[1])

    def env(self, ref: ClaimRef) -> dict[str, str]:
        """What the claim's spec puts into a container."""
        edits = json.loads(self.spec(ref).read_bytes())["devices"][-1]["containerEdits"]
        return dict(setting.split("=", 1) for setting in edits["env"])

    def snapshot(self) -> tuple[bytes, dict[str, bytes]]:
        """All that lasts: the checkpoint's content, the CDI directory and the metadata on the host."""
        found = [path for place in (self.cdi.path, self.metadata) if place.is_dir() for path in place.iterdir()]
        return self.checkpoint.read_bytes(), {path.name: path.read_bytes() for path in found}

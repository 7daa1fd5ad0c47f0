"""The image of the box's containers: busybox and two tiny programs, as an OCI archive that containerd imports.

It serves as the sandbox's image too. Layout: OCI image specification 1.0, one uncompressed layer.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

NAME = "localhost/box:1"

# busybox under other names; what tests run in containers.
APPLETS = ("sh", "sleep", "cat", "grep", "taskset", "nproc", "echo", "ls", "ps", "true", "env")

_TYPE = "application/vnd.oci.image."


def write(path: Path, programs: Mapping[str, bytes]) -> None:
    """Write the archive. `programs`: name in /bin -> content; "busybox" and "pause" must be among them."""
    layer = _layer(programs)
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/bin/pause"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar", layer)],
        }
    )
    names = {"io.containerd.image.name": NAME, "org.opencontainers.image.ref.name": NAME.rsplit(":", 1)[1]}
    index = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}index.v1+json",
            "manifests": [{**_descriptor("manifest.v1+json", manifest), "annotations": names}],
        }
    )
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", index)
        for blob in (layer, config, manifest):
            _add(archive, "blobs/" + _digest(blob).replace(":", "/"), blob)


def _layer(programs: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name in ("bin", "proc", "sys", "dev", "etc", "tmp"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(directory)
        for name, content in programs.items():
            _add(layer, f"bin/{name}", content, 0o755)
        for name in APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
        _add(layer, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    archive.addfile(member, io.BytesIO(content))


def _descriptor(kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": _TYPE + kind, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()

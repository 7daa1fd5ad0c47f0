"""The box's kernel out of a Debian package: what QEMU starts, the modules that a node needs, the initrd."""

from __future__ import annotations

import lzma
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from hack.node import cpio
from hack.node.debian import unpack
from hack.node.errors import BuildError
from hack.node.tools import run

# Kernel modules that the box loads, by name; what they depend on comes along.
DISK_MODULES = ("virtio_pci", "virtio_blk", "ext4")
NODE_MODULES = ("virtio_net", "overlay", "veth")

# Offsets in the header of a bzImage (kernel: Documentation/arch/x86/boot.rst).
_SETUP_SECTORS, _PAYLOAD = 0x1F1, 0x248
_SECTOR = 512
_ZSTD, _XZ, _ELF = b"\x28\xb5\x2f\xfd", b"\xfd7zX", b"\x7fELF"


def install(package: Path, root: Path, out: Path, work: Path, busybox: Path, init: Path) -> str:
    """Put modules into `root`, vmlinux and initrd.img into `out`; returns the kernel's version."""
    unpack(package, work, ["./boot/*", "./usr/lib/modules/*"])
    (modules,) = (work / "usr/lib/modules").iterdir()
    version = modules.name
    target = root / "usr/lib/modules" / version
    _copy_modules(modules, target)
    run(["depmod", "-b", root / "usr", version])
    image = (work / f"boot/vmlinuz-{version}").read_bytes()
    (out / "vmlinux").write_bytes(elf_of(image))
    (out / "initrd.img").write_bytes(_initrd(target, busybox, init))
    return version


def elf_of(image: bytes) -> bytes:
    """The ELF kernel inside a bzImage: started by PVH it spares the box unpacking it, which emulation makes slow."""
    start = ((image[_SETUP_SECTORS] or 4) + 1) * _SECTOR
    offset, length = struct.unpack_from("<II", image, _PAYLOAD)
    payload = image[start + offset : start + offset + length]
    if payload[:4] == _XZ:
        kernel = lzma.LZMADecompressor().decompress(payload)
    elif payload[:4] == _ZSTD:
        kernel = run(["zstd", "-dc"], stdin=payload[:-4])  # the last word is the length, not part of the stream
    else:
        raise BuildError(f"the kernel is packed in a way that is not known here: {payload[:4].hex()}")
    if kernel[:4] != _ELF:
        raise BuildError("the kernel image has no ELF file inside")
    return kernel


def _copy_modules(source: Path, target: Path) -> None:
    """Copy what the box loads, unpacked: xz is slow under emulation."""
    target.mkdir(parents=True)
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copy(source / name, target)
    run(["depmod", "-b", source.parents[2], source.name])
    for name in _closure(source, (*DISK_MODULES, *NODE_MODULES)):
        packed = source / name
        unpacked = target / name.removesuffix(".xz")
        unpacked.parent.mkdir(parents=True, exist_ok=True)
        unpacked.write_bytes(lzma.decompress(packed.read_bytes()) if name.endswith(".xz") else packed.read_bytes())


def _closure(modules: Path, wanted: tuple[str, ...]) -> list[str]:
    """Files of the wanted modules, each after those it needs, by modules.dep; built-in ones have none."""
    dependencies: dict[str, tuple[str, list[str]]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, needs = line.partition(":")
        dependencies[path.rsplit("/", 1)[-1].split(".ko")[0].replace("-", "_")] = (path, needs.split())

    def files() -> Iterator[str]:
        for name in wanted:
            if name in dependencies:
                path, needs = dependencies[name]
                yield from reversed(needs)
                yield path

    return list(dict.fromkeys(files()))


def _initrd(modules: Path, busybox: Path, init: Path) -> bytes:
    content: dict[str, bytes | None] = dict.fromkeys(("bin", "dev", "root", "mod", "proc"))
    content |= {"bin/busybox": busybox.read_bytes(), "init": init.read_bytes()}
    for number, name in enumerate(_closure(modules, DISK_MODULES)):
        content[f"mod/{number:02}-{Path(name).name}"] = (modules / name).read_bytes()
    return cpio.archive(content)

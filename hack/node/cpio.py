"""cpio archives in the "newc" format, the one of an initrd.

(kernel: Documentation/driver-api/early-userspace/buffer-format.rst)
"""

from __future__ import annotations

from collections.abc import Mapping

_DIRECTORY, _FILE = 0o040755, 0o100755
_ALIGN, _BLOCK = 4, 512


def archive(files: Mapping[str, bytes | None]) -> bytes:
    """An archive of `files`: path without leading slash -> content, None for a directory. Parents must come before
    children.

    Archives may be concatenated: the kernel unpacks one after the other.
    """
    out = bytearray()
    for inode, (name, content) in enumerate(files.items(), 1):
        _append(out, inode, name, _DIRECTORY if content is None else _FILE, content or b"")
    _append(out, 0, "TRAILER!!!", 0, b"")
    return bytes(out) + bytes(-len(out) % _BLOCK)


def _append(out: bytearray, inode: int, name: str, mode: int, content: bytes) -> None:
    path = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    out += b"070701" + b"".join(b"%08x" % field for field in fields) + path
    out += bytes(-len(out) % _ALIGN) + content
    out += bytes(-len(out) % _ALIGN)

"""The box's image: kernel, initrd and root disk, built once and kept by the hash of what goes in.

User space is Debian's, unpacked without maintainer scripts; PID 1 is busybox. What the product needs at run time is in
the image, as wheels for the box's Python; the product itself is not (Node.install_project).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hack import cache
from hack.node import container_image, cpio, debian, kernel
from hack.node.debian import Suite, unpack_all
from hack.node.errors import BuildError
from hack.node.tools import TO_BUILD, Report, need, run, silent

USER_SUITE = "forky"
PACKAGES = (
    "base-files",
    "libc6",
    "busybox-static",
    "util-linux",
    "containerd",
    "runc",
    "crun",
    "python3",
    # Without it protobuf falls back to pure Python, without a word.
    "libstdc++6",
)
KERNEL_SUITE = "trixie"
KERNEL_PACKAGE = "linux-image-cloud-amd64"
DISK_SIZE = 6 << 30  # sparse

# Where the box's Python finds the product, which is put there when it runs; relative to the root.
PRODUCT_DIRECTORY = "opt/nri-cpu"

PROJECT = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).parent / "guest"

# Only a kubeconfig with a plugin for its user needs it, and no box has such a one.
NOT_IN_THE_BOX = ("kubernetes",)

DIRECTORIES = (
    *("proc", "sys", "dev", "run", "tmp", "root", "var/lib", "var/log"),
    *("usr/lib/box", "etc/containerd", "etc/nri/conf.d", "etc/cdi", "opt/nri/plugins"),
)
TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost box\n",
    "etc/hostname": "box\n",
    # containerd copies it into every sandbox.
    "etc/resolv.conf": "",
}
# Guest file -> (where it goes, mode).
GUEST_FILES = {
    "inittab": ("etc/inittab", 0o644),
    "containerd.toml": ("etc/containerd/config.toml", 0o644),
    "rc": ("usr/lib/box/rc", 0o755),
    "run-containerd": ("usr/lib/box/run-containerd", 0o755),
    "agent.py": ("usr/lib/box/agent.py", 0o644),
    "frames.py": ("usr/lib/box/frames.py", 0o644),
}
# Programs of the containers' image that are ours.
ASSEMBLED = ("pause", "first")


@dataclass(frozen=True, slots=True)
class Variant:
    """What an image has beside what all have, and what a frozen machine with it has done before it was frozen.

    `files`: path in the box, without leading slash -> file of the host (programs keep their mode); a file that changes
    must have another path. `warm_up`: shell lines.
    """

    name: str
    packages: tuple[str, ...] = ()
    files: tuple[tuple[str, Path], ...] = ()
    warm_up: tuple[str, ...] = ()


PLAIN = Variant("plain")


def requirements() -> tuple[str, ...]:
    """What pyproject.toml says the product needs at run time and a box can use."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return tuple(r for r in project["dependencies"] if _name(r) not in NOT_IN_THE_BOX)


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def key(variant: Variant = PLAIN) -> str:
    """What an image is kept by: everything that decides what is in it, but for what the archives serve that day."""
    code = [Path(module.__file__ or "").read_bytes() for module in (container_image, cpio, debian, kernel)]
    wanted = (USER_SUITE, PACKAGES, KERNEL_SUITE, KERNEL_PACKAGE, requirements(), variant)
    return cache.key_of(wanted, code, Path(__file__).read_bytes(), files=GUEST)


def image(report: Report = silent, variant: Variant = PLAIN) -> Path:
    """The directory with vmlinux, initrd.img, root.img and `versions`; made first if need be (20 to 60 s).

    Raises ToolsMissingError or BuildError.
    """
    return cache.entry("image", key(variant), lambda out: build(out, report, variant), report)


def build(out: Path, report: Report = silent, variant: Variant = PLAIN) -> None:
    """Build an image into the directory `out`."""
    need(TO_BUILD, report)
    began = time.monotonic()

    def step(text: str) -> None:
        report(f"image: {text} ({time.monotonic() - began:.0f} s)")

    with tempfile.TemporaryDirectory(dir=out) as name, ThreadPoolExecutor(2) as pool:
        work = Path(name)
        coming_kernel = pool.submit(lambda: Suite(KERNEL_SUITE, work / "kernel-apt").kernel(KERNEL_PACKAGE))
        packages = Suite(USER_SUITE, work / "apt").closure((*PACKAGES, *variant.packages))
        step(f"{len(packages)} packages downloaded")
        root = work / "root"
        root.mkdir()
        unpack_all(packages, root)
        _configure(root)
        version = _python_version(root)
        coming_wheels = pool.submit(lambda: _wheels(version, work / "wheels"))
        step("root file system unpacked")
        (work / "kernel").mkdir()
        release = kernel.install(
            coming_kernel.result(), root, out, work / "kernel", root / "usr/bin/busybox", GUEST / "initramfs-init"
        )
        step(f"kernel {release}")
        wheels = coming_wheels.result()
        _install_wheels(root, version, wheels)
        step(f"{len(wheels)} wheels for Python {version}")
        programs = {name: _assemble(name, work) for name in ASSEMBLED}
        programs["busybox"] = (root / "usr/bin/busybox").read_bytes()
        container_image.write(root / "usr/lib/box/image.tar", programs)
        for target, source in variant.files:
            (root / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, root / target)
        _disk(root, out / "root.img")
        (out / "versions").write_text(
            "\n".join([f"kernel {release}", *(p.stem for p in packages), *(w.name for w in wheels), ""])
        )
        step("done")


def _configure(root: Path) -> None:
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in TEXTS.items():
        (root / name).write_text(text)
    for name, (target, mode) in GUEST_FILES.items():
        shutil.copyfile(GUEST / name, root / target)
        (root / target).chmod(mode)
    var_run = root / "var/run"
    if not var_run.is_symlink():
        shutil.rmtree(var_run, ignore_errors=True)
        var_run.symlink_to("/run")
    # busybox is whatever Debian has in a package that is not here.
    for applet in run([root / "usr/bin/busybox", "--list"]).decode().split():
        if not any(os.path.lexists(root / place / applet) for place in ("usr/bin", "usr/sbin")):
            (root / "usr/bin" / applet).symlink_to("busybox")


def _python_version(root: Path) -> str:
    link = (root / "usr/bin/python3").readlink().name
    if not re.fullmatch(r"python3\.\d+", link):
        raise BuildError(f"{USER_SUITE}'s python3 is {link}, which is no version")
    return link.removeprefix("python")


def _wheels(version: str, directory: Path) -> list[Path]:
    """Download the product's dependencies for the box's Python."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    only = ["--only-binary=:all:", "--python-version", version]
    run([*pip, "download", *only, "-d", str(directory), *requirements()])
    return sorted(directory.glob("*.whl"))


def _install_wheels(root: Path, version: str, wheels: Sequence[Path]) -> None:
    """Unpack wheels where the box's Python looks, and compile all of its modules, natively, with its interpreter."""
    packages = root / f"usr/local/lib/python{version}/dist-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "nri-cpu.pth").write_text(f"/{PRODUCT_DIRECTORY}\n")
    for wheel in wheels:
        shutil.unpack_archive(wheel, packages, "zip")
    inside = [f"/usr/lib/python{version}", f"/usr/local/lib/python{version}/dist-packages", "/usr/lib/box"]
    command = ["/usr/bin/python3", "-m", "compileall", "-q", "-x", r"/(test|lib2to3|idlelib)/", *inside]
    run(["chroot", root, *command], as_root=True)


def _assemble(name: str, work: Path) -> bytes:
    """A static program out of one of the guest's assembly files."""
    run(["as", "-I", GUEST, "-o", work / f"{name}.o", GUEST / f"{name}.s"])
    run(["ld", "-static", "-s", "-o", work / name, work / f"{name}.o"])
    return (work / name).read_bytes()


def _disk(root: Path, path: Path) -> None:
    """A sparse ext4 disk with everything below `root`, owned by root."""
    with path.open("wb") as disk:
        disk.truncate(DISK_SIZE)
    options = ["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal,^resize_inode"]
    run(["mke2fs", *options, "-E", "lazy_itable_init=1,root_owner=0:0", "-d", root, path], as_root=True)

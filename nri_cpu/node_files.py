"""The files of nri-cpu: what it reads of dra-cpu and of the kernel, what it writes, and its two locks.

All but the kernel's lie in the checkpoint's directory, which is what gets mounted into a container: a file that is
mounted would be the old one when a new one has taken its name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from nri_cpu.checkpoint.boot import boot_id
from nri_cpu.checkpoint.cdi import read_specs
from nri_cpu.checkpoint.codec import owners_to_bytes
from nri_cpu.checkpoint.errors import CheckpointError, CheckpointMissing
from nri_cpu.checkpoint.files import OWNERS, ensure_directory, read_owners
from nri_cpu.checkpoint.files import replace as replace_file
from nri_cpu.checkpoint.follow import CheckpointFile
from nri_cpu.checkpoint.locks import RUNNING, SYNCHRONIZED, FileLock
from nri_cpu.checkpoint.model import ClaimRecord, Owner, Owners
from nri_cpu.command import CDI_DIRECTORY, CHECKPOINT
from nri_cpu.config import Config
from nri_cpu.cpuset import MAX_TEXT, CPUSet, CPUSetError
from nri_cpu.topology import load_overlay, read_online

ONLINE = "/sys/devices/system/cpu/online"


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are. `host` is what stands before /sys and /proc (HOST_ROOT), `sysfs_overlay` the file whose word on
    sysfs goes over the kernel's."""

    checkpoint: Path = CHECKPOINT
    cdi_directory: Path = CDI_DIRECTORY
    host: Path = Path("/")
    sysfs_overlay: Path | None = None

    def configured(self, config: Config) -> Places:
        """These places with those that the configuration names."""
        return replace(
            self,
            checkpoint=config.checkpoint or self.checkpoint,
            cdi_directory=config.cdi_dir or self.cdi_directory,
            sysfs_overlay=config.sysfs_overlay or self.sysfs_overlay,
        )

    @property
    def running_lock(self) -> Path:
        """Held by the one nri-cpu that is connected."""
        return self.checkpoint.with_name(RUNNING)


class Files:
    """The rim of the plugin. Nothing here waits: no fsync, no lock that another process holds."""

    def __init__(self, places: Places) -> None:
        """Raises CheckpointError if the directory can't be made, TopologyError if CPUs on line can't be read, or the
        overlay."""
        self.places = places
        overlay = load_overlay(places.sysfs_overlay) if places.sysfs_overlay else None
        self._online = read_online(places.host, overlay)
        ensure_directory(places.checkpoint.parent)
        self.checkpoint = CheckpointFile(places.checkpoint)
        self.running = FileLock(places.running_lock)
        self.synchronized = FileLock(places.checkpoint.with_name(SYNCHRONIZED))
        self._owners = places.checkpoint.with_name(OWNERS)
        self._boot_id = boot_id(places.host)
        self._online_path = os.fspath(places.host / ONLINE[1:])
        self._online_is_fixed = overlay is not None and ONLINE in overlay.files
        self._online_file: int | None = None
        self._online_text = b""
        self._online_told = False  # that it can't be read
        self._owners_told = False  # that they can't be written

    def moved(self, places: Places) -> Files:
        """The files at other places, in place of these. Raises CheckpointError, and these stay, if another nri-cpu is
        there already."""
        files = Files(places)
        if places.running_lock == self.places.running_lock:
            files.running, self.running = self.running, files.running
        elif not files.running.acquire():
            raise CheckpointError(f"another nri-cpu holds {places.running_lock}: end it, or name another checkpoint")
        self.close()
        return files

    def online(self) -> CPUSet:
        """CPUs on line now; if the kernel's list can't be read, as last known. The same object while nothing changes.

        The file stays open: sysfs makes its text anew when it is read from the start. An overlay's word stays as it is.
        """
        if self._online_is_fixed:
            return self._online
        try:
            if self._online_file is None:
                self._online_file = os.open(self._online_path, os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(self._online_file, MAX_TEXT, 0)
            if text != self._online_text:
                self._take_online(text)
        except (OSError, CPUSetError) as error:
            if not self._online_told:
                self._online_told = True
                logger.error("{} can't be read: {}; taking CPUs {} as on line", self._online_path, error, self._online)
        return self._online

    def _take_online(self, text: bytes) -> None:
        online = CPUSet.parse(text.decode("ascii", "replace"))
        if not online:
            raise CPUSetError("it is empty, and some CPU runs this")
        if online != self._online:
            self._online = online
        self._online_text = text
        self._online_told = False

    def read_owners(self) -> Mapping[str, Owner]:
        """Owners of this boot. None is no loss: they come from the containers that the runtime lists."""
        try:
            owners, boot = read_owners(self._owners)
        except CheckpointMissing:
            return {}
        except CheckpointError as error:
            logger.warning("{}; owners will be taken from running containers", error)
            return {}
        return owners.owners if boot == self._boot_id else {}

    def write_owners(self, owners: Mapping[str, Owner]) -> bool:
        """Let others see who owns what. A failure is told once and survived: the owners in memory count."""
        try:
            replace_file(self._owners, owners_to_bytes(Owners(owners), self._boot_id))
        except CheckpointError as error:
            if not self._owners_told:
                self._owners_told = True
                logger.error("{}: {}; it is tried again", self._owners, error)
            return False
        self._owners_told = False
        return True

    def keep_locks(self) -> None:
        """Take the locks that we hold anew where their directory is another one now."""
        for lock in (self.running, self.synchronized):
            try:
                if lock.held and not lock.acquire():
                    logger.error("another nri-cpu has taken a lock of this one in {}", self.places.checkpoint.parent)
            except CheckpointError as error:
                logger.error("{}", error)

    def read_specs(self) -> Mapping[str, ClaimRecord]:
        """Claims by their CDI specs, for a start without a checkpoint."""
        return read_specs(self.places.cdi_directory)

    def close(self) -> None:
        """Give up the locks and the checkpoint."""
        self.synchronized.release()
        self.running.release()
        self.checkpoint.close()
        if self._online_file is not None:
            os.close(self._online_file)
            self._online_file = None

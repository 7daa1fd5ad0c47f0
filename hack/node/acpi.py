"""The ACPI table that decides how Linux numbers the CPUs, as an initrd that overrides QEMU's own.

Linux gives CPU ids in the order of the MADT. QEMU lists siblings side by side; most firmware lists all first threads
before the second ones. (kernel: Documentation/admin-guide/acpi/initrd_table_override.rst; ACPI 6.5, 5.2.12)
"""

from __future__ import annotations

import struct

from hack.node import cpio
from hack.node.machine import Machine

_LOCAL_APIC, _IO_APIC, _INTERRUPT_OVERRIDE, _LOCAL_APIC_NMI = 0, 1, 2, 4
_ENABLED, _PCAT_COMPATIBLE = 1, 1
_LEVEL_ACTIVE_HIGH = 0x0D
_LOCAL_APIC_ADDRESS, _IO_APIC_ADDRESS = 0xFEE00000, 0xFEC00000
# The kernel takes a table instead of the firmware's if the ids of maker and table are the same and the revision is
# higher.
_HEAD = struct.Struct("<4sIBB6s8sI4sI")
_OEM_REVISION = 0x7FFFFFFF


def numbering_initrd(machine: Machine) -> bytes:
    """An initrd that makes Linux number the CPUs of `machine` as its places say; goes before the real one."""
    path = "kernel/firmware/acpi"
    return cpio.archive({"kernel": None, "kernel/firmware": None, path: None, f"{path}/apic.aml": madt(machine)})


def madt(machine: Machine) -> bytes:
    """QEMU's MADT for its q35 machine, with the CPUs in the order of their Linux ids."""
    body = struct.pack("<II", _LOCAL_APIC_ADDRESS, _PCAT_COMPATIBLE)
    for p in sorted(machine.places(), key=lambda place: place.cpu):
        apic = machine.apic_id(p.socket, p.die, p.core, p.thread)
        body += struct.pack("<BBBBI", _LOCAL_APIC, 8, p.index, apic, _ENABLED)
    body += struct.pack("<BBBBII", _IO_APIC, 12, 0, 0, _IO_APIC_ADDRESS, 0)
    body += struct.pack("<BBBBIH", _INTERRUPT_OVERRIDE, 10, 0, 0, 2, 0)  # the timer's ISA IRQ 0 is wired to 2
    for irq in (5, 9, 10, 11):
        body += struct.pack("<BBBBIH", _INTERRUPT_OVERRIDE, 10, 0, irq, irq, _LEVEL_ACTIVE_HIGH)
    body += struct.pack("<BBBHB", _LOCAL_APIC_NMI, 6, 255, 0, 1)
    return _table(body)


def _table(body: bytes) -> bytes:
    def with_checksum(checksum: int) -> bytes:
        length = _HEAD.size + len(body)
        return _HEAD.pack(b"APIC", length, 3, checksum, b"BOCHS ", b"BXPC    ", _OEM_REVISION, b"BXPC", 1) + body

    return with_checksum(-sum(with_checksum(0)) & 255)

"""The machines of docs/choosing-cpus.md and their reports in docs/machines, which this module writes when it is run:
`.venv/bin/python -m tests.kubelet_allocator.page_machines`."""

from __future__ import annotations

from pathlib import Path

import yaml

from dra.report import report_of
from hack.faults import ROOT
from nri_cpu.topology import Cpu, Topology
from tests.unit.topology.machines import box, hybrid, machine, t1, t1b, t2

REPORTS = ROOT / "docs/machines"

MACHINES = {
    "T1": t1(),
    "T1, CPU 15 off line": t1([15]),
    "T1b": t1b(),
    "side by side": Topology.of(Cpu(n, 0, 0, -1, n // 2, 0, 0) for n in range(16)),
    "T2": t2(),
    "four small nodes": box(),
    "four nodes": machine(sockets=2, nodes=2, cores=8, threads=2),
    "hybrid": hybrid(),
    "SMT4, CPU 15 off line": Topology.of(Cpu(n, 0, 0, -1, n // 4, 0, 0) for n in range(15)),
}


def report_path(name: str) -> Path:
    """The report of a machine."""
    return REPORTS / f"{name.replace(',', '').replace(' ', '-')}.yaml"


def main() -> None:
    """Writes every report, without what differs from one who writes to the next."""
    REPORTS.mkdir(exist_ok=True)
    for name, topology in MACHINES.items():
        report = report_of(topology, {"hostnameOverride": "node-1"})
        shown = {key: report[key] for key in report if key != "toolVersion"}
        report_path(name).write_text(yaml.safe_dump(shown, sort_keys=False, explicit_start=True))


if __name__ == "__main__":
    main()

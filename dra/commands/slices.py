"""dra-cpu slices: the ResourceSlices that this machine would publish."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

from dra.commands.node import devices_of, node_of
from dra.commands.settings import machine_of, topology_of
from dra.slices.objects import check, slices_of
from nri_cpu import plain_yaml
from nri_cpu.command import emit


def main(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    machine = machine_of(options, env)
    devices = devices_of(options, machine.config)
    node = node_of(machine, devices, topology_of(machine))
    slices = slices_of(tuple(node.devices.values()), node.pool, devices.node_allocatable_mapping)
    for warning in [*node.warnings(), *check(slices)]:
        print(f"dra-cpu: {warning}", file=sys.stderr)
    if options.output == "json":
        emit(json.dumps({"apiVersion": "v1", "kind": "List", "items": slices}, indent=2) + "\n")
    else:
        emit("".join(map(plain_yaml.dump, slices)))
    return 0

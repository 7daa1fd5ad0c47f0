"""dra-cpu slices: the ResourceSlices that this machine would publish."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from dra.commands.node import device_settings, node_of
from dra.commands.settings import machine_settings, topology_for_people
from dra.slices.limits import check
from dra.slices.objects import slices_of
from nri_cpu import plain_yaml
from nri_cpu.command import emit, tell


def main(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Prints the slices and 0, or 1 when the API server would refuse them; what is wrong or odd goes to stderr.

    Raises UsageError, CommandError or OutputError.
    """
    machine = machine_settings(options, env)
    devices = device_settings(options, machine.config)
    node = node_of(machine, devices, topology_for_people(machine, verbose=options.verbosity > 0))
    slices = slices_of(tuple(node.devices.values()), node.pool, devices.node_allocatable_mapping)
    problems = check(slices)
    for line in (*devices.warnings, *node.warnings(), *problems):
        tell("dra-cpu", line)
    if options.output == "json":
        emit(json.dumps({"apiVersion": "v1", "kind": "List", "items": slices}, indent=2) + "\n")
    else:
        emit("".join(map(plain_yaml.dump, slices)))
    return 1 if problems else 0

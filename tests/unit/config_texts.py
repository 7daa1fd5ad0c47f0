"""Configuration files for tests: one that sets every key, and what is told about wrong ones."""

from __future__ import annotations

import pytest

from nri_cpu.config import ConfigError, parse

WHOLE = """\
# all of it
apiVersion: v1alpha1
cpuDeviceMode: grouped
groupBy: numanode
reservedCPUs: 0-1,8
hostnameOverride: node-1.example
kubeconfig: /etc/kubernetes/kubelet.conf
sysfsOverlay: "/etc/dra-cpu/overlay.yaml"
minSharedCPUs: 2
checkpoint: /var/lib/dra-cpu/checkpoint.json
cdiDir: '/var/run/cdi'
requirePlugin: false   # nobody waits
strategy: distributed
numaNodes: 2
fullPhysicalCores: true
alignL3: false
exposePCIeRoots: true
publishNodeAllocatableResourceMapping: true
kubeletCPUManagerConflict: warn
"""

KEYS = [line.partition(":")[0] for line in WHOLE.splitlines()[1:]]


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as error:
        parse(text, "c.yaml")
    assert str(error.value) == "; ".join(error.value.problems)
    assert "\n" not in str(error.value)
    return error.value.problems


def problem(text: str) -> str:
    (only,) = problems(text)
    return only

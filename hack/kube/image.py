"""The image of a node that joins a cluster: a box with the kubelet and a network for pods."""

from __future__ import annotations

import json
from pathlib import Path

from hack import cache
from hack.node.image import Variant

GUEST = Path(__file__).parent / "guest"

# The dialect without STATUS and GC, which the plugin does not know.
NETWORK = {"cniVersion": "1.0.0", "name": "box", "plugins": [{"type": "box"}]}


def variant(programs: Path) -> Variant:
    """The variant with the kubelet of these programs."""
    guest = cache.entry("kubelet-files", cache.key_of(NETWORK, files=GUEST), _write_files)
    return Variant(
        "kubelet",
        packages=("iproute2",),
        files=(
            ("usr/local/bin/kubelet", programs / "kubelet"),
            ("opt/cni/bin/box", guest / "cni"),
            ("etc/cni/net.d/10-box.conflist", guest / "network.json"),
        ),
        # Read once, so that copies have it in memory.
        warm_up=("kubelet --version",),
    )


def _write_files(folder: Path) -> None:
    (folder / "network.json").write_text(json.dumps(NETWORK))
    plugin = folder / "cni"
    plugin.write_bytes((GUEST / "cni").read_bytes())
    plugin.chmod(0o755)

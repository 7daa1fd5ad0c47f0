"""Builds the programs of a cluster: one binary in Go out of Kubernetes and etcd, called by several names.

What is built is kept in the cache: the first build takes some ten minutes on two cores. Only the standard library is
used: this must run before there is an environment.
"""

from __future__ import annotations

from pathlib import Path

from hack import cache
from hack.go import Sources, report

SOURCES = Sources(Path(__file__).parent / "programs", oldest_go=(1, 26))

BINARY = "kubernetes"
NAMES = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    *("kubelet", "kubectl", "test-driver"),
)

_VERSION = "k8s.io/component-base/version"


def programs() -> Path:
    """The directory with the programs, built if need be; raises BuildError."""
    return cache.entry("kubernetes", cache.key_of(NAMES, flags(), SOURCES.contents()), _build, report)


def version() -> str:
    """Kubernetes' version, such as 1.37.2, by go.mod."""
    for line in (SOURCES.folder / "go.mod").read_text().splitlines():
        match line.split():
            case ["k8s.io/kubernetes", found]:
                return found.removeprefix("v")
    raise ValueError(f"{SOURCES.folder}/go.mod does not require k8s.io/kubernetes")


def flags() -> str:
    """Linker flags; without its version Kubernetes takes itself for 0.0 and most feature gates for unknown."""
    major, minor, _ = version().split(".")
    facts = {
        f"{_VERSION}.gitVersion": f"v{version()}",
        f"{_VERSION}.gitMajor": major,
        f"{_VERSION}.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": f"v{version()}",
    }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in facts.items())])


def _build(folder: Path) -> None:
    """gofmt and go vet too: what they need of Kubernetes is then compiled once, and only here."""
    SOURCES.check_format()
    go = SOURCES.find_go()
    report("building Kubernetes; this takes some minutes, once")
    SOURCES.run([go, "build", "-trimpath", f"-ldflags={flags()}", "-o", str(folder / BINARY), "."])
    SOURCES.run([go, "vet", "-trimpath", "."])
    for name in NAMES:
        (folder / name).symlink_to(BINARY)

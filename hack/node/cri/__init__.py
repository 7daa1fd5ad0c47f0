"""A small client of the Container Runtime Interface: what the kubelet would ask of the runtime, for tests and demo."""

from hack.node.cri.client import Container, Cri, CriError, Sandbox

__all__ = ["Container", "Cri", "CriError", "Sandbox"]

"""What can go wrong with a cluster in a box, besides what can go wrong with its nodes (hack.node.errors)."""

from __future__ import annotations

from hack.node.errors import NodeError


class ClusterError(NodeError):
    """A part of the cluster did not start, or ended; the message has what its log says."""


class ApiError(ClusterError):
    """The API server refused: `status` is HTTP's, `reason` Kubernetes' word for it, such as NotFound."""

    def __init__(self, what: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{what}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

"""The API server: claims are read from it, slices are published to it. Nothing else imports the Kubernetes client.

credentials, kubeconfig   how it is reached, in a pod or with a kubeconfig. Files with tokens and certificates are read
                          again when they change; the kubeconfig itself, and what stands in it, is read once
plugin                    tokens by what a kubeconfig names (exec, auth-provider), by the Kubernetes client, which is
                          imported only for such users
bounded                   time limits for what has none
connection, client        HTTP, with one time limit for all of a request
answers                   statuses and objects: errors with the server's words, paths of what is missing
claims, slices            the two uses

Objects stay the JSON that came, since typed models cost memory and lose unknown fields.
"""

from __future__ import annotations

from pathlib import Path

from dra.kube.claims import ClaimReader
from dra.kube.client import Client
from dra.kube.credentials import Credentials, CredentialsError, service_account
from dra.kube.kubeconfig import from_kubeconfig
from dra.kube.slices import NodeSlices
from dra.slices.pace import Clock

__all__ = ["ApiServer", "CredentialsError"]


class ApiServer(ClaimReader):
    """The API server as a source of claims (ClaimSource) and a place for slices; for several threads at once.

    `kubeconfig`: a file, or None for the service account of the pod. Raises CredentialsError.
    """

    def __init__(self, kubeconfig: Path | None, user_agent: str, clock: Clock | None = None) -> None:
        credentials = _credentials(kubeconfig)
        super().__init__(Client(credentials, user_agent), clock)
        self._slices = Client(credentials, user_agent)  # which `close` leaves alone

    def slices(self, node_name: str) -> NodeSlices:
        """This driver's slices on one node: a SliceApi."""
        return NodeSlices(self._slices, node_name)


def _credentials(kubeconfig: Path | None) -> Credentials:
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig)
    try:
        return service_account()
    except CredentialsError as error:
        raise CredentialsError(
            f"no credentials for the API server: {error}. Outside a pod name a file with --kubeconfig, "
            "or read claims from files with --claims-dir"
        ) from error

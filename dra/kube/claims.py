"""Claims from the API server: one GET for each, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import quote

from dra.claims import ClaimError, ClaimRef
from dra.kube.answers import AnswerError, parsed, refusal
from dra.kube.client import Client, TransportError

# The kubelet waits 45 s for all claims of a pod; a healthy API server answers in milliseconds.
GET_TIMEOUT = 10.0
_SHORTEST_TIMEOUT = 0.5

_HINTS = {
    403: "the service account needs the verb get on resourceclaims",
    404: "the claim does not exist any more",
}


class ClaimReader:
    """A ClaimSource; may be used by several threads at once."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def reader(self, deadline: float) -> Callable[[ClaimRef], object]:
        def read(ref: ClaimRef) -> object:
            left = deadline - time.monotonic()
            if left < _SHORTEST_TIMEOUT:
                raise ClaimError("no time is left to read it from the API server; the kubelet tries again")
            return self._get(ref, min(left, GET_TIMEOUT))

        return read

    def _get(self, ref: ClaimRef, seconds: float) -> object:
        path = f"/apis/resource.k8s.io/v1/namespaces/{quote(ref.namespace, '')}/resourceclaims/{quote(ref.name, '')}"
        url = self.client.server + path
        try:
            answer = self.client.request("GET", path, seconds)
        except TransportError as error:
            raise ClaimError(f"{url} can't be read: {error}") from error
        if answer.status != 200:
            raise ClaimError(refusal(url, answer.status, answer.body, _HINTS))
        try:
            return parsed(answer.body)
        except AnswerError as error:
            raise ClaimError(f"{url} answered {error}") from None

"""Claims from the API server: a GET for each, repeated while there is time and the trouble is one that passes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from urllib.parse import quote

from dra.claims import ClaimError, ClaimRef
from dra.kube.answers import AnswerError, parsed, refusal, seconds_to_wait
from dra.kube.client import Client, TransportError
from dra.slices.pace import Backoff, Clock

# The kubelet waits 45 s for all claims of a pod; a healthy API server answers in milliseconds.
GET_TIMEOUT = 10.0
_SHORTEST_TIMEOUT = 0.5
# Pauses between attempts: the first, and the limit. A dozen attempts at the most before the kubelet gives up.
_PAUSES = (0.25, 8.0)
# Of a server that has too much to do, or is just being started or stopped, itself or behind a proxy.
_PASSING = {429, 500, 502, 503, 504}

_HINTS = {
    403: "the service account needs the verb get on resourceclaims",
    404: "the claim does not exist any more",
}


class _PassingError(ClaimError):
    """Perhaps it can be read in `seconds` at the soonest."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class ClaimReader:
    """A ClaimSource; may be used by several threads at once."""

    def __init__(self, client: Client, clock: Clock | None = None) -> None:
        self.client = client
        self._clock = clock or Clock()
        self._closed = threading.Event()

    def reader(self, deadline: float) -> Callable[[ClaimRef], object]:
        return lambda ref: self._read(ref, deadline)

    def close(self) -> None:
        """Ends all reads under way, and those that come, by ClaimErrors. For any thread; never blocks."""
        self._closed.set()
        self.client.close()

    def _read(self, ref: ClaimRef, deadline: float) -> object:
        backoff = Backoff(*_PAUSES, self._clock)
        attempts = 0
        while True:
            left = deadline - self._clock.now()
            if left < _SHORTEST_TIMEOUT:
                raise ClaimError("no time is left to read it from the API server; the kubelet tries again")
            attempts += 1
            try:
                return self._get(ref, min(left, GET_TIMEOUT))
            except _PassingError as error:
                pause = max(backoff.next(), error.seconds)
                is_over = self._clock.now() + pause + _SHORTEST_TIMEOUT > deadline
                if is_over or self._clock.wait(self._closed, pause):
                    asked = f"; asked {attempts} times" if attempts > 1 else ""
                    raise ClaimError(f"{error}{asked}") from error

    def _get(self, ref: ClaimRef, seconds: float) -> object:
        path = f"/apis/resource.k8s.io/v1/namespaces/{quote(ref.namespace, '')}/resourceclaims/{quote(ref.name, '')}"
        url = self.client.server + path
        try:
            answer = self.client.request("GET", path, seconds)
        except TransportError as error:
            text = f"{url} can't be read: {error}"
            raise (_PassingError(text, 0.0) if error.passing else ClaimError(text)) from error
        if answer.status != 200:
            text = refusal(url, answer.status, answer.body, {**self.client.hints, **_HINTS})
            if answer.status in _PASSING:
                raise _PassingError(text, seconds_to_wait(answer.retry_after, answer.body) or 0.0)
            raise ClaimError(text)
        try:
            return parsed(answer.body)
        except AnswerError as error:
            raise ClaimError(f"{url} answered {error}") from None

"""Tokens of users whom a plugin speaks for (exec, auth-provider), by the Kubernetes client, which runs and renews them.

The one place that imports the client, and only for such users: it costs 20 MiB and 0.15 s. It renews what ends within 5
minutes. It knows no time limits, and logs what it should raise.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra.claims import printable
from dra.kube.bounded import Bounded
from dra.kube.credentials import CredentialsError, Trouble, Wait, bearer

# It may ask a cloud's server for the token.
_LIMIT = 30.0


class Plugin:
    """An Authorization. `where`: the user in the kubeconfig at `path`. Raises CredentialsError where it gives no token.

    One that fails later is told of, and the last token stays in use. One that hangs can't be ended: no request waits
    for it longer than it has time, and no other is started as long as it runs.
    """

    def __init__(self, path: Path, where: str) -> None:
        self._path = path
        self._where = where
        self._trouble = Trouble()
        self._lock = threading.Lock()
        self._loaders, self._configuration = _client(where)
        self._waited(lambda call: Bounded[str]().call(call, _LIMIT), self._load)

    def __call__(self, wait: Wait) -> str:
        return self._waited(wait, self._renew)

    def _waited(self, wait: Wait, ask: Callable[[], str]) -> str:
        def alone() -> str:
            # The client is not made for two threads. In this one, since who waits may have gone when it ends.
            if not self._lock.acquire(timeout=_LIMIT):
                raise TimeoutError
            try:
                return ask()
            except CredentialsError:
                raise
            except Exception as error:  # the client raises what plugins and parsers raise
                raise self._error(str(error) or type(error).__name__) from error
            finally:
                self._lock.release()

        try:
            return wait(alone)
        except TimeoutError:
            raise self._error("no token came in time: exec or auth-provider still runs") from None

    def _load(self) -> str:
        # Certificates of the cluster are copied there, for which there is no use.
        with _overheard() as words, tempfile.TemporaryDirectory(prefix="dra-cpu-") as copies:
            self._loaders.load_kube_config(
                str(self._path.absolute()), client_configuration=self._configuration, temp_file_path=copies
            )
        if words:
            raise self._error(words[0])
        return self._renew()

    def _renew(self) -> str:
        with _overheard() as words:
            value = self._configuration.auth_settings().get("BearerToken", {}).get("value")
        if not value:
            raise self._error("exec or auth-provider gave no token; try it with kubectl")
        self._trouble.tell(str(self._error(words[0])) if words else "")
        return bearer(str(value).removeprefix("Bearer"), f"{self._where}: what exec or auth-provider gave")

    def _error(self, words: str) -> CredentialsError:
        return CredentialsError(f"{self._where}: {printable(' '.join(words.split()), 300)}")


def _client(where: str) -> tuple[Any, Any]:
    """Its loaders, and a configuration for them to fill."""
    try:
        from kubernetes import config
        from kubernetes.client.configuration import Configuration
    except ModuleNotFoundError as error:
        raise CredentialsError(
            f"{where}: Python's package {error.name} is not there: a user with exec or auth-provider needs the "
            "Kubernetes client (pip install kubernetes)"
        ) from error
    return config, Configuration()  # not typed


@contextmanager
def _overheard() -> Iterator[list[str]]:
    """What this thread logs by the root logger, as the client does when a program fails, instead of the log."""
    words: list[str] = []
    thread = threading.get_ident()

    def keep_out(record: logging.LogRecord) -> bool:
        if record.thread != thread:
            return True
        words.append(record.getMessage())
        return False

    root = logging.getLogger()
    nowhere = logging.NullHandler()  # with no handler at all, logging makes one that prints
    root.addHandler(nowhere)
    root.addFilter(keep_out)
    try:
        yield words
    finally:
        root.removeFilter(keep_out)
        root.removeHandler(nowhere)

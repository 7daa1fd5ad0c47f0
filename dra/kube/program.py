"""Tokens by the program that a kubeconfig names for its user (exec), as client-go has them: run when they end.

Source: client.authentication.k8s.io/v1 and v1beta1. Programs that give certificates are not supported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from dra.claims import printable
from dra.kube.credentials import CredentialsError, bearer

_VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1"))
# It may ask a cloud's server for the token.
_LIMIT = 30.0
# A token that does not say when it ends may be one of a few minutes.
_LIFE = 600.0
# So much sooner than it ends a token is renewed.
_MARGIN = 10.0


class Program:
    """An Authorization. `section`: `exec` of a user, at `where` in a kubeconfig in `directory`. `cluster`: what the
    program may be told of the cluster, in the form of ExecCredential.

    Runs the program once at first. Raises CredentialsError for whatever is wrong with it.
    """

    def __init__(self, section: dict[str, Any], where: str, directory: Path, cluster: dict[str, Any]) -> None:
        self._where = where
        self._version = section.get("apiVersion")
        if self._version not in _VERSIONS:
            raise CredentialsError(f"{where}.apiVersion is none of {', '.join(_VERSIONS)}")
        if section.get("interactiveMode") == "Always":
            raise CredentialsError(f"{where}.interactiveMode is Always: there is nobody to ask")
        command, *arguments = _strings([section.get("command"), *_list(section, "args", where)], f"{where}.command")
        # As a shell does it: what has no slash is looked up in PATH.
        self._command = [str(directory / command) if "/" in command else command, *arguments]
        pairs = [_pair(entry, where) for entry in _list(section, "env", where)]
        told = {"cluster": cluster} if section.get("provideClusterInfo") else {}
        asked = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {"interactive": False, **told}}
        self._environment = dict(pairs) | {"KUBERNETES_EXEC_INFO": json.dumps(asked)}
        self._lock = threading.Lock()
        self._value, self._renewal = self._run(_LIMIT)

    def __call__(self, ends: float) -> str:
        """Raises CredentialsError; TimeoutError while another one waits for the program."""
        if not self._lock.acquire(timeout=max(ends - time.monotonic(), 0)):
            raise TimeoutError
        try:
            if time.time() >= self._renewal:
                self._value, self._renewal = self._run(min(ends - time.monotonic(), _LIMIT))
            return self._value
        finally:
            self._lock.release()

    def _run(self, seconds: float) -> tuple[str, float]:
        """The value of Authorization, and when (time.time) another one is needed."""
        output = self._output(seconds)
        printed = f"{self._where}: what the program printed"
        try:
            answer = json.loads(output)
            kind, status = (answer["kind"], answer["apiVersion"]), answer["status"]
            ends, token = status.get("expirationTimestamp"), status.get("token")
            renewal = datetime.fromisoformat(ends).timestamp() - _MARGIN if ends else time.time() + _LIFE
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise CredentialsError(f"{printed} is no ExecCredential") from None
        if kind != ("ExecCredential", self._version):
            raise CredentialsError(f"{printed} is no ExecCredential of {self._version}")
        if not isinstance(token, str):
            raise CredentialsError(f"{self._where}: the program gave no token; try it with kubectl")
        return bearer(token, printed), renewal

    def _output(self, seconds: float) -> bytes:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise CredentialsError(f"{self._where}: {self._command[0]} can't be run: {error}") from error
        with process:
            try:
                output, errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # what it started too, which holds the pipes
                raise CredentialsError(f"{self._where}: the program has not ended within {seconds:.0f} s") from None
        if process.returncode:
            words = printable(" ".join(errors.decode("utf-8", "replace").split()), 300)
            raise CredentialsError(f"{self._where}: the program ended with {process.returncode}: {words}")
        return output


def _list(section: dict[str, Any], key: str, where: str) -> list[Any]:
    found = section.get(key) or []
    if not isinstance(found, list):
        raise CredentialsError(f"{where}.{key} is no list")
    return found


def _strings(values: list[Any], where: str) -> list[str]:
    if not all(isinstance(value, str) for value in values) or not values[0]:
        raise CredentialsError(f"{where} and args are no strings, or missing")
    return values


def _pair(entry: object, where: str) -> tuple[str, str]:
    name, value = (entry.get("name"), entry.get("value")) if isinstance(entry, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(value, str):
        raise CredentialsError(f"{where}.env has an entry without name and value")
    return name, value

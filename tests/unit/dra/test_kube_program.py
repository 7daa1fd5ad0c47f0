"""Promises of programs that give tokens: run when a token ends, as client-go does, and never waited for too long."""

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dra.claims import ClaimError
from dra.kube import CredentialsError, program
from hack.wait import wait_until
from tests.unit.dra.apiserver import FakeApiServer
from tests.unit.dra.kubeconfigs import authorization, config, read, source
from tests.unit.dra.manifests import manifest

VERSION = "client.authentication.k8s.io/v1"


@pytest.fixture(autouse=True)
def _claim(server: FakeApiServer) -> None:
    server.put(manifest())


def user(directory: Path, *lines: str, **fields: Any) -> dict[str, Any]:
    """A user whom a program speaks for, of these lines of shell."""
    path = directory / "bin/program"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines)))
    path.chmod(0o755)
    return {"exec": {"apiVersion": VERSION, "command": "./bin/program", "interactiveMode": "Never", **fields}}


def answer(token: Any = "made", ends: timedelta | None = None, **fields: Any) -> str:
    status = {"token": token}
    if ends is not None:
        status["expirationTimestamp"] = (datetime.now(UTC) + ends).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status, **fields})


def echo(directory: Path, printed: str, **fields: Any) -> dict[str, Any]:
    return user(directory, f"cat <<'X'\n{printed}\nX", f"echo >> {directory}/runs", **fields)


def runs(directory: Path) -> int:
    return len((directory / "runs").read_text().splitlines())


def problem(directory: Path, content: dict[str, Any]) -> str:
    with pytest.raises(CredentialsError) as caught:
        source(directory, content)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("ends", [None, timedelta(hours=1)])
def test_a_program_gives_the_token_and_is_run_when_it_ends(
    tmp_path: Path, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, ends: timedelta | None
) -> None:
    api = source(tmp_path, config(server.url, echo(tmp_path, answer(ends=ends))))
    for _ in range(3):
        assert read(api) == manifest()
    assert authorization(server) == "Bearer made"
    assert runs(tmp_path) == 1
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    echo(tmp_path, answer("another"))
    assert read(api) == manifest()
    assert authorization(server) == "Bearer another"
    assert runs(tmp_path) == 2


def test_a_program_is_told_what_it_may_ask_for(tmp_path: Path, server: FakeApiServer) -> None:
    printed = f'echo "$1 $EXTRA $KUBERNETES_EXEC_INFO" > {tmp_path}/told'
    speaker = user(tmp_path, printed, f"echo '{answer()}'", args=["a b"], env=[{"name": "EXTRA", "value": "x"}])
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "us"}}
    cluster = {"insecure-skip-tls-verify": True, "extensions": [5, extension]}
    asked: dict[str, Any] = {"apiVersion": VERSION, "kind": "ExecCredential", "spec": {"interactive": False}}
    source(tmp_path, config(server.url, speaker, cluster))
    assert (tmp_path / "told").read_text() == f"a b x {json.dumps(asked)}\n"
    speaker["exec"]["provideClusterInfo"] = True
    source(tmp_path, config(server.url, speaker, cluster))
    asked["spec"]["cluster"] = {"server": server.url, "insecure-skip-tls-verify": True, "config": {"audience": "us"}}
    assert (tmp_path / "told").read_text() == f"a b x {json.dumps(asked)}\n"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"apiVersion": "v1"}, "users[u].user.exec.apiVersion is none of client.authentication.k8s.io/v1, "),
        ({"apiVersion": None}, "users[u].user.exec.apiVersion is none of "),
        ({"command": None}, "users[u].user.exec.command and args are no strings, or missing"),
        ({"command": ""}, "users[u].user.exec.command and args are no strings, or missing"),
        ({"command": "no-such-program"}, "no-such-program can't be run: "),
        ({"command": "./bin"}, "/bin can't be run: "),
        ({"args": "x"}, "users[u].user.exec.args is no list"),
        ({"args": [5]}, "users[u].user.exec.command and args are no strings"),
        ({"env": [{"name": "a"}]}, "users[u].user.exec.env has an entry without name and value"),
        ({"env": [5]}, "users[u].user.exec.env has an entry without name and value"),
        ({"interactiveMode": "Always"}, "users[u].user.exec.interactiveMode is Always: there is nobody to ask"),
    ],
)
def test_what_is_wrong_with_a_program_is_named(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    assert words in problem(tmp_path, config("http://127.0.0.1:1", user(tmp_path, **fields)))


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("", "what the program printed is no ExecCredential"),
        ("[]", "what the program printed is no ExecCredential"),
        ("{}", "what the program printed is no ExecCredential"),
        ("[" * 100_000, "what the program printed is no ExecCredential"),
        (answer(kind="x"), "what the program printed is no ExecCredential of client.authentication.k8s.io/v1"),
        (answer(apiVersion="x"), "what the program printed is no ExecCredential of client.authentication.k8s.io/v1"),
        (answer(status=None), "what the program printed is no ExecCredential"),
        (answer(status={"token": "a", "expirationTimestamp": "soon"}), "what the program printed is no ExecCredential"),
        (answer(status={"token": "a", "expirationTimestamp": 5}), "what the program printed is no ExecCredential"),
        (answer(status={"clientCertificateData": "x"}), "the program gave no token; try it with kubectl"),
        (answer(5), "the program gave no token; try it with kubectl"),
        (answer("a b"), "what the program printed: holds no token"),
    ],
)
def test_what_a_program_prints_is_input(tmp_path: Path, printed: str, words: str) -> None:
    assert words in problem(tmp_path, config("http://127.0.0.1:1", echo(tmp_path, printed)))


def test_a_program_that_fails_is_told_with_its_words(tmp_path: Path) -> None:
    failing = user(tmp_path, "echo two >&2", "echo lines >&2", "exit 3")
    assert "users[u].user.exec: the program ended with 3: two lines" in problem(
        tmp_path, config("http://127.0.0.1:1", failing)
    )


def hangs(directory: Path) -> dict[str, Any]:
    """A program that hangs, and a child of it."""
    return user(directory, "sleep 1000 &", f"echo $$ $! > {directory}/ids", "wait")


def gone(directory: Path) -> None:
    """Where it came so far as to say who they are."""
    ids = directory / "ids"
    for identity in ids.read_text().split() if ids.exists() else ():
        status = Path(f"/proc/{identity}/status")
        wait_until("its end", lambda status=status: not status.exists() or "State:\tZ" in status.read_text())  # type: ignore[misc]


def test_a_program_that_hangs_at_the_start_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_LIMIT", 0.5)
    assert "the program has not ended within 0 s" in problem(tmp_path, config("http://127.0.0.1:1", hangs(tmp_path)))
    gone(tmp_path)


@pytest.mark.fault("K4")
def test_a_program_that_hangs_later_holds_up_no_request_longer_than_its_time(
    tmp_path: Path, server: FakeApiServer
) -> None:
    ended = timedelta(seconds=-5)
    api = source(tmp_path, config(server.url, echo(tmp_path, answer(ends=ended))))
    hangs(tmp_path)
    told: list[str] = []

    def ask() -> None:
        with pytest.raises(ClaimError) as caught:
            read(api)
        told.append(str(caught.value))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert len(told) == 2
    assert any("the program has not ended within" in text for text in told)
    gone(tmp_path)
    echo(tmp_path, answer("back"))
    assert read(api) == manifest()
    assert authorization(server) == "Bearer back"

"""Promises of users whom a plugin speaks for (exec, auth-provider): tokens are renewed, and not waited for too long."""

import base64
import json
import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from dra.claims import ClaimError
from dra.kube import ApiServer, plugin
from hack.kube.certificates import Authority
from hack.wait import wait_until
from tests.unit.dra.apiserver import FakeApiServer
from tests.unit.dra.kubeconfigs import REF, authorization, config, data, problem, read, serving, source
from tests.unit.dra.manifests import manifest

VERSION = "client.authentication.k8s.io/v1"
# So soon before its end that it is renewed.
ENDED = timedelta(seconds=5)
RUNS_STILL = "users[u].user: no token came in time: exec or auth-provider still runs"


@pytest.fixture(autouse=True)
def _claim(server: FakeApiServer) -> None:
    server.put(manifest())


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO")
    yield lines
    logger.remove(sink)


def user(directory: Path, *lines: str, **fields: Any) -> dict[str, Any]:
    """A user whom a program speaks for, of these lines of shell."""
    path = directory / "bin/program"
    path.parent.mkdir(exist_ok=True)
    new = path.with_name("new")
    new.write_text("\n".join(("#!/bin/sh", f"echo >> {directory}/runs", *lines)))
    new.chmod(0o755)
    new.replace(path)  # also of one that runs
    return {"exec": {"apiVersion": VERSION, "command": "./bin/program", "interactiveMode": "Never", **fields}}


def answer(token: Any = "made", ends: timedelta | None = None, **fields: Any) -> str:
    status = {"token": token}
    if ends is not None:
        status["expirationTimestamp"] = (datetime.now(UTC) + ends).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status, **fields})


def echo(directory: Path, printed: str, **fields: Any) -> dict[str, Any]:
    return user(directory, f"cat <<'X'\n{printed}\nX", **fields)


def hangs(directory: Path) -> dict[str, Any]:
    """A program that has no token before somebody makes the file `go`."""
    (directory / "ready").unlink(missing_ok=True)
    waits = f"until [ -e {directory}/go ]; do sleep 0.02; done"
    return user(directory, f"echo > {directory}/ready", waits, f"cat <<'X'\n{answer('late', timedelta(hours=1))}\nX")


def runs(directory: Path) -> int:
    return len((directory / "runs").read_text().splitlines())


def refusal(api: ApiServer) -> str:
    with pytest.raises(ClaimError) as caught:
        read(api)
    return str(caught.value)


@pytest.mark.parametrize("ends", [None, timedelta(hours=1)])
def test_a_program_gives_a_token_which_is_used_until_it_ends(
    tmp_path: Path, server: FakeApiServer, ends: timedelta | None
) -> None:
    api = source(tmp_path, config(server.url, echo(tmp_path, answer(ends=ends))))
    for _ in range(3):
        assert read(api) == manifest()
        assert authorization(server) == "Bearer made"
    assert runs(tmp_path) == 1


def test_a_token_that_ends_is_renewed(tmp_path: Path, server: FakeApiServer) -> None:
    api = source(tmp_path, config(server.url, echo(tmp_path, answer(ends=ENDED))))
    echo(tmp_path, answer("another", ends=timedelta(hours=1)))
    before = runs(tmp_path)
    for _ in range(3):
        assert read(api) == manifest()
        assert authorization(server) == "Bearer another"
    assert runs(tmp_path) == before + 1


def test_a_cluster_with_tls_leaves_no_copies_of_its_certificates_behind(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with serving(authority) as server:
        trusted = {"certificate-authority-data": data(authority.certificate("ca"))}
        assert read(source(tmp_path, config(server.url, echo(tmp_path, answer()), trusted))) == manifest()
        assert authorization(server) == "Bearer made"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"apiVersion": "v1"}, "exec: plugin api version client.authentication.k8s.io/v1 does not match v1"),
        ({"command": None}, "users[u].user: "),
        ({"command": "no-such-program"}, "No such file or directory: 'no-such-program'"),
        ({"command": "./bin"}, "Permission denied: './bin'"),
        ({"args": 5}, "users[u].user: "),
        ({"env": [5]}, "users[u].user: "),
    ],
)
def test_what_is_wrong_with_a_program_is_told(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    text = problem(tmp_path, config("http://127.0.0.1:1", echo(tmp_path, answer(), **fields)))
    assert "can't be used: users[u].user: " in text
    assert words in text


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("", "exec: failed to decode process output: "),
        ("[]", "exec: malformed response. missing key 'apiVersion'"),
        ("5", "users[u].user: "),
        ("[" * 100_000, "users[u].user: "),
        ("\xff\x00", "exec: failed to decode process output: "),
        (answer(apiVersion="x"), f"exec: plugin api version x does not match {VERSION}"),
        (answer(status=None), "users[u].user: "),
        (answer(status={"token": "a", "expirationTimestamp": "soon"}), "users[u].user: "),
        (answer(status={"token": "a", "expirationTimestamp": 5}), "users[u].user: "),
        (answer(status={}), "exec: missing token or clientCertificateData field in plugin output"),
        (answer(status={"clientCertificateData": "x"}), "exec: missing clientKeyData field in plugin output"),
        (
            answer(status={"clientCertificateData": "x", "clientKeyData": "y"}),
            "exec or auth-provider gave no token; try it with kubectl",
        ),
        (answer(""), "what exec or auth-provider gave: holds no token"),
        (answer("a b"), "what exec or auth-provider gave: holds no token"),
        (answer("a\r\nX-Header: b"), "what exec or auth-provider gave: holds no token"),
    ],
)
def test_what_a_program_prints_is_input(tmp_path: Path, printed: str, words: str) -> None:
    assert words in problem(tmp_path, config("http://127.0.0.1:1", echo(tmp_path, printed)))


def test_a_program_that_fails_is_told_with_its_words_and_nothing_else_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = user(tmp_path, "echo two >&2", "echo lines >&2", "exit 3")
    text = problem(tmp_path, config("http://127.0.0.1:1", failing))
    assert "users[u].user: exec: process returned 3. two lines" in text
    assert caplog.records == []
    logging.getLogger().error("ours")
    assert caplog.messages == ["ours"], "the log is as it was"


def test_nothing_is_printed_of_a_program_that_fails_where_no_log_was_set_up(tmp_path: Path) -> None:
    content = config("http://127.0.0.1:1", user(tmp_path, "echo words >&2", "exit 3"))
    script = (
        "import json, pathlib, sys\nfrom dra.kube import ApiServer, CredentialsError\n"
        "try: ApiServer(pathlib.Path(sys.argv[1]), 'x')\n"
        "except CredentialsError as error: print(error)\n"
        "import logging; print(logging.getLogger().handlers)"
    )
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(content))
    ended = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr == ""
    assert ended.stdout == (f"--kubeconfig {path} can't be used: users[u].user: exec: process returned 3. words\n[]\n")


def test_a_program_that_fails_later_is_told_once_and_the_last_token_stays_in_use(
    tmp_path: Path, server: FakeApiServer, log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    api = source(tmp_path, config(server.url, echo(tmp_path, answer(ends=ENDED))))
    user(tmp_path, "echo no network >&2", "exit 3")
    for _ in range(3):
        assert read(api) == manifest()
        assert authorization(server) == "Bearer made"
    echo(tmp_path, answer("back", ends=timedelta(hours=1)))
    assert read(api) == manifest()
    assert authorization(server) == "Bearer back"
    told = "users[u].user: exec: process returned 3. no network"
    assert log == [f"{told}; what was read before stays in use", f"no more: {told}"]
    assert caplog.records == []


def test_a_program_that_hangs_at_the_start_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_LIMIT", 0.5)
    try:
        assert RUNS_STILL in problem(tmp_path, config("http://127.0.0.1:1", hangs(tmp_path)))
    finally:
        (tmp_path / "go").touch()


@pytest.mark.fault("K4")
def test_a_program_that_hangs_later_holds_up_no_request_longer_than_its_time_and_no_second_one_is_started(
    tmp_path: Path, server: FakeApiServer
) -> None:
    api = source(tmp_path, config(server.url, echo(tmp_path, answer(ends=ENDED))))
    hangs(tmp_path)
    before = runs(tmp_path)
    told: list[str] = []
    threads = [threading.Thread(target=lambda: told.append(refusal(api))) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert len(told) == 3
        assert all(RUNS_STILL in text for text in told)
        wait_until("the program", (tmp_path / "ready").exists)
        assert runs(tmp_path) == before + 1
        echo(tmp_path, answer("back", ends=timedelta(hours=1)))
    finally:
        (tmp_path / "go").touch()

    def comes_back() -> bool:
        assert read(api) == manifest()
        return authorization(server) == "Bearer late"

    wait_until("the token that came late", comes_back)
    assert runs(tmp_path) == before + 1


@pytest.mark.fault("A25", "K4")
def test_what_waits_for_a_program_that_hangs_ends_when_it_is_closed(tmp_path: Path, server: FakeApiServer) -> None:
    api = source(tmp_path, config(server.url, echo(tmp_path, answer(ends=ENDED))))
    hangs(tmp_path)
    told: list[str] = []
    watch = api.slices("node").watch("1")

    def claim() -> None:
        with pytest.raises(ClaimError) as caught:
            api.reader(api._clock.now() + 3600)(REF)
        told.append(str(caught.value))

    threads = [threading.Thread(target=claim), threading.Thread(target=lambda: told.append(str(list(watch))))]
    try:
        for thread in threads:
            thread.start()
        wait_until("the program", (tmp_path / "ready").exists)
        wait_until("both", lambda: api.client._used)
        api.close()
        watch.close()
        for thread in threads:
            thread.join(5)  # a request has 10 s and more
            assert not thread.is_alive()
    finally:
        (tmp_path / "go").touch()
    assert "[]" in told
    assert any(text.endswith("can't be read: the connection was ended") for text in told)


def jwt(claims: dict[str, Any]) -> str:
    return ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims, {})
    )


def provider(token: str) -> dict[str, Any]:
    return {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}


def test_an_auth_provider_can_give_the_token(tmp_path: Path, server: FakeApiServer) -> None:
    token = jwt({"exp": 2**32, "name": "somebody"})
    assert read(source(tmp_path, config(server.url, provider(token)))) == manifest()
    assert authorization(server) == f"Bearer {token}"


@pytest.mark.parametrize("name", ["oidc", "azure"])
def test_an_auth_provider_that_gives_no_token_is_named_as_the_problem(tmp_path: Path, name: str) -> None:
    content = provider("x")
    content["auth-provider"]["name"] = name
    text = problem(tmp_path, config("http://127.0.0.1:1", content))
    assert "users[u].user: exec or auth-provider gave no token; try it with kubectl" in text


def test_an_auth_provider_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    monkeypatch.setattr(plugin, "_LIMIT", 0.1)
    monkeypatch.setattr("kubernetes.config.load_kube_config", lambda *_, **__: end.wait(30))
    try:
        assert RUNS_STILL in problem(tmp_path, config("http://127.0.0.1:1", provider("x")))
    finally:
        end.set()


@pytest.mark.parametrize("speaker", ["exec", "auth-provider"])
def test_only_plugins_need_the_kubernetes_client(
    tmp_path: Path, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, speaker: str
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)  # importing it is a ModuleNotFoundError
    assert read(source(tmp_path, config(server.url, {"token": "abc"}))) == manifest()
    text = problem(tmp_path, config(server.url, {speaker: {"name": "x"}}))
    assert "users[u].user: Python's package kubernetes is not there: " in text
    assert "(pip install kubernetes)" in text

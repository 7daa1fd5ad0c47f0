"""What tests of dra-cpu share."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from dra.kube.slices import NodeSlices
from hack.kube.certificates import Authority, Wanted
from tests.unit.dra.api_scenarios import Ground
from tests.unit.dra.apiserver import FakeApiServer, apiserver
from tests.unit.dra.command import DraCpu
from tests.unit.dra.companion import Companion, arguments
from tests.unit.dra.manifests import manifest, result
from tests.unit.topology.machines import box, write_sysfs


@pytest.fixture
def host_name(monkeypatch: pytest.MonkeyPatch) -> str:
    """What the host is called in this process, whatever the one is called on which the tests run."""
    name = "Host-1"
    system, _, *others = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result([system, name, *others]))
    return name


@pytest.fixture
def dra_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str], host_name: str) -> Iterator[DraCpu]:
    """The command, on the node in a box."""
    yield DraCpu(capsys, write_sysfs(tmp_path / "host", box()), tmp_path / "config.yaml")
    logger.remove()
    logger.add(sys.__stderr__)  # type: ignore[arg-type]  # it is there


@pytest.fixture
def companion(tmp_path: Path) -> Iterator[Companion]:
    """What `dra-cpu run` needs, on the node in a box."""
    # A socket's path has room for 107 bytes, of which pytest's own directories take most.
    with tempfile.TemporaryDirectory(prefix="dra-") as root:
        yield Companion(tmp_path, Path(root))


@pytest.fixture
def cluster(companion: Companion) -> Iterator[list[str]]:
    """Arguments for an API server that knows one claim, and no nodes."""
    with apiserver() as server:
        server.put(manifest(result("cpudevnuma002")))
        yield [*arguments(companion, server)]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Certificates of API servers and of a client."""
    made = Authority(tmp_path_factory.mktemp("certificates") / "pki")
    made.issue(
        [
            Wanted("server", "apiserver", server=("IP:127.0.0.1",)),
            Wanted("named", "apiserver", server=("DNS:kubernetes.default.svc",)),
            Wanted("client", "driver", group="drivers"),
        ]
    )
    return made


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    """An API server with nothing on it."""
    with apiserver() as fake:
        yield fake


@pytest.fixture
def ground(server: FakeApiServer, tmp_path: Path) -> Ground:
    return Ground(server.kubeconfig(tmp_path), tmp_path)


@pytest.fixture
def api(ground: Ground) -> NodeSlices:
    return ground.api

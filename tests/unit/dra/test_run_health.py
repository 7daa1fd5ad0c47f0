"""Promises of dra-cpu run about health: that of all claims, whoever has prepared them, for as long as it is seen."""

from __future__ import annotations

import signal
from typing import Any

import grpc
import pytest

from hack.wait import wait_until
from tests.protocol.fake_kubelet import HEALTH
from tests.unit.dra.companion import ONE, OTHER, Companion, health, put_off_line
from tests.unit.dra.manifests import UID


@pytest.mark.fault("B10", "B11", "H5")
@pytest.mark.parametrize("version", HEALTH)
def test_health_follows_the_cpus_of_prepared_claims(companion: Companion, cluster: list[str], version: str) -> None:
    with companion.started(*cluster) as running, health(companion.socket, version) as kubelet:
        wait_until("the first report", lambda: kubelet.reports)
        assert kubelet.reports[0] == {f"cpudevnuma00{n}": ("HEALTHY", "") for n in range(4)}
        assert companion.call("Prepare", UID)[UID].error == ""
        put_off_line(companion, "0,12")  # 4,12 are prepared
        wait_until("Unhealthy", lambda: kubelet.health("cpudevnuma002") == "UNHEALTHY")
        assert kubelet.reports[-1]["cpudevnuma000"] == ("HEALTHY", "")
        assert kubelet.reports[-1]["cpudevnuma002"][1] == f"off line: CPU 12 of claim default/one ({UID})"
        put_off_line(companion, "")
        wait_until("Healthy", lambda: kubelet.health("cpudevnuma002") == "HEALTHY")
        running.said("CPUs on line are 0-15 now, before 1-11,13-15: 4 devices, before 4")
        running.process.send_signal(signal.SIGTERM)
        assert kubelet.ended.wait(20)  # it does not wait for the end of streams
        assert running.ended() == 0


@pytest.mark.fault("K9", "B10")
def test_of_two_instances_each_tells_the_health_of_claims_that_the_other_has_prepared(
    companion: Companion, cluster: list[str]
) -> None:
    old, new = (companion.socket.with_name(f"dra-{uid}.sock") for uid in (ONE, OTHER))
    with (
        companion.started(*cluster, "--pod-uid", ONE),
        companion.started(*cluster, "--pod-uid", OTHER) as second,
        health(new) as kubelet,
    ):
        second.said("serving the kubelet")
        companion.socket = old
        assert companion.call("Prepare", UID)[UID].error == ""
        put_off_line(companion, "12")  # 4,12 are prepared
        wait_until("Unhealthy", lambda: kubelet.health("cpudevnuma002") == "UNHEALTHY")
        assert companion.call("Unprepare", UID)[UID].error == ""
        wait_until("Healthy", lambda: kubelet.health("cpudevnuma002") == "HEALTHY")


@pytest.mark.fault("B10")
def test_while_the_cpus_on_line_can_not_be_listed_nothing_is_told(companion: Companion, cluster: list[str]) -> None:
    short = "from dra.kubelet import health_service\nhealth_service.LEASE = 3"
    with companion.started(*cluster, before=short) as running:
        running.said("serving the kubelet")
        wait_until("a report", lambda: is_told(companion))
        machine, away = companion.host / "sys", companion.host / "away"
        machine.rename(away)
        running.said("the machine can't be read again")
        wait_until("no report", lambda: not is_told(companion))
        away.rename(machine)
        wait_until("a report", lambda: is_told(companion))


def is_told(companion: Companion) -> bool:
    """Whether a kubelet that comes now has a report soon."""
    with grpc.insecure_channel(f"unix:{companion.socket}") as channel:
        raw: Any = channel.unary_stream(HEALTH["v1.DRAResourceHealth"])
        try:
            return bool(next(raw(b"", timeout=2, wait_for_ready=True)))
        except grpc.RpcError:
            return False

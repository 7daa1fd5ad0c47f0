"""Promises of the messages to the kubelet: their bytes, and that the names of Kubernetes' own API stay free."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message import Message

from dra.kubelet import dra_pb2 as dra
from dra.kubelet import health_pb2 as health
from dra.kubelet import registration_pb2 as registration

FILES = (dra, registration, health)


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (dra.Claim(namespace="n", uid="u", name="c"), "0a016e1201751a0163"),
        (
            dra.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["i", "j"]),
            "0a01721201701a016422016922016a",
        ),
        (dra.Device(share_id=""), "2a00"),
        (
            dra.NodePrepareResourcesResponse(claims={"u": dra.NodePrepareResourceResponse(error="e")}),
            "0a080a017512031201 65",
        ),
        (dra.NodeUnprepareResourcesResponse(claims={"u": dra.NodeUnprepareResourceResponse()}), "0a050a01751200"),
        (
            registration.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["v", "w"]),
            "0a01741201 6e1a01652201762201 77",
        ),
        (registration.RegistrationStatus(plugin_registered=True, error="e"), "0801120165"),
        (
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name="p", device_name="d"),
                health=health.UNHEALTHY,
                last_updated_time=300,
                health_check_timeout_seconds=20,
                message="m",
            ),
            "0a060a017012016410 0218ac0220142a016d",
        ),
    ],
    ids=["claim", "device", "share id that is set", "prepared", "unprepared", "info", "status", "health"],
)
def test_messages_are_the_bytes_that_a_kubelet_sends_and_reads(message: Message, data: str) -> None:
    assert message.SerializeToString() == bytes.fromhex(data)
    assert type(message).FromString(bytes.fromhex(data)) == message


def test_an_unset_share_id_is_not_an_empty_one() -> None:
    assert not dra.Device().HasField("share_id")
    assert dra.Device(share_id="").HasField("share_id")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.DESCRIPTOR.package)
def test_nothing_takes_a_name_that_others_register(file: ModuleType) -> None:
    # Two files with one name or one symbol cannot be in one process.
    descriptor: Any = vars(file)["DESCRIPTOR"]
    name = descriptor.name.removeprefix("dra/kubelet/").removesuffix(".proto")
    assert descriptor.package == f"dra_cpu.{name}"
    assert not descriptor.dependencies


def test_kubernetes_own_messages_can_be_in_the_same_process() -> None:
    pool = descriptor_pool.Default()
    for symbol in (
        "k8s.io.kubelet.pkg.apis.dra.v1.Claim",
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.Claim",
        "v1.DeviceHealth",
        "v1alpha1.DeviceHealth",
        "pluginregistration.PluginInfo",
    ):
        with pytest.raises(KeyError):
            pool.FindMessageTypeByName(symbol)


def test_generated_code_is_imported_without_a_warning() -> None:
    code = "import dra.kubelet.dra_pb2, dra.kubelet.registration_pb2, dra.kubelet.health_pb2"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

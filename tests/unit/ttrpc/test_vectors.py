"""Complete bytes of the trunk, as the real NRI library sends and reads them, through both sides."""

from __future__ import annotations

import pytest

from nri_cpu.nri import nri_pb2 as nri
from nri_cpu.ttrpc import Answer, Call, Code, Trunk
from tests.unit.ttrpc.factory import PLUGIN, RUNTIME

REGISTER = bytes.fromhex(
    "00000002 00000049 0000003f 00000001 01 00"
    "0a1c6e72692e706b672e6170692e7631616c706861312e52756e74696d65120e5265676973746572506c7567696e"
    "1a090a03637075120231302080e497d012"
)
REGISTERED = bytes.fromhex("00000002 0000000a 00000000 00000001 02 00")
CONFIGURE = bytes.fromhex(
    "00000001 00000054 0000004a 00000001 01 00"
    "0a1b6e72692e706b672e6170692e7631616c706861312e506c7567696e1209436f6e666967757265"
    "1a1a120a636f6e7461696e6572641a0676322e302e3020882728d00f2080a8d6b907"
)
CONFIGURED = bytes.fromhex("00000001 0000000f 00000005 00000001 02 00 1203109e0d")
CREATED = bytes.fromhex(
    "00000001 0000002f 00000025 00000007 02 00"
    "12230a0b3209120712053203322d3312140a03616263120b0a0912073205302d312c341801"
)
FAILED = bytes.fromhex("00000001 00000014 0000000a 00000009 02 00 0a0808021204626f6f6d")
UNIMPLEMENTED = bytes.fromhex("00000001 0000001a 00000010 0000000b 02 00 0a0e080c120a6d6574686f6420466f6f")


@pytest.fixture
def plugin() -> Trunk:
    return Trunk(server_id=1, client_id=2)


@pytest.fixture
def runtime() -> Trunk:
    return Trunk(server_id=2, client_id=1)


def call_until(stream: int, runtime: Trunk, plugin: Trunk) -> None:
    """Let the runtime make calls up to this stream's, none of which is answered yet."""
    while runtime.call(PLUGIN, "CreateContainer", b"") < stream:
        pass
    plugin.receive(runtime.data_to_send())


def test_registration_there_and_back(plugin: Trunk, runtime: Trunk) -> None:
    payload = nri.RegisterPluginRequest(plugin_name="cpu", plugin_idx="10").SerializeToString()
    assert plugin.call(RUNTIME, "RegisterPlugin", payload, 5.0) == 1
    assert plugin.data_to_send() == REGISTER
    assert runtime.receive(REGISTER) == [Call(1, RUNTIME, "RegisterPlugin", payload, 5.0)]
    runtime.answer(1, b"")
    assert runtime.data_to_send() == REGISTERED
    assert plugin.receive(REGISTERED) == [Answer(1, b"", None)]


def test_configuration_there_and_back(plugin: Trunk, runtime: Trunk) -> None:
    request = nri.ConfigureRequest(
        runtime_name="containerd", runtime_version="v2.0.0", registration_timeout=5000, request_timeout=2000
    )
    assert runtime.call(PLUGIN, "Configure", request.SerializeToString(), 2.0) == 1
    assert runtime.data_to_send() == CONFIGURE
    assert plugin.receive(CONFIGURE) == [Call(1, PLUGIN, "Configure", request.SerializeToString(), 2.0)]
    plugin.answer(1, nri.ConfigureResponse(events=0x069E).SerializeToString())
    assert plugin.data_to_send() == CONFIGURED
    (answer,) = runtime.receive(CONFIGURED)
    assert isinstance(answer, Answer)
    assert nri.ConfigureResponse.FromString(answer.payload).events == 0x069E


def test_a_created_container_and_an_update(plugin: Trunk, runtime: Trunk) -> None:
    call_until(7, runtime, plugin)
    response = nri.CreateContainerResponse()
    response.adjust.linux.resources.cpu.cpus = "2-3"
    update = response.update.add(container_id="abc", ignore_failure=True)
    update.linux.resources.cpu.cpus = "0-1,4"
    plugin.answer(7, response.SerializeToString())
    assert plugin.data_to_send() == CREATED
    (answer,) = runtime.receive(CREATED)
    assert isinstance(answer, Answer)
    assert nri.CreateContainerResponse.FromString(answer.payload) == response


@pytest.mark.parametrize(
    ("stream", "code", "text", "data"),
    [(9, Code.UNKNOWN, "boom", FAILED), (11, Code.UNIMPLEMENTED, "method Foo", UNIMPLEMENTED)],
)
def test_an_error(stream: int, code: Code, text: str, data: bytes, plugin: Trunk, runtime: Trunk) -> None:
    call_until(stream, runtime, plugin)
    plugin.refuse(stream, code, text)
    assert plugin.data_to_send() == data
    (answer,) = runtime.receive(data)
    assert isinstance(answer, Answer)
    assert answer.error is not None
    assert (answer.stream, answer.error.code, answer.error.message) == (stream, code, text)

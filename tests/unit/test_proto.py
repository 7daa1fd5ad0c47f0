"""The generated modules say what is on the wire, tolerate what they don't know, and hack/proto keeps them current."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.message import Message

from nri_cpu.nri import nri_pb2 as nri
from nri_cpu.ttrpc import ttrpc_pb2 as ttrpc

ROOT = Path(__file__).parents[2]


def resources(**cpu: object) -> nri.LinuxResources:
    return nri.LinuxResources(cpu=nri.LinuxCPU(**cpu))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (
            nri.StateChangeEvent(
                event=nri.START_CONTAINER, pod=nri.PodSandbox(id="p"), container=nri.Container(id="c")
            ),
            "080612030a01701a030a0163",
        ),
        (resources(shares=nri.OptionalUInt64(value=1024), quota=nri.OptionalInt64(value=0)), "12070a030880081200"),
        (resources(quota=nri.OptionalInt64(value=-1)), "120d120b08ffffffffffffffffff01"),
        (nri.SynchronizeResponse(more=True), "1001"),
        (nri.ConfigureResponse(events=0x069E), "109e0d"),
        (nri.Empty(), ""),
    ],
    ids=["event", "present with value 0", "negative", "part of a synchronization", "field 1 does not exist", "empty"],
)
def test_messages_are_the_bytes_that_a_runtime_sends_and_reads(message: Message, data: str) -> None:
    assert message.SerializeToString() == bytes.fromhex(data)
    assert type(message).FromString(bytes.fromhex(data)) == message


def test_a_wrapper_tells_not_set_from_set_to_0() -> None:
    cpu = nri.LinuxResources.FromString(bytes.fromhex("12070a030880081200")).cpu
    assert cpu.HasField("quota")
    assert cpu.quota.value == 0
    assert not cpu.HasField("period")


def test_every_method_is_declared_with_its_messages() -> None:
    services = nri.DESCRIPTOR.services_by_name
    assert {name: len(service.methods) for name, service in services.items()} == {"Runtime": 2, "Plugin": 18}
    assert services["Plugin"].full_name == "nri.pkg.api.v1alpha1.Plugin"
    create = services["Plugin"].methods_by_name["CreateContainer"]
    assert create.input_type.name == "CreateContainerRequest"
    assert create.output_type.name == "CreateContainerResponse"


def test_events_have_the_numbers_of_the_event_mask() -> None:
    wanted = ["CREATE", "POST_CREATE", "UPDATE", "STOP", "REMOVE"]
    events = [nri.Event.Value(f"{name}_CONTAINER") for name in wanted] + [nri.STOP_POD_SANDBOX, nri.REMOVE_POD_SANDBOX]
    assert sum(1 << (event - 1) for event in events) == 0x069E
    assert nri.LAST == 15


def test_the_value_none_is_reached_by_number() -> None:
    assert nri.Field.Name(0) == "None"
    assert nri.Field.Name(21) == "CPUSetCPUs"


# Field 1000 as bytes, which no version has.
NEWER = b"\xc2\x3e\x05newer"


def test_what_a_newer_runtime_adds_survives_where_a_message_is_sent_on() -> None:
    container = nri.Container(id="c", state=nri.CONTAINER_RUNNING).SerializeToString() + NEWER
    request = nri.CreateContainerRequest.FromString(b"\x12" + bytes([len(container)]) + container)
    copy = nri.CreateContainerRequest()
    copy.container.CopyFrom(request.container)
    assert request.container.id == "c"
    assert NEWER in request.SerializeToString()
    assert NEWER in copy.SerializeToString()
    details = bytes.fromhex("0a 08 08 05 12 01 78 1a 01 79")  # google.rpc.Status has a field 3
    assert ttrpc.Response.FromString(details).SerializeToString() == details


def test_numbers_of_an_enum_that_nobody_knows_are_kept() -> None:
    event = nri.StateChangeEvent.FromString(b"\x08\x63")
    assert event.event == 99
    assert event.SerializeToString() == b"\x08\x63"


def test_nothing_takes_a_name_that_others_register() -> None:
    # Two files with one name or one symbol cannot be in one process.
    for file, package, path in (
        (nri, "nri.pkg.api.v1alpha1", "nri_cpu/nri/nri.proto"),
        (ttrpc, "ttrpc", "nri_cpu/ttrpc/ttrpc.proto"),
    ):
        assert (file.DESCRIPTOR.package, file.DESCRIPTOR.name) == (package, path)
        assert not file.DESCRIPTOR.dependencies


def test_generated_code_is_imported_without_a_warning() -> None:
    code = "import nri_cpu.nri.nri_pb2, nri_cpu.ttrpc.ttrpc_pb2"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What hack/proto reads and writes, with this interpreter as its virtual environment's."""
    for name in ("hack/proto", "hack/node/cri", "nri_cpu/nri", "nri_cpu/ttrpc", "dra/kubelet", "proto"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return tmp_path


def generate(tree: Path) -> tuple[int, str]:
    done = subprocess.run([tree / "hack/proto"], cwd="/", capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_the_checked_in_code_is_what_the_proto_files_give(tree: Path) -> None:
    assert generate(tree) == (0, "")


@pytest.mark.parametrize("change", ["edited", "missing"])
def test_code_that_is_not_current_is_named_once_and_replaced(tree: Path, change: str) -> None:
    module = tree / "nri_cpu/nri/nri_pb2.py"
    was = module.read_bytes()
    if change == "edited":
        module.write_bytes(was + b"# by hand\n")
    else:
        module.unlink()
    code, errors = generate(tree)
    assert code == 1
    assert errors == "hack/proto: nri_cpu/nri/nri_pb2.py was not current, and is now; commit it\n"
    assert module.read_bytes() == was
    assert generate(tree) == (0, "")


def test_a_change_of_a_proto_file_shows_in_every_file_made_from_it(tree: Path) -> None:
    proto = tree / "proto/nri/ttrpc.proto"
    proto.write_text(proto.read_text() + "\nmessage Another {}\n")
    code, errors = generate(tree)
    assert code == 1
    assert [line.split()[1] for line in errors.splitlines()] == [
        "nri_cpu/ttrpc/ttrpc_pb2.py",
        "nri_cpu/ttrpc/ttrpc_pb2.pyi",
    ]


@pytest.mark.parametrize("text", ["import 'nowhere.proto';", "message {", "\0"])
def test_a_proto_file_that_cannot_be_read_is_named_and_nothing_is_replaced(tree: Path, text: str) -> None:
    module = tree / "nri_cpu/nri/nri_pb2.py"
    was = module.read_bytes()
    (tree / "proto/nri/nri.proto").write_text(text)
    code, errors = generate(tree)
    assert code != 0
    assert "nri.proto" in errors
    assert module.read_bytes() == was


def test_without_protoc_it_says_how_to_get_it(tree: Path) -> None:
    (tree / ".venv/bin/python").unlink()
    code, errors = generate(tree)
    assert code == 2
    assert "make proto" in errors
    assert len(errors.splitlines()) == 1

"""The examples on the pages are what the code reads and writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra import cli as dra_cli
from dra.claims import parse_claim
from dra.devices import CAPACITY, grouped_devices, individual_devices
from dra.kube.kubeconfig import from_kubeconfig
from hack.faults import ROOT
from nri_cpu import cli as nri_cli
from nri_cpu import config
from nri_cpu.checkpoint import cdi, codec, envelope
from tests.unit.topology.machines import box

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_SHELL = re.compile(r"^```bash\n.*?^```$|(?:hack/|kubectl )[^`\n]*", re.M | re.S)  # other commands
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def example(page: str, heading: str, language: str, at: int = 0) -> str:
    """A fenced block of that language under the heading; the first one is 0."""
    under = (ROOT / page).read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [match[2] for match in _BLOCK.finditer(under) if match[1] == language][at]


def test_the_envelope_has_the_fields_of_its_example() -> None:
    shown = json.loads(example("docs/checkpoint.md", "The envelope", "json"))
    made = json.loads(envelope.encode("{}", "boot"))
    assert list(shown) == list(made)
    assert (shown["format"], shown["readableBy"]) == (envelope.FORMAT, envelope.READABLE_BY)


def test_the_example_of_a_checkpoint_is_one_and_has_nothing_unknown() -> None:
    text = example("docs/checkpoint.md", "checkpoint.json", "json")
    checkpoint, _ = codec.checkpoint_from_bytes(envelope.encode(text, ""))
    assert _data(codec.checkpoint_to_bytes(checkpoint, "")) == json.loads(text)
    (record,) = checkpoint.claims.values()
    assert not checkpoint.unknown
    assert not record.unknown


def test_the_example_of_owners_is_one_and_owns_the_claim_of_the_checkpoint() -> None:
    text = example("docs/checkpoint.md", "owners.json", "json")
    owners, _ = codec.owners_from_bytes(envelope.encode(text, ""))
    assert _data(codec.owners_to_bytes(owners, "")) == json.loads(text)
    ((uid, owner),) = owners.owners.items()
    assert not owner.unknown
    claims = json.loads(example("docs/checkpoint.md", "checkpoint.json", "json"))["claims"]
    assert claims[uid]["preparation"] == owner.preparation


def test_the_example_of_a_cdi_spec_is_that_of_the_claim_in_the_checkpoint() -> None:
    data = json.loads(example("docs/checkpoint.md", "checkpoint.json", "json"))
    ((uid, claim),) = data["claims"].items()
    made = json.loads(cdi.spec_bytes(codec.record_from_data(uid, claim)))
    made["annotations"][cdi.RECORD_ANNOTATION] = "..."
    assert made == json.loads(example("docs/checkpoint.md", "CDI specs", "json"))


def test_the_example_of_a_claims_file_is_an_allocated_claim() -> None:
    manifest = yaml.safe_load(example("docs/running.md", "dra-cpu", "yaml", at=1))
    claim = parse_claim(manifest, manifest["metadata"]["uid"])
    assert [result.consumed_cpus for result in claim.results] == [2]


def test_the_kubeconfig_of_the_page_can_be_read(tmp_path: Path) -> None:
    manifest = yaml.safe_load(example("docs/running.md", "dra-cpu", "yaml"))
    del manifest["clusters"][0]["cluster"]["certificate-authority"]  # of a cluster that is not here
    manifest["users"][0]["user"]["tokenFile"] = str(tmp_path / "token")
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "config").write_text(yaml.safe_dump(manifest))
    assert from_kubeconfig(tmp_path / "config").server == manifest["clusters"][0]["cluster"]["server"]


def test_the_claim_of_the_readme_asks_for_our_capacity_and_its_pod_uses_it() -> None:
    claim, pod = yaml.safe_load_all(example("README.md", "A claim", "yaml"))
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "dra.cpu", "capacity": {"requests": {"dra.cpu/cpu": "2"}}}
    ((name, uses),) = [(uses["name"], uses["resourceClaimName"]) for uses in pod["spec"]["resourceClaims"]]
    assert uses == claim["metadata"]["name"]
    assert [used["name"] for used in pod["spec"]["containers"][0]["resources"]["claims"]] == [name]


def test_the_pod_of_the_page_on_changing_over_uses_its_template() -> None:
    (before,) = yaml.safe_load_all(example("docs/from-cpu-manager.md", "A pod, before and after", "yaml"))
    template, after = yaml.safe_load_all(example("docs/from-cpu-manager.md", "A pod, before and after", "yaml", 1))
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    (old,), (new,) = before["spec"]["containers"], after["spec"]["containers"]
    count = request["exactly"]["capacity"]["requests"][CAPACITY]
    assert old["resources"]["requests"] == old["resources"]["limits"] == new["resources"]["requests"]
    assert new["resources"]["requests"]["cpu"] == count
    assert "cpu" not in new["resources"]["limits"]
    ((name, uses),) = [(one["name"], one["resourceClaimTemplateName"]) for one in after["spec"]["resourceClaims"]]
    assert uses == template["metadata"]["name"]
    assert [used["name"] for used in new["resources"]["claims"]] == [name]


def test_the_claim_that_matches_cpus_with_a_device_matches_by_an_attribute_of_ours() -> None:
    claim = yaml.safe_load(example("docs/from-cpu-manager.md", "Near a device", "yaml"))["spec"]["devices"]
    (constraint,) = claim["constraints"]
    assert constraint["requests"] == [request["name"] for request in claim["requests"]]
    for devices in (grouped_devices(box(), box().online), individual_devices(box(), box().online)):
        assert all(constraint["matchAttribute"] in device.attributes for device in devices)


def test_every_key_of_the_configuration_is_on_the_page_and_no_other() -> None:
    under = (ROOT / "docs/running.md").read_text("utf-8").split("\n## Configuration\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", under, re.M)) == sorted(config._KEYS)


def test_every_flag_that_a_page_for_users_names_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    for main, commands in ((nri_cli.main, "run topology"), (dra_cli.main, "run slices allocate gatherinfo")):
        for command in commands.split():
            with pytest.raises(SystemExit):
                main([command, "--help"])
    flags = set(_FLAG.findall(capsys.readouterr().out))
    pages = [path.read_text("utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    ours = [_SHELL.sub("", page) for page in pages]
    assert {flag for page in ours for flag in _FLAG.findall(page)} <= flags


def _data(raw: bytes) -> Any:
    return json.loads(json.loads(raw)["data"])

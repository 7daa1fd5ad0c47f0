"""The examples on the pages are what the code reads and writes."""

from __future__ import annotations

import json
import re
from typing import Any

from hack.faults import ROOT
from nri_cpu.checkpoint import cdi, codec, envelope

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def example(page: str, heading: str, language: str) -> str:
    """The first fenced block of that language under the heading."""
    under = (ROOT / page).read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return next(match[2] for match in _BLOCK.finditer(under) if match[1] == language)


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


def _data(raw: bytes) -> Any:
    return json.loads(json.loads(raw)["data"])

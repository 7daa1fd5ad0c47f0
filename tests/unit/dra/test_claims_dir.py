"""Promises of claims from files: found wherever they lie, read live; what is no claim is named and does no harm."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra.claims import ClaimError, ClaimRef, parse_claim
from dra.claims_dir import ClaimsDir
from tests.unit.dra.manifests import UID, manifest, uid

REF = ClaimRef(UID, "default", "one")


def find(directory: Path, ref: ClaimRef = REF) -> object:
    return ClaimsDir(directory).reader(time.monotonic() + 10)(ref)


def refusal(directory: Path, ref: ClaimRef = REF) -> str:
    with pytest.raises(ClaimError) as caught:
        find(directory, ref)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_claim_is_found_in_json_and_in_yaml(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(manifest()))
    (tmp_path / "two.yml").write_text(yaml.safe_dump(manifest(claim_uid=uid(2), name="two")))
    assert find(tmp_path) == manifest()
    assert parse_claim(find(tmp_path, ClaimRef(uid(2), "default", "two")), uid(2)).name == "two"


def test_several_documents_and_lists_are_taken_apart(tmp_path: Path) -> None:
    listed = {"kind": "List", "items": [manifest(), manifest(claim_uid=uid(2), name="two")]}
    documents: list[Any] = [None, listed, manifest(claim_uid=uid(3), name="three"), None]
    (tmp_path / "all.yaml").write_text("---\n".join(yaml.safe_dump(document) for document in documents))
    for number, name in ((2, "two"), (3, "three")):
        assert find(tmp_path, ClaimRef(uid(number), "default", name)) == manifest(claim_uid=uid(number), name=name)


def test_files_are_read_anew_for_each_call(tmp_path: Path) -> None:
    source = ClaimsDir(tmp_path)
    assert "has no ResourceClaim default/one" in refusal(tmp_path)
    (tmp_path / "one.json").write_text(json.dumps(manifest()))
    assert source.reader(time.monotonic() + 10)(REF) == manifest()


@pytest.mark.fault("K3")
def test_of_two_claims_with_one_name_the_uid_decides(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(manifest(claim_uid=uid(2))))
    (tmp_path / "b.json").write_text(json.dumps(manifest()))
    assert find(tmp_path) == manifest()
    with pytest.raises(ClaimError, match="replaced"):
        parse_claim(find(tmp_path, ClaimRef(uid(3), "default", "one")), uid(3))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.json", b"", "x.json: is no JSON: "),
        ("x.json", b"[1, 2]", "x.json: holds no Kubernetes object"),
        ("x.json", b"[" * 100_000, "x.json: is no JSON: "),
        ("x.json", b"\xff\xfe", "x.json: is no UTF-8 text at byte 0"),
        ("x.json", b'{"kind": "Pod", "apiVersion": "v1"}', "x.json: holds a Pod of v1, not a ResourceClaim"),
        ("x.yaml", b"a: [1", "x.yaml: is no YAML in line 2: "),
        ("x.yaml", b"a: *b", "x.yaml: is no YAML in line 1: found undefined alias"),
        ("x.yaml", b"a: 2024-13-45", "x.yaml: is no YAML: month must be"),
        ("x.yaml", b"? [a]\n: b", "x.yaml: is no YAML"),
        ("x.yaml", b"!!python/object/apply:os.getcwd []", "x.yaml: is no YAML in line 1: could not determine"),
        ("x.yaml", b"just text", "x.yaml: holds no Kubernetes object"),
        ("x.yaml", b"kind: List\nitems: 3", "x.yaml: items of a List is no list"),
        (
            "x.yaml",
            b"kind: ResourceClaim\napiVersion: resource.k8s.io/v1\nmetadata: {name: 1, namespace: a, uid: b}",
            "x.yaml: metadata.name is missing or no string",
        ),
        (
            "x.yaml",
            b"kind: ResourceClaimTemplate\napiVersion: resource.k8s.io/v1",
            "x.yaml: holds a ResourceClaimTemplate of resource.k8s.io/v1, not a ResourceClaim",
        ),
    ],
)
def test_what_is_no_claim_is_named_and_stands_in_nobodys_way(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert problem in refusal(tmp_path)
    (tmp_path / "one.json").write_text(json.dumps(manifest()))
    assert find(tmp_path) == manifest()


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "gone.yaml").symlink_to("nowhere")
    problems = refusal(tmp_path)
    for problem in ("pipe.yaml: is no regular file", "folder.json: is no regular file", "gone.yaml: can't be read: No"):
        assert problem in problems


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x.yaml").open("wb") as file:
        file.truncate(9 << 20)
    assert "x.yaml: is larger than 8388608 bytes" in refusal(tmp_path)


def test_an_alias_bomb_costs_nothing(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40))]
    (tmp_path / "x.yaml").write_text("\n".join(lines))
    assert "x.yaml: holds a None of None, not a ResourceClaim" in refusal(tmp_path)


def test_other_files_are_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("{")
    (tmp_path / ".hidden.json").write_text("{")
    assert refusal(tmp_path) == f"{tmp_path} has no ResourceClaim default/one"


def test_of_many_problems_only_some_are_shown(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.json").write_text("{}")
    assert refusal(tmp_path).endswith("; and 25 more files that are no claims")


def test_a_missing_directory_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ClaimError, match="nowhere can't be read: No such file or directory; make it"):
        ClaimsDir(tmp_path / "nowhere")


def test_a_directory_that_goes_away_is_a_claim_error(tmp_path: Path) -> None:
    source = ClaimsDir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(ClaimError, match="can't be read: No such file or directory"):
        source.reader(time.monotonic() + 10)(REF)

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
        ("x.yaml", b"a: &b c\nd: *b", "x.yaml: has an alias in line 2, which is not supported: write it out"),
        ("x.yaml", b"a: 2024-13-45", "x.yaml: holds no Kubernetes object"),
        ("x.yaml", b"? [a]\n: b", "x.yaml: has a key that is no text in line 1"),
        ("x.yaml", b"!!python/object/apply:os.getcwd []", "x.yaml: has a tag in line 1"),
        ("x.yaml", b"kind: !!int ''", "x.yaml: has a tag in line 1"),
        ("x.yaml", b"kind: !!float ''", "x.yaml: has a tag in line 1"),
        ("x.yaml", b"a: 1\nb: !!bool x", "x.yaml: has a tag in line 2"),
        ("x.yaml", b"kind: !!timestamp x", "x.yaml: has a tag in line 1"),
        ("x.yaml", b"kind: 0x" + b"f" * 5000, "x.yaml: holds no Kubernetes object"),
        ("x.yaml", b"kind: 1" + b":10" * 3000, "x.yaml: holds no Kubernetes object"),
        ("x.yaml", b"kind: " + b"9" * 5000, "x.yaml: holds no Kubernetes object"),
        ("x.yaml", b"kind: .nan", "x.yaml: holds no Kubernetes object"),
        ("x.yaml", b"kind: [" * 65, "x.yaml: is nested too deep in line 1"),
        ("x.yaml", b"- [" * 100_000, "x.yaml: is "),
        ("x.yaml", b'kind: "\\UFFFFFFFF"', "x.yaml: is no YAML"),
        ("x.yaml", b"a: \0", "x.yaml: is no YAML"),
        ("x.json", b'{"kind": ' + b"[" * 900 + b"]" * 900 + b"}", "x.json: holds no Kubernetes object"),
        ("x.json", b'{"kind": ' + b"9" * 5000 + b"}", "x.json: is no JSON"),
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
    for problem in (
        "pipe.yaml: is no regular file",
        "folder.json: can't be read: Is a dir",
        "gone.yaml: can't be read: No",
    ):
        assert problem in problems


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x.yaml").open("wb") as file:
        file.truncate((1 << 20) + 1)
    assert "x.yaml: is larger than 1048576 bytes" in refusal(tmp_path)


def test_a_file_that_never_ends_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").symlink_to("/dev/zero")
    assert "x.yaml: is no regular file" in refusal(tmp_path)


def test_a_file_of_many_values_is_given_up_early(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(f"kind: [{'a,' * 400_000}a]\n")
    assert "x.yaml: has more than 100000 values: take it apart" in refusal(tmp_path)


def test_an_alias_bomb_costs_nothing(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)), "kind: *a39"]
    (tmp_path / "x.yaml").write_text("\n".join(lines))
    assert "x.yaml: has an alias in line 2" in refusal(tmp_path)


@pytest.mark.parametrize("fails", [KeyError("x"), MemoryError(), AttributeError("y\nz")])
def test_whatever_fails_for_one_file_is_its_problem_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Exception
) -> None:
    def fail(text: str) -> object:
        raise fails

    (tmp_path / "one.yaml").write_text(yaml.safe_dump(manifest()))
    (tmp_path / "x.json").write_text("{}")
    monkeypatch.setattr(json, "loads", fail)
    assert find(tmp_path) == manifest()
    assert f"x.json: can't be used: {type(fails).__name__}" in refusal(tmp_path, ClaimRef(uid(2), "default", "two"))


def test_the_name_of_a_file_forges_no_lines(tmp_path: Path) -> None:
    (tmp_path / "x\n2026-11-30 ERROR forged\udcff.yaml").write_text("kind: Pod\n\x1b")
    assert "x?2026-11-30 ERROR forged?.yaml: " in (text := refusal(tmp_path))
    assert text.isprintable()


def test_plain_values_mean_what_json_has(tmp_path: Path) -> None:
    values = "[1, -20, 08, 1.5, 2e3, true, FALSE, yes, ~, null, , x, '1', \"true\", 10:30, 0x1F, 2026-11-30]"
    expected = [1, -20, "08", "1.5", "2e3", True, False, "yes", None, None, "x", "1", "true", "10:30", "0x1F"]
    (tmp_path / "one.yaml").write_text(f"{yaml.safe_dump(manifest())}more: {values.replace(', ,', ',')}\n")
    assert find(tmp_path) == {**manifest(), "more": [*expected, "2026-11-30"]}


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

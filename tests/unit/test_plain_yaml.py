"""Promises of YAML that is data only: plain values as written, and one error that says where for everything else."""

from __future__ import annotations

import pytest

from nri_cpu.plain_yaml import PlainYamlError, dump, parse


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("", []),
        ("# nothing\n", []),
        ("---\n---\n", [None, None]),
        ("a: [1, -2, 'x', ~, true]\n", [{"a": [1, -2, "x", None, True]}]),
        (
            "a: 08\nb: 0x1F\nc: 10:30\nd: 1.5\ne: yes\nf: '1'\n",
            [{"a": "08", "b": "0x1F", "c": "10:30", "d": "1.5", "e": "yes", "f": "1"}],
        ),
        ("1: a\n'~': b\n", [{"1": "a", "~": "b"}]),
        ("a: &x 1\n", [{"a": 1}]),
        ("a: " + "9" * 30, [{"a": "9" * 30}]),
    ],
)
def test_values_are_plain_and_what_yaml_reads_in_its_own_way_is_text(text: str, documents: list[object]) -> None:
    assert parse(text, 100) == documents


@pytest.mark.parametrize("library", ["C", "Python"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [\n", "is no YAML in line 3: "),
        ("a: \0", "is no YAML: (control|special) characters are not allowed"),
        ("a: \ud800", "is no YAML: "),
        ("a: 1\nb: !!str 1\n", "has a tag in line 2, which is not supported: write it out"),
        ("a: &x 1\nb: *x\n", "has an alias in line 2, which is not supported: write it out"),
        ("a: 1\nb: 2\na: 3\n", "has the key 'a' a second time in line 3: remove one"),
        ("? {a: b}\n: 1\n", "has a key that is no text in line 1"),
        ("a:\n- " + 70 * "[" + 70 * "]", "is nested too deep in line 2"),
        ("[" + 101 * "1," + "]", "has more than 100 values: take it apart"),
        ('a: "\\Uffffffff"\n', "is no YAML"),
    ],
)
def test_everything_else_is_one_error_that_says_where(
    text: str, message: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "Python":
        monkeypatch.delattr("yaml.CSafeLoader", raising=False)
    with pytest.raises(PlainYamlError, match=f"^{message}") as caught:
        parse(text, 100)
    assert "\n" not in str(caught.value)


def test_what_is_dumped_reads_back_and_documents_follow_one_another() -> None:
    same = ["1", 1, "true", True, "~", None, "", "0-3,8", "a: b", "\n"]
    values: list[object] = [{"a": same, "b": same}, []]
    text = "".join(map(dump, values))
    assert "&" not in text
    assert parse(text, 100) == values

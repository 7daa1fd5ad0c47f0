"""hack/faults.py: markers are read from any place pytest reads them, and what can't be read is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.faults import FaultsError, disagreements, main, markers_in, rows_in, with_tests

PAGE = """# Faults

| Term | Test |
|---|---|

text

| No. | Fault | Ours | Test |
|---|---|---|---|
| X1 | one | It holds. | - |
| Y-2 | two | Later: it will hold. | - |
"""

SOURCE = """
import pytest
from pytest import mark

pytestmark = pytest.mark.fault("X1")


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.fault("X8"))])
@pytest.mark.fault("X17", "Y-1")
def test_one(n): ...


@mark.fault("Z1")
class TestTwo:
    @pytest.mark.fault("Z2")
    async def test_three(self):
        assert default.fault("not a marker")
"""


def test_markers_are_found_on_modules_classes_functions_and_parameters() -> None:
    found = {(marker.number, marker.node_id) for marker in markers_in(SOURCE, "tests/a.py")}
    assert found == {
        ("X1", "tests/a.py"),
        ("X8", "tests/a.py::test_one"),
        ("X17", "tests/a.py::test_one"),
        ("Y-1", "tests/a.py::test_one"),
        ("Z1", "tests/a.py::TestTwo"),
        ("Z2", "tests/a.py::TestTwo::test_three"),
    }


@pytest.mark.parametrize(
    "source",
    [
        "pytest.mark.fault()",
        "pytest.mark.fault(17)",
        "pytest.mark.fault(NUMBER)",
        "pytest.mark.fault(*NUMBERS)",
        "pytest.mark.fault('X1', why='x')",
        "@pytest.mark.fault\ndef test_it(): ...",
        "def test_it(:",
        "\0",
    ],
)
def test_a_marker_that_cannot_be_read_is_named_with_its_file(source: str) -> None:
    with pytest.raises(FaultsError, match=r"tests/a\.py"):
        markers_in(source, "tests/a.py")


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| X2 | two | - |", "a row of 4 cells"),
        ("| X2 | two | a|b | - | - |", "a row of 4 cells"),
        ("| two | two | It holds. | - |", "begins with a number"),
        ("| | two | It holds. | - |", "begins with a number"),
        ("| X1 | again | It holds. | - |", "X1 stands twice"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_with_its_line(row: str, complaint: str) -> None:
    with pytest.raises(FaultsError, match=f"reliability.md:12: .*{complaint}"):
        rows_in(PAGE + row + "\n")


def test_only_rows_under_a_test_column_count() -> None:
    assert list(rows_in(PAGE)) == ["X1", "Y-2"]
    assert rows_in("") == {}


def test_the_column_links_each_file_once_and_everything_else_stays() -> None:
    markers = markers_in("pytest.mark.fault('X1')\npytest.mark.fault('X1')", "tests/unit/test_b.py")
    markers += markers_in("pytest.mark.fault('X1')", "tests/node/test_a.py")
    written = with_tests(PAGE, markers)
    tests = "[node/a](../tests/node/test_a.py), [unit/b](../tests/unit/test_b.py)"
    assert written == PAGE.replace("| X1 | one | It holds. | - |", f"| X1 | one | It holds. | {tests} |")
    assert with_tests(written, markers) == written
    assert with_tests(written, []) == PAGE


def test_disagreements_name_unknown_numbers_and_promises_of_later_and_a_stale_column() -> None:
    assert disagreements(PAGE, []) == []
    markers = markers_in("pytest.mark.fault('X9', 'Y-2')", "tests/test_a.py")
    unknown, later, stale = disagreements(PAGE, markers)
    assert unknown.startswith("tests/test_a.py:1: fault X9 is not in docs/reliability.md")
    assert "Y-2 has a test and still says Later:" in later
    assert "stale" in stale


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/reliability.md").write_text(PAGE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("@pytest.mark.fault('X1')\ndef test_it(): ...\n")
    return tmp_path


def test_the_command_checks_writes_and_lists(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], tree) == 1
    assert (tree / "docs/reliability.md").read_text() == PAGE
    assert main([], tree) == 0
    assert main(["--check"], tree) == 0
    capsys.readouterr()
    assert main(["X1"], tree) == 0
    assert capsys.readouterr().out == "tests/test_a.py::test_it\n"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("docs/reliability.md", b"\xff"),
        ("docs/reliability.md", b"| No. | Test |\n| 17 | - |\n"),
        ("tests/test_b.py", b"\xff"),
        ("tests/test_b.py", b"pytest.mark.fault(1)"),
    ],
)
def test_the_command_fails_in_one_line_on_broken_files(
    tree: Path, path: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / path).write_bytes(content)
    assert main(["--check"], tree) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_command_fails_on_a_number_that_the_page_does_not_have(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["X17"], tree) == 1
    assert "has no X17" in capsys.readouterr().err
    (tree / "docs/reliability.md").unlink()
    assert main(["X1"], tree) == 1
    assert "docs/reliability.md" in capsys.readouterr().err

#!/usr/bin/env python3
"""faults.py: the test column of docs/reliability.md, filled from the fault markers in tests/.

    hack/faults.py            write the column
    hack/faults.py --check    write nothing; exit 1 when the column is stale or page and markers disagree
    hack/faults.py A17 R1     the tests that show these faults, one pytest id a line

Tests are read as text and never imported, so it needs nothing but Python.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/reliability.md"
NO_TEST = "-"
LATER = "Later:"

_NUMBER = re.compile(r"[A-Z]{1,2}-?[0-9]+")


class FaultsError(Exception):
    """A marker or a row that can't be read; the message says where and what it should be."""


@dataclass(frozen=True, slots=True)
class Marker:
    """One fault number of one marker; `test` is the part of a pytest id after the file, empty for the whole file."""

    number: str
    path: str
    line: int
    test: str

    @property
    def node_id(self) -> str:
        return f"{self.path}::{self.test}" if self.test else self.path


@dataclass(frozen=True, slots=True)
class Row:
    """One fault of the page: its cells as written, the last one being the tests; `line` counts from 0."""

    line: int
    cells: tuple[str, ...]

    @property
    def number(self) -> str:
        return self.cells[0]

    @property
    def later(self) -> bool:
        return self.cells[-2].startswith(LATER)


def markers_in(source: str, path: str) -> list[Marker]:
    """The fault markers of one test file, in order: decorators, `pytestmark`, `marks=`.

    Raises FaultsError for text that is not Python and for a marker whose arguments are not literal numbers.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise FaultsError(f"{path}: not Python: {error}") from error
    return list(_walk(tree, path, ()))


def _walk(node: ast.AST, path: str, scope: tuple[str, ...]) -> Iterator[Marker]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and _is_marker(child.func):
            for number in _numbers(child, path):
                yield Marker(number, path, child.lineno, "::".join(scope))
        elif _is_marker(child):
            raise FaultsError(f"{path}:{getattr(child, 'lineno', 0)}: a fault marker without numbers")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _walk(child, path, (*scope, child.name))
        else:
            yield from _walk(child, path, scope)


def _is_marker(node: ast.AST) -> bool:
    """Whether this is `pytest.mark.fault` or `mark.fault`."""
    if not isinstance(node, ast.Attribute) or node.attr != "fault":
        return False
    return "mark" in (getattr(node.value, "attr", None), getattr(node.value, "id", None))


def _numbers(call: ast.Call, path: str) -> list[str]:
    values = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if not values or call.keywords or len(values) != len(call.args):
        raise FaultsError(f'{path}:{call.lineno}: a fault marker takes literal numbers, as in fault("A17", "R1")')
    return values


def rows_in(page: str) -> dict[str, Row]:
    """The rows of every table whose last column is headed Test, by number.

    Raises FaultsError for a row with another number of cells than its header, a first cell that is no number,
    and a number that stands twice.
    """
    rows: dict[str, Row] = {}
    width = 0
    for line, text in enumerate(page.splitlines()):
        if not text.startswith("|"):
            width = 0
            continue
        cells = tuple(cell.strip() for cell in text.strip().strip("|").split("|"))
        if cells[-1] == "Test":
            width = len(cells)
        elif width and set(text) - set("|-: "):
            where = f"{PAGE}:{line + 1}"
            if len(cells) != width or not _NUMBER.fullmatch(cells[0]):
                raise FaultsError(f"{where}: a row of {width} cells that begins with a number, such as A17, is wanted")
            if cells[0] in rows:
                raise FaultsError(f"{where}: {cells[0]} stands twice, first in line {rows[cells[0]].line + 1}")
            rows[cells[0]] = Row(line, cells)
    return rows


def with_tests(page: str, markers: Sequence[Marker]) -> str:
    """The page with its test column as the markers have it: a link for each file, in order of their paths."""
    lines = page.splitlines()
    for row in rows_in(page).values():
        paths = sorted({marker.path for marker in markers if marker.number == row.number})
        tests = ", ".join(_link(path) for path in paths) or NO_TEST
        lines[row.line] = f"| {' | '.join((*row.cells[:-1], tests))} |"
    return "\n".join(lines) + "\n"


def _link(path: str) -> str:
    name = path.removeprefix("tests/").removesuffix(".py").replace("test_", "")
    return f"[{name}](../{path})"


def disagreements(page: str, markers: Sequence[Marker]) -> list[str]:
    """What is wrong between page and markers, a line each; empty when they agree."""
    rows = rows_in(page)
    found = [
        f"{m.path}:{m.line}: fault {m.number} is not in {PAGE}: give it a row, or correct the number"
        for m in markers
        if m.number not in rows
    ]
    shown = {marker.number for marker in markers}
    found += [
        f"{PAGE}:{row.line + 1}: {row.number} has a test and still says {LATER} say what is there now"
        for row in rows.values()
        if row.later and row.number in shown
    ]
    if with_tests(page, markers) != page:
        found.append(f"{PAGE}: the test column is stale: run hack/faults.py")
    return found


def read_markers(root: Path) -> list[Marker]:
    """The markers of every Python file under tests/, by path and line."""
    files = {path.relative_to(root).as_posix(): path for path in (root / "tests").rglob("*.py")}
    return [marker for name in sorted(files) for marker in markers_in(files[name].read_text("utf-8"), name)]


def _tests_of(numbers: Sequence[str], rows: Mapping[str, Row], markers: Sequence[Marker]) -> list[str]:
    unknown = sorted(set(numbers) - set(rows))
    if unknown:
        raise FaultsError(f"{PAGE} has no {', '.join(unknown)}")
    return list(dict.fromkeys(marker.node_id for marker in markers if marker.number in numbers))


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="hack/faults.py", description="The test column of docs/reliability.md.")
    parser.add_argument("numbers", nargs="*", metavar="NUMBER", help="print the tests that show these faults")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something is wrong")
    args = parser.parse_args(argv)
    try:
        page, markers = (root / PAGE).read_text("utf-8"), read_markers(root)
        if args.numbers:
            print("\n".join(_tests_of(args.numbers, rows_in(page), markers)))
            return 0
        if not args.check:
            fresh = with_tests(page, markers)
            (root / PAGE).write_text(fresh, "utf-8")
            page = fresh
        wrong = disagreements(page, markers)
    except (FaultsError, OSError, UnicodeDecodeError) as error:
        print(f"hack/faults.py: {error}", file=sys.stderr)
        return 1
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""The pages say what is there: links, paths, targets and fault numbers in them exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hack.faults import ROOT, disagreements, read_markers

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

# The first word in backticks, when it starts at a directory of ours: `nri_cpu/cpuset.py`, `hack/faults.py --check`.
_PATH = re.compile(r"`((?:nri_cpu|dra|proto|tests|hack|docs|deploy|\.ci)/[\w./-]*)")
_TARGET = re.compile(r"\bmake ([a-z]+(?:-[a-z]+)*)\b(?=[`\s#]|$)", re.M)
_INLINE = re.compile(r"\]\(([^)\s]+)\)")
_REFERENCE = re.compile(r"(?<!`)\[([\w-]+#\d+)\](?!:)")
_DEFINITION = re.compile(r"^\[([\w-]+#\d+)\]: (\S+)$", re.M)

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def _prose(text: str) -> str:
    """The page without its fenced blocks, in which brackets and paths are examples."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def _anchors(page: Path) -> set[str]:
    """The anchors that a code host makes of headings: lower case, punctuation gone, blanks to hyphens."""
    headings = re.findall(r"^#+ (.+)$", _prose(page.read_text("utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_reliability_page_and_fault_markers_agree() -> None:
    page = (ROOT / "docs/reliability.md").read_text("utf-8")
    wrong = disagreements(page, read_markers(ROOT))
    assert not wrong, "\n".join(wrong)


@pages
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in _INLINE.findall(_prose(page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


@pages
def test_every_issue_that_is_named_is_linked_once(page: Path) -> None:
    text = _prose(page.read_text("utf-8"))
    defined = dict(_DEFINITION.findall(text))
    assert set(_REFERENCE.findall(text)) == set(defined)
    assert len(defined) == len(_DEFINITION.findall(text))
    wrong = [name for name, url in defined.items() if not url.endswith("/" + name.replace("#", "/issues/"))]
    assert wrong == []


@pages
def test_every_path_of_ours_exists(page: Path) -> None:
    named = set(_PATH.findall(page.read_text("utf-8")))
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@pages
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    text = "\n".join(re.findall(r"`[^`\n]+`|^```.*?^```$", page.read_text("utf-8"), re.M | re.S))
    assert sorted(set(_TARGET.findall(text)) - targets) == []


def test_the_architecture_page_names_every_part() -> None:
    page = (ROOT / "docs/developer/architecture.md").read_text("utf-8")
    parts = [path for package in ("nri_cpu", "dra") for path in (ROOT / package).iterdir()]
    names = {
        f"{path.parent.name}/{path.name}{'/' if path.is_dir() else ''}"
        for path in parts
        if (path.suffix == ".py" and not path.name.startswith("__")) or (path / "__init__.py").exists()
    }
    assert sorted(name for name in names if f"`{name}`" not in page) == []

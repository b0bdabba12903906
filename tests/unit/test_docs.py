"""The documentation holds together: every link leads somewhere, every page is reachable, the picture is a picture."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def links(page: Path) -> set[Path]:
    """Local targets of a page's links."""
    found = _LINK.findall(page.read_text())
    return {(page.parent / target).resolve() for target in found if "://" not in target}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_local_link_leads_somewhere(page: Path) -> None:
    assert {str(target) for target in links(page) if not target.exists()} == set()


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        waiting += links(page)
    assert {str(page.relative_to(ROOT)) for page in PAGES if page not in seen} == set()


def test_the_architecture_picture_is_well_formed() -> None:
    ElementTree.parse(ROOT / "docs" / "architecture.svg")

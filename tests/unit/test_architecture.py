"""The pages of documentation name only files, headings and scripts that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("[!.]*/README.md")),
]

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_SCRIPT = re.compile(r"^\| \[`\w+`\]\(\.\./lua/(\w+)\.lua\)", re.MULTILINE)


def _prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text("utf-8"))


def _anchors(page: Path) -> set[str]:
    """The anchors that a page's headings have on GitHub."""
    headings = _HEADING.findall(_prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken_links(page: Path) -> Iterator[str]:
    for link in _LINK.findall(_prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file, and a heading in it, that exist."""
    assert list(_broken_links(page)) == []


def test_the_way_through_the_files_is_linked() -> None:
    """The architecture names its files by links, so that the test above finds those that are gone."""
    text = _prose(ARCHITECTURE)
    assert len(_LINK.findall(text)) > 50
    unlinked = re.sub(r"\[[^\]]*\]\([^)]*\)", "", text)
    assert re.findall(r"`[\w/]+\.(?:py|lua)`", unlinked) == []


def test_every_script_that_moves_messages_is_a_transition() -> None:
    """Of the scripts that add to a place of messages, none is missing from the table of transitions."""
    adds = re.compile(
        r"redis\.p?call\('(?:ZADD|XADD)', (?:waiting|retry|ready|garbage)\b|\b(?:make_ready_again|fail|expire)\("
    )
    moving = {path.stem for path in ROOT.glob("lua/*.lua") if adds.search(path.read_text("utf-8"))}
    assert moving - {*_SCRIPT.findall(ARCHITECTURE.read_text("utf-8"))} == set()

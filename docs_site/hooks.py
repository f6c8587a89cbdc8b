"""Hooks of MkDocs: pages that come from code and from the files beside `docs/`, and links that lead out of it."""

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

from docs_site.reference import render_commands, render_http, render_python

__all__ = ["on_files", "on_page_markdown"]

ROOT = Path(__file__).parents[1]
SOURCE = "https://lisa.example/source/"
LINK = re.compile(r"(\]\(|<img src=\")([^)\s#\":]+)(?=[)#\"])")
MOVED = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the site whose text is a file beside `docs/`."""
FOUND_LATER = {"reference/python.md", "design.md", "changelog.md"}
"""Pages that a search lists below those for users: their many short headings hold most words."""

_logger = get_plugin_logger("lisa")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are not in `docs/`, and the pictures that they show."""
    pages = {page: (ROOT / name).read_text("utf-8") for name, page in MOVED.items()}
    pages |= {
        "reference/commands.md": render_commands(),
        "reference/http.md": render_http(),
        "reference/python.md": render_python(),
    }
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    text = "".join([pages["index.md"], *(path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md"))])
    for picture in sorted(set(re.findall(r"\]\((?:\.\./)?(benchmarks/[^)]+\.png)\)", text))):
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / picture)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Turns links to other files of the tree into links to their pages, or to the source."""
    uri = page.file.src_uri
    if uri in FOUND_LATER:
        page.meta["search"] = {"boost": 0.1}
    origin = next((name for name, moved in MOVED.items() if moved == uri), f"docs/{uri}")

    def lead(match: re.Match[str]) -> str:
        target = normpath(f"{dirname(origin)}/{match[2]}").lstrip("/")
        inside = MOVED.get(target) or target.removeprefix("docs/")
        if files.get_file_from_path(inside):
            return match[1] + relpath(inside, dirname(uri) or ".")
        if (ROOT / target).exists():
            return match[1] + SOURCE + target
        # MkDocs names it in its own warning.
        return match[0]

    return "".join(
        part if number % 2 else LINK.sub(lead, part)
        for number, part in enumerate(re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL))
    )

"""Hooks of `mkdocs build`: tables from the code, notebooks as pages, and files of the repository that pages point to.

A page says where a table goes (`<!-- reference: commands -->`), so it can also be read in the repository. A link that
leaves docs/ (`../examples/quickstart.py`) works there as it is; on the site it leads to a copy.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))

import notebooks  # noqa: E402
import reference  # noqa: E402

LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?\)")
NAME = re.compile(r"(?<!`)`(peerbayes(?:\.\w+)+)`(?!`)")
MARK = re.compile(r"<!-- reference: ([\w-]+) -->")
CHANGES = "changelog.md"


def on_files(files: Any, config: Any) -> Any:
    """Add the changelog, and every file outside docs/ that a page points to."""
    files.append(File.generated(config, CHANGES, abs_src_path=str(ROOT / "CHANGELOG.md")))
    for name in notebooks.names():
        source = f"examples/{name}.ipynb"
        text, pictures = notebooks.markdown(name)
        files.append(File.generated(config, f"repository/{source}", abs_src_path=str(ROOT / source)))
        files.append(File.generated(config, copy_of(source), content=text))
        for picture, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{picture}", content=content))
    for page in list(files.documentation_pages()):
        for _, target, _ in LINK.findall(page.content_string):
            found = outside(page.src_uri, target)
            if found and copy_of(found) not in files.src_uris:
                files.append(File.generated(config, copy_of(found), abs_src_path=str(ROOT / found)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in tables, send links that leave docs/ to their copies, and names in the code to their reference."""
    here = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        found = outside(here, link[2])
        if not found:
            return link[0]
        there = posixpath.relpath(copy_of(found), posixpath.dirname(here) or ".")
        return f"{link[1]}{there}{link[3] or ''})"

    markdown = MARK.sub(lambda mark: reference.SECTIONS[mark[1]](), LINK.sub(moved, markdown))
    return NAME.sub(r'<autoref optional identifier="\1"><code>\1</code></autoref>', markdown)


def outside(page: str, target: str) -> str:
    """Where in the repository a link of a page leads, if to a file outside docs/; else nothing."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return "" if path.startswith(("docs/", "..")) or not (ROOT / path).is_file() else path


def copy_of(path: str) -> str:
    """Where the site has a file of the repository; a notebook is a page there."""
    if path.startswith("examples/") and path.endswith(".ipynb"):
        return f"notebooks/{Path(path).stem}.md"
    return CHANGES if path == "CHANGELOG.md" else f"repository/{path}"

"""How to cite: CITATION.cff has what its format asks for, and the README says the same."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Of the Citation File Format, version 1.2.0: what is needed, and what else may be said.
NEEDED = {"cff-version", "message", "title", "authors"}
FURTHER = {"type", "version", "license", "keywords", "references", "url", "abstract", "date-released"}
OF_REFERENCE = {"type", "title", "authors", "year", "url", "identifiers", "scope"}


@pytest.fixture(scope="module")
def citation():
    """The content of CITATION.cff."""
    return pytest.importorskip("yaml").safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_file_has_what_its_format_asks_for(citation):
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert set(citation) >= NEEDED and set(citation) <= NEEDED | FURTHER
    assert citation["authors"] == [{"name": "peerbayes developers"}]
    [paper] = citation["references"]
    assert {"type", "title", "authors"} <= set(paper) <= OF_REFERENCE and paper["type"] == "article"
    assert all(set(author) == {"family-names", "given-names"} for author in paper["authors"])


def test_it_says_what_the_project_says(citation):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["version"] == project["version"] and citation["license"] == project["license"]


def test_the_readme_cites_the_same(citation):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [entries] = re.findall(r"```bibtex\n(.*?)```", text, flags=re.DOTALL)
    plain = re.sub(r"\{\\'(\w)\}", lambda accent: ACUTE[accent[1]], entries)
    [paper] = citation["references"]
    authors = " and ".join(
        f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]
    )
    for value in (paper["title"], authors, str(paper["year"]), citation["title"], citation["version"]):
        assert f"{{{value}}}" in plain
    assert paper["identifiers"][0]["value"] == f"arXiv:{re.search('eprint = .(.*?)[}]', plain)[1]}"


ACUTE = {"e": "é", "a": "á"}

"""What the documentation shows, runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page, tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(example, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        check=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_files_that_the_readme_names_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in re.findall(r"(?:tests|benchmarks|examples)/\w+\.py", text):
        assert (ROOT / path).exists(), path


def test_modules_are_in_the_architecture():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for module in (ROOT / "src" / "peerbayes").iterdir():
        name = module.name.removesuffix(".py")
        if not name.startswith(("_", "py.typed")):
            assert f"`{name}" in text, f"{name} has no place in docs/architecture.md"

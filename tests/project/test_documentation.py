"""What the documentation shows, runs; what it points to, is there."""

import os
import re
import shutil
import subprocess
import sys
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path

import pytest

from shared.browsing import NAMES as BROWSERS
from shared.commands import HANG

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import notebooks  # noqa: E402

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ONE_THREAD = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # the machine may be busy
ONE_THREAD |= {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}

# A warning of MLflow's own database classes.
MLFLOW = "ignore:The ``noload`` loader strategy"


SAVED = re.compile(r"[Ss]ave\s+this\s+as\s+`[\w.-]+`[^`]*?\n\n```\w+\n.*?```", flags=re.DOTALL)


def code_of(page):
    """What a page says in Python, but for files to be saved: its commands run those (test_documented_commands.py)."""
    text = SAVED.sub("", page.read_text(encoding="utf-8"))
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


def need_parts(code):
    """Skip where a package that the code imports, or that what it calls needs, is not installed."""
    named = set(re.findall(r"^\s*(?:import|from) (\w+)", code, flags=re.MULTILINE))
    named |= {"plotly"} if ".report(" in code or "import report" in code else set()
    named |= {"msgspec", "cryptography"} if "peerbayes.peer" in code else set()
    named |= {"mlflow", "alembic"} if "MLflow(" in code else set()
    named |= {name for name, call in (("tensorboard", "TensorBoard("), ("wandb", "WandB(")) if call in code}
    for name in sorted(named):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def run(words, folder):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", MLFLOW, *words],
        cwd=folder, capture_output=True, text=True, env=ONE_THREAD, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page)], ids=name_of)
def test_the_code_of_a_page_runs(page, tmp_path):
    need_parts(code_of(page))
    run(["-c", code_of(page)], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=name_of)
def test_an_example_runs(example, tmp_path):
    need_parts(example.read_text(encoding="utf-8"))
    folder = [str(tmp_path)] if "sys.argv" in example.read_text(encoding="utf-8") else []
    assert run([str(example), *folder], tmp_path)


# --- notebooks

FIGURES = 2  # in each notebook, at least
LARGEST = 300_000  # bytes of a notebook with its outputs

# What would tell where or when a notebook was run.
TRACES = re.compile(r"/(?:root|home|tmp|work|usr|opt|Users)/|[A-Z]:\\\\|\b20\d\d-\d\d-\d\d\b")


@pytest.mark.parametrize("name", notebooks.names())
def test_a_notebook_has_its_outputs_and_nothing_else(name):
    pytest.importorskip("nbformat").validate(notebook := notebooks.read(name))
    again = f"run `python tools/notebooks.py {name}`"
    assert notebook.metadata.get("peerbayes") == {"sources": notebooks.sources_digest(notebook)}, again
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), again
    pictures = [content for _, content in notebooks.images(notebook)]
    assert len(pictures) >= FIGURES and all(content[:4] == b"\x89PNG" for content in pictures)
    assert any(text.strip() for text in notebooks.texts(notebook))
    content = notebooks.FOLDER.joinpath(f"{name}.ipynb").read_text(encoding="utf-8")
    plain = re.sub(r'"image/png": "[^"]*"', "", content)
    assert len(content) < LARGEST and TRACES.search(plain) is None


@pytest.mark.long
@pytest.mark.parametrize("name", notebooks.names())
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Jupyter's own
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_notebook_runs_to_its_outputs(name):
    for package in ("nbformat", "nbclient", "ipykernel", "plotly", "kaleido"):
        pytest.importorskip(package)
    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("figures are drawn by a browser")
    assert notebooks.differences(notebooks.read(name), notebooks.executed(name)) == []


def test_notebooks_with_other_outputs_are_told_apart():
    pytest.importorskip("nbformat")
    stored = notebooks.read("researcher")
    assert notebooks.differences(stored, deepcopy(stored)) == []
    fresh = deepcopy(stored)
    [text] = [cell for cell in fresh.cells if "std_over_peers" in cell.source]
    text.outputs[0].data["text/plain"] = text.outputs[0].data["text/plain"].replace("0.271", "0.371")
    assert len(notebooks.differences(stored, fresh)) == 1
    text.outputs.clear()
    assert notebooks.differences(stored, fresh)
    stored.cells[0].source += "."
    assert "cells have changed since the outputs were made" in notebooks.differences(stored, stored)


def test_the_result_in_the_readme_is_the_notebooks():
    """The table and the picture of the first screen."""
    pytest.importorskip("nbformat")
    notebook, readme = notebooks.read("researcher"), (ROOT / "README.md").read_text(encoding="utf-8")
    texts = list(notebooks.texts(notebook))
    [latex] = [text for text in texts if "\\begin{tabular}" in text]
    [names, _, cells] = [
        line.removesuffix(r" \\").split(" & ") for line in latex.splitlines() if "&" in line or "mid" in line
    ]
    means = {
        name: re.sub(r"\\textbf|[{}$]", "", cell).replace(r"\pm", "±")
        for name, cell in zip(names, cells, strict=True)
    }
    [pooled] = [text for text in texts if text.startswith("test_rc")]
    expected = [means[name] for name in ("local", "crc", "auto")] + re.findall(r"0\.\d{3}", pooled)
    assert re.findall(r"^\| \**(0\.\d{3}(?: ± 0\.\d{3})?)\** \|", readme, flags=re.MULTILINE) == expected
    [summary] = [text for text in texts if "std_over_peers" in text]
    spread = dict(zip(summary.split("\n")[0].split(), summary.splitlines()[-1].split()[1:], strict=True))
    assert f"a standard deviation of {spread['std_over_peers']} |" in readme
    picture = dict(notebooks.images(notebook))["result"]
    assert (ROOT / "docs" / "images" / "result.png").read_bytes() == picture
    assert "(docs/images/result.png)" in readme


# --- pages


def test_every_example_is_on_the_page_of_examples():
    text = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    for example in (ROOT / "examples").iterdir():
        if example.suffix in (".py", ".ipynb"):
            assert f"(../examples/{example.name})" in text, example.name


def headings(page):
    """The anchors of a page, as both the site and a repository's viewer make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        there = (page.parent / target) if target else page
        assert there.exists(), target
        assert not anchor or anchor in headings(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"(?<![\w/])(?:tests|benchmarks|examples)/\w+\.(?:py|ipynb)", text):
        assert (ROOT / path).exists(), path


def test_folders_are_in_the_architecture():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for module in (ROOT / "src" / "peerbayes").iterdir():
        name = module.name.removesuffix(".py")
        if not name.startswith(("_", "py.typed")):
            assert f"`{name}`" in text, f"{name} has no place in docs/architecture.md"


def test_the_architecture_is_short_and_shown():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1500
    assert len(re.findall(r"!\[[^]]+\]\(images/\w+\.svg\)", text)) == 2


def test_every_decision_is_in_the_index_under_its_title():
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    for page in folder.glob("*.md"):
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert page.name == "index.md" or f"[{title}]({page.name})" in index, page.name


def test_the_picture_of_a_study_is_of_the_code_beside_it():
    pytest.importorskip("playwright")
    import screenshots

    [code] = [text for text in screenshots.python_blocks(ROOT / "README.md") if "pb.study(" in text]
    assert screenshots.IN_README == "pb.study(" and '"curves.html"' in code
    assert "README" in screenshots.of_study.__code__.co_names  # nothing else is drawn

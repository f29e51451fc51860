"""What the documentation shows, runs; what it points to, is there."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from shared.commands import HANG

ROOT = Path(__file__).parents[2]
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


@pytest.mark.long
@pytest.mark.parametrize("notebook", sorted((ROOT / "examples").glob("*.ipynb")), ids=name_of)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Jupyter's own
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_notebook_runs(notebook, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    content = nbformat.read(notebook, 4)
    nbformat.validate(content)
    assert not any(cell.get("outputs") for cell in content.cells), "outputs are not stored"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            patch.setenv(name, "1")
        client = nbclient.NotebookClient(
            content, timeout=int(HANG), kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
    assert any(cell.get("outputs") for cell in content.cells)


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

"""What users may rely on, and how the tree is built."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import peerbayes

SOURCE = Path(peerbayes.__file__).parent

# Which folders a folder may import, lazily or not, and not only for types.
MAY_IMPORT = {
    "errors": "",
    "data": "errors",
    "network": "errors data",
    "model": "errors data",
    "estimators": "errors data model",
    "learning": "errors data model network",
    "privacy": "errors data model network",
    "peer": "errors data model network learning privacy",
    "simulation": "errors data model network learning privacy estimators",
    "audit": "errors data model network learning privacy estimators simulation peer",
    "experiments": "errors data model network learning estimators simulation",
    "report": "errors data model network learning simulation peer",
    "callbacks": "errors data simulation",
    "cli": "errors data model network learning privacy estimators simulation peer audit experiments report",
}


def test_public_names_are_pinned():
    assert sorted(peerbayes.__all__) == [
        "AODE", "Attack", "AutoBayes", "BayesNetClassifier", "Column", "ConfigurationError", "FalseReport", "GA2M",
        "KDB", "LDA", "MixedNB", "ModelFileDamaged", "ModelFileError", "ModelFileTooNew",
        "PartitionError", "PeerbayesError", "Privacy", "QDA", "Run", "Schema", "SchemaError", "SchemaMismatch",
        "Statistics", "StatisticsMismatch", "StructureError", "Study", "TAN", "TopologyError", "check", "each", "load",
        "plan", "prior_knowledge", "simulate", "study",
    ]  # fmt: skip
    assert all(hasattr(peerbayes, name) for name in peerbayes.__all__)


MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}


def imports(path):
    """Return the modules of ours that a file imports, also inside functions and for types only."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "peerbayes":
            module = node.module.removeprefix("peerbayes").removeprefix(".")
            for alias in node.names:
                name = f"{module}.{alias.name}".removeprefix(".")
                imported.add(name if name in MODULES else module or "__init__")
    return imported


def test_folders_import_only_what_they_may():
    folders = {name.partition(".")[0] for name in MODULES} - {"__init__", "__main__"}
    assert folders == set(MAY_IMPORT)
    for name, path in MODULES.items():
        folder = name.partition(".")[0]
        if folder in MAY_IMPORT:
            others = {module.partition(".")[0] for module in imports(path)} - {folder}
            assert others <= set(MAY_IMPORT[folder].split()), name


def test_no_two_files_import_each_other():
    imported = {name: imports(path) - {name} for name, path in MODULES.items() if name != "__init__"}
    TopologicalSorter(imported).prepare()


def test_a_file_is_found_by_its_name_alone():
    names = [path.name for path in MODULES.values() if path.name != "__init__.py"]
    assert len(set(names)) == len(names)


# An import of a test file or a conftest.py: as a statement, also in the code of a process, or by a name to patch.
OF_A_TEST = re.compile(r"""\b(?:from|import)\s+(?:test_\w+|conftest)\b|["']test_\w+\.(?!py\b)\w""")


def test_no_test_imports_a_test():
    """What tests share is in tests/shared/, and fixtures are found by pytest."""
    for path in Path(__file__).parents[1].rglob("*.py"):
        imported = OF_A_TEST.search(path.read_text(encoding="utf-8"))
        assert not imported, f"{path.name} has {imported[0]!r}; move what both need to tests/shared/"


@pytest.mark.parametrize(
    "text", ["from {} import Peers", "    import {} as them", 'monkeypatch.setattr("{}.Peers", 1)']
)
def test_every_way_to_import_a_test_is_noticed(text):
    assert OF_A_TEST.search(text.format("test_peers")) and not OF_A_TEST.search(text.format("shared.peers"))
    assert not OF_A_TEST.search("pytest tests/peer/test_peers.py 'test_peers.py'")


def loaded_by(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_is_light():
    """Heavy parts wait until they are needed; scikit-learn itself may load pandas."""
    own = loaded_by("import peerbayes") - loaded_by("import sklearn.base")
    assert not own & {"numba", "pandas", "torch", "ray", "plotly", "starlette"}


def test_small_tables_never_wait_for_the_compiler():
    assert "numba" not in loaded_by(
        "import peerbayes as pb; from sklearn.datasets import load_wine; X, y = load_wine(return_X_y=True); "
        "pb.MixedNB(calibrate=True).fit(X, y).predict(X)"
    )


def test_nothing_is_unpickled():
    for path in SOURCE.rglob("*.py"):
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert not names & {"pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve"}, path

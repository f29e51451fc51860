"""Outside `learning` nothing depends on which strategy it drives: it asks what the strategy declares, or for a plan."""

import ast
import re
from pathlib import Path

import pytest

import peerbayes
from peerbayes.learning import choice, planning, relay, strategies

SOURCE = Path(peerbayes.__file__).parent
NAMES = set(planning.names())
CLASSES = {kind.__name__ for kind in (*strategies.STRATEGIES.values(), relay.Relay, choice.Auto)}

# Names that mean other things too: an engine, a kind of column, a figure. They count where a strategy is compared.
AMBIGUOUS = {"local", "auto", "exact"}

# Comparisons and constants of something else that has a strategy's name.
OTHER_MEANINGS = {
    ("experiments/engines.py", "name == 'local'"),
    ("privacy/accounting.py", "AUTO = 'auto'"),
    ("model/candidates.py", "AUTO = 'auto'"),  # a family that peers choose
}

# Lists of strategies to run, not tests of a strategy: the demonstration runs three of them.
SHOWN = {("cli/demo.py", ("auto", "crc", "local"))}


def texts(node):
    """Return the texts that an expression consists of: one literal, or a tuple, list or set of them."""
    items = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    values = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return tuple(values) if len(values) == len(items) else ()


def offences(code, file):
    """Yield the line and the source of every test for a strategy's name or class."""
    for line, text in _tests(code, file):
        if (file, text) not in OTHER_MEANINGS:
            yield line, text


def _tests(code, file):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            named = {text for side in sides for text in texts(side)} & NAMES
            about_strategy = re.search(r"strateg|chosen|method|name", ast.unparse(node), re.IGNORECASE)
            if named - AMBIGUOUS or (named and about_strategy):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper():
            if set(texts(node.value)) & NAMES and isinstance(node.value, ast.Constant):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.MatchValue) and set(texts(node.value)) & (NAMES - AMBIGUOUS):
            yield node.value.lineno, ast.unparse(node)
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            listed = texts(node)
            if len(listed) > 1 and set(listed) <= NAMES and (file, listed) not in SHOWN:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            tested = {name.rpartition(".")[2] for name in re.findall(r"[\w.]+", ast.unparse(node.args[1]))}
            if tested & CLASSES:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("peerbayes.learning"):
            imported = {alias.name for alias in node.names}
            if imported & (
                (CLASSES - {"Relay"}) | {"STRATEGIES"}
            ):  # drivers over a tree are annotated with `Relay`
                yield node.lineno, ast.unparse(node)


def test_no_strategy_is_told_apart_outside_learning():
    met = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "learning"
        for line, text in offences(path.read_text(encoding="utf-8"), path.relative_to(SOURCE).as_posix())
    ]
    assert met == []


@pytest.mark.parametrize(
    "code",
    [
        "if name == 'crc': pass",
        "strategy = settings.strategy\nif strategy != 'local': pass",
        "if chosen in ('relay', 'auto'): pass",
        "DEFENDED = ('exact', 'crc')",
        "SILENT = 'local'",
        "if name == 'exact': pass",
        "match name:\n    case 'dsgd': pass",
        "isinstance(strategy, Exact | CRC)",
        "isinstance(strategy, (strategies.Tracking, int))",
        "from peerbayes.learning.strategies import CRC",
    ],
)
def test_the_scan_sees(code):
    assert list(offences(code, "any.py"))


@pytest.mark.parametrize("code", ["engine == 'local'", "kind == 'auto'", "simulate(X, y, strategy='exact')"])
def test_the_scan_leaves_alone(code):
    assert not list(offences(code, "any.py"))

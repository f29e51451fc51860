"""A setting is declared once: everything else about it follows, and no other place repeats its default or a list."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import peerbayes
from peerbayes.data.declarations import NEEDED, declarations
from peerbayes.peer.agreement import terms
from peerbayes.peer.state import peer_settings
from peerbayes.privacy.accounting import Privacy
from peerbayes.simulation.settings import SimulationArguments
from peerbayes.simulation.sharded.driver import ShardedArguments

SOURCE = Path(peerbayes.__file__).parent
TOOLS = Path(__file__).parents[2] / "tools"

# --- a setting more, of a simulation, an agreement and a peer

HELP = "rounds that a dummy waits"

# By what has the setting: the files to edit, each with a line, and what stands before it there.
EDITS = {
    "simulation": {
        "simulation/settings.py": (
            "    evaluate_every: Annotated[int, EVALUATE_EVERY]\n",
            f'    endurance: Annotated[int, Setting(3, whole_number(1, 9), "{HELP}")]\n',
        ),
        "simulation/run.py": (
            "    settings, provenance = SimulationSettings(arguments), result.made()\n",
            '    provenance["endurance"] = str(settings.endurance)\n',
        ),
    },
    "agreement": {
        "peer/agreement/terms.py": (
            "    clip: float | None = shared.CLIP.field()\n",
            f'    endurance: int = Setting(3, whole_number(1, 9), "{HELP}").field(**ADDED)\n',
        ),
        "cli/network.py": (
            '    yield f"  predict    {terms.label}"\n',
            '    yield f"  endurance   {terms.endurance}"\n',
        ),
    },
    "peer": {
        "peer/state/peer_settings.py": (
            "    # fmt: on\n",
            f'    endurance: float = Setting(3.0, real_number("a positive number", above=0.0), "{HELP}").field()\n',
        ),
    },
}

SHOWN = """
import inspect, json, sys
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

import peerbayes as pb
import reference
from peerbayes.cli.app import app
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.peer_settings import Settings
from peerbayes.simulation.sharded import simulate_shards


def command(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.stdout if done.exit_code == 0 else done.stderr


def refusal(function, *arguments, **settings):
    try:
        function(*arguments, **settings)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def wrong(name, text):
    path = Path(name)
    path.write_text(text)
    return path


X, y = np.arange(40.0)[:, None] % 7, np.arange(40) % 2
quick = {"peers": 4, "rows_per_peer": 5, "rounds": 1, "references": False}
run = pb.simulate(X, y, **quick, endurance=5)
few, more = Terms("n", "y"), Terms("n", "y", endurance=4)
command("network", "new", "net", "--name", "n", "--label", "y", "--endurance", 7)
command("peer", "request", "a", "--name", "a", "--address", "h:1", "--data", "x.csv", "--endurance", 8)
shown = {
    "signature": inspect.signature(pb.simulate).parameters["endurance"].default,
    "docstring": inspect.getdoc(pb.simulate),
    "recorded": run.configuration["endurance"],
    "used": run.made["endurance"],
    "refused": refusal(pb.simulate, X, y, endurance=0),
    "by line": command("simulate", wrong("run.toml", "[simulation]\\npeers = 4\\nendurance = 0\\n")),
    "--set": command("simulate", wrong("good.toml", "[simulation]\\npeers = 4\\n"), "--set", "endurance=10"),
    "shards": refusal(simulate_shards, X, y, endurance=5),
    "simulation reference": reference.simulation_table(),
    "digest": few.digest,
    "other digest": more.digest,
    "differences": few.differences(more),
    "agreement file": more.to_toml(),
    "read back": Terms.parse(more.to_toml(), "here").endurance,
    "agreement by line": refusal(Terms.parse, 'network = "n"\\nlabel = "y"\\nendurance = 10\\n', "here"),
    "inspect": command("network", "inspect", "net"),
    "agreement reference": reference.terms_table(),
    "commands reference": reference.command_tables(),
    "peer file": Path("a/peer.toml").read_text(),
    "peer": Home(Path("a")).settings().endurance,
    "peer by line": refusal(Settings.read, wrong("peer.toml", "name = 'a'\\nendurance = true\\n")),
    "peer reference": reference.peer_table(),
}
json.dump(shown, sys.stdout)
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What a copy of the package with the three settings shows of them."""
    for needed in ("cryptography", "msgspec"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(SOURCE, folder / "peerbayes")
    for edits in EDITS.values():
        for name, (before, line) in edits.items():
            path = folder / "peerbayes" / name
            text = path.read_text(encoding="utf-8")
            assert text.count(before) == 1, f"{name}: {before!r}"
            path.write_text(text.replace(before, before + line), encoding="utf-8")
    (folder / "work").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SHOWN], cwd=folder / "work", capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(TOOLS)])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("place", EDITS)
def test_a_setting_is_added_in_two_files_or_fewer(place):
    assert len(EDITS[place]) <= 2


@pytest.mark.long
def test_a_setting_of_a_simulation_is_known_everywhere(shown):
    assert shown["signature"] == 3 and shown["recorded"] == 5 and shown["used"] == "5"
    assert f"\nendurance       {HELP}\n" in shown["docstring"]
    expected = "endurance is 0; expected a whole number of 1 or more"
    assert shown["refused"] == f"ValueError: {expected}"
    assert shown["by line"] == f"peerbayes: run.toml, line 3: {expected}\n"
    assert "--set endurance=10: endurance is 10; expected a whole number from 1 to 9" in shown["--set"]
    assert shown["shards"].startswith("ValueError: endurance: not for shards")
    assert f"| `endurance` | a whole number of 1 or more | `3` | {HELP} |" in shown["simulation reference"]


@pytest.mark.long
def test_a_setting_of_an_agreement_is_known_everywhere(shown):
    assert shown["digest"] == terms.Terms("n", "y").digest != shown["other digest"]
    assert shown["differences"] == ["endurance: 3 against 4"]
    assert f"\nendurance = 4  # {HELP}\n" in shown["agreement file"] and shown["read back"] == 4
    expected = "endurance is 10; expected a whole number from 1 to 9"
    assert shown["agreement by line"] == f"TermsError: here, line 3: {expected}"
    assert "  endurance   7\n" in shown["inspect"]  # `network new --endurance 7`
    assert f"| `endurance` | a whole number of 1 or more | `3` | {HELP} |" in shown["agreement reference"]
    assert f"| `--endurance` |  | {HELP.capitalize()}. |" in shown["commands reference"]


@pytest.mark.long
def test_a_setting_of_a_peer_is_known_everywhere(shown):
    assert f"\nendurance = 8.0  # {HELP}\n" in shown["peer file"] and shown["peer"] == 8
    expected = "endurance is True; expected a positive number"
    assert shown["peer by line"] == f"ConfigurationError: peer.toml, line 2: {expected}"
    assert f"| `endurance` | a positive number | `3.0` | {HELP} |" in shown["peer reference"]


# --- nothing is said twice

DECLARED = (
    SimulationArguments, ShardedArguments, Privacy, terms.Terms, terms.Limits, terms.Privacy, terms.Robust,
    peer_settings.Settings,
)  # fmt: skip

# Folders that can ask a declaration. Those below have functions with defaults of their own; a cell of `experiments`
# is part of the key of a published result, whatever the defaults of a simulation are.
ABOVE = ("simulation", "peer", "audit", "report", "cli")

# Names that mean other things too.
AMBIGUOUS = {"seed"}

# The paper's settings, what runs had before they recorded it, and lists that say something of their settings.
MEANT = {
    ("cli", "start = 'uniform'"),
    ("cli", "engine = 'local'"),
    ("report", "family = 'naive-bayes'"),
    ("report", "evaluate_every = 1"),
    ("peer", "epsilon, delta, min_rows, secure_sum, combine, guard, evaluation, figures"),
    ("simulation", "messages = 'float64'"),
    ("simulation", "messages, exchanges, faults, penalty, hold_out, select, patience, structure"),
    (
        "audit",
        "message_loss, message_delay, peers_down, change_every, local_steps, objective, faults, messages, exchanges",
    ),
    ("audit", "evaluate_every, evaluate_rows, device, dtype, secure_sum, privacy, robust, attack"),
}

# So many names of settings in one list are a list of settings.
LIST = 5


def defaults():
    """The defaults of each name."""
    values = {}
    for cls in DECLARED:
        for name, setting in declarations(cls).items():
            values.setdefault(name, []).append(setting.default)
    return values


DEFAULTS = defaults()


def is_default(name, node):
    """Whether an expression is a literal that equals a default; None says nothing."""
    if name not in DEFAULTS or name in AMBIGUOUS or not isinstance(node, ast.Constant) or node.value is None:
        return False
    return any(
        default is not NEEDED and type(default) is type(node.value) and default == node.value
        for default in DEFAULTS[name]
    )


def repetitions(code):
    """Yield the line and the text of every default and every list of settings that is written out."""
    for node in ast.walk(ast.parse(code)):
        pairs = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            positional = [*node.args.posonlyargs, *node.args.args]
            pairs += zip(
                positional[len(positional) - len(node.args.defaults) :], node.args.defaults, strict=True
            )
            pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            pairs = [(argument.arg, default) for argument, default in pairs]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            pairs = [(node.target.id, node.value)]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get" and len(node.args) == 2:
            pairs = [(getattr(node.args[0], "value", None), node.args[1])]
        for name, default in pairs:
            if is_default(name, default):
                yield node.lineno, f"{name} = {ast.unparse(default)}"
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            constant = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target).isupper()
            items = node.value.keys if constant else []  # others are what a call or a report has
        else:
            items = getattr(node, "elts", [])
        names = [item.value for item in items if isinstance(item, ast.Constant) and item.value in DEFAULTS]
        if len(names) >= LIST:
            yield node.lineno, ", ".join(names)


def test_no_default_and_no_list_of_settings_is_repeated():
    met = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for folder in ABOVE
        for path in sorted((SOURCE / folder).rglob("*.py"))
        for line, text in repetitions(path.read_text(encoding="utf-8"))
        if (folder, text) not in MEANT
    ]
    assert met == []


@pytest.mark.parametrize(
    "code",
    [
        "def simulate(X, rounds=64): pass",
        "def simulate(*, lr: float = 0.05): pass",
        "class Settings:\n    family: str = 'naive-bayes'",
        "total = settings.get('rounds', 64)",
        "SETTINGS = {'family': str, 'peers': int, 'lr': float, 'start': str, 'seed': int}",
        "NAMES = ('family', 'strategy', 'start', 'rounds', 'lr')",
    ],
)
def test_the_scan_sees(code):
    assert list(repetitions(code))


@pytest.mark.parametrize(
    "code", ["def wait(rounds=8): pass", "peers: int = settings.peers", "('lr', 'start')"]
)
def test_the_scan_leaves_alone(code):
    assert not list(repetitions(code))

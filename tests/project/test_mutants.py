"""The lists of mutants fit the code, and the script that runs them tells a killed one from a survivor."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import mutants  # noqa: E402

LISTED = [mutant for path in sorted(mutants.AREAS.glob("*.toml")) for mutant in mutants.mutants_of(path)]


@pytest.mark.long
def test_every_mutant_fits_the_code():
    mutants.check(LISTED)
    assert len(LISTED) >= 250


def test_few_are_listed_as_equivalent_and_each_says_why():
    equivalent = [mutant for mutant in LISTED if mutant.equivalent]
    assert len(equivalent) <= 0.05 * len(LISTED)
    assert all(len(mutant.equivalent) > 20 for mutant in equivalent)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("x = 9", "x = 1", "occurs 0 times"),
        ("1", "2", "occurs 2 times"),
        ("y = 1", "y = 1", "changes nothing"),
        ("y = 1", "y = = 1", "invalid syntax"),
    ],
)
def test_a_mutant_that_does_not_fit_is_refused(old, new, reason):
    mutant = mutants.Mutant("area", 1, "file.py", old, new, ("tests/test_x.py",))
    with pytest.raises(mutants.BadList, match=reason):
        mutant.mutated("x = 1\ny = 1\n")


LIST = """
tests = ["tests/cli/test_cli.py::test_help_and_version"]

[[mutant]]
file = "src/peerbayes/cli/app.py"
old = 'version("peerbayes")'
new = 'version("numpy")'

[[mutant]]
file = "src/peerbayes/estimators/prediction.py"
old = "argmin"
new = "argmax"
"""


@pytest.mark.long
def test_a_killed_mutant_is_told_from_a_survivor(tmp_path, monkeypatch, capsys):
    """One that the test of the version notices, and one that it does not look at."""
    (tmp_path / "two.toml").write_text(LIST)
    monkeypatch.setattr(mutants, "AREAS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--workers", "1"])
    assert mutants.main() == 1
    printed = capsys.readouterr().out
    assert "survived: two 2, src/peerbayes/estimators/prediction.py: 'argmin' -> 'argmax'" in printed
    assert [line.split() for line in printed.splitlines() if line.startswith("two ")] == [
        ["two", "2", "1", "0", "1"]
    ]

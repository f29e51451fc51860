"""The choice of a family by sums: who judges, who learns, and that nothing depends on who holds which rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peerbayes.data.schema import Schema
from peerbayes.data.table import Table
from peerbayes.errors import StructureError
from peerbayes.learning import family_choice
from peerbayes.learning.family_choice import (
    SHARE,
    Contest,
    Entrant,
    FamilyChoice,
    Judged,
    agreed_choice,
    entered,
    family_sums,
    judging,
    together,
)
from peerbayes.learning.integer_sums import exact_sum
from peerbayes.model.candidates import CANDIDATES


def table(rows=400, seed=0, missing=False):
    """Three numbers of which two tell the class together, and a text."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(rows, 3)), columns=["a", "b", "c"])
    X["text"] = rng.choice(["x", "y"], rows)
    y = (
        (X["a"] * X["b"] + 0.5 * (X["text"] == "x") + 0.3 * rng.normal(size=rows) > 0.2)
        .to_numpy()
        .astype(int)
    )
    if missing:
        X.loc[rng.random(rows) < 0.1, ["a", "c"]] = np.nan
        X.loc[rng.random(rows) < 0.1, "text"] = None
    return X, y


def contest_of(X, y, sizes, names=tuple(CANDIDATES), **more):
    """Return the entrants, and what they have in common, of rows that peers hold one after the other."""
    rows = {}
    for bins in (None, 16, 32, 64):
        schema = Schema.infer(X, y, bins=bins)
        rows[bins] = Entrant(schema, schema.encode(X))
    entrants, _ = entered(rows)
    judges, sizes = judging(rows[None].schema, Table.of(X)), np.asarray(sizes)
    common = Contest(y, np.ones(len(y)), sizes, judges, sizes.size, 0.05, **more)
    return {name: entrants[name] for name in names}, common


def chosen(X, y, sizes, names=tuple(CANDIDATES), **more):
    entrants, contest = contest_of(X, y, sizes, names, **more)
    return agreed_choice(family_sums(entrants, contest), len(sizes))[0]


def totals(sums, peers):
    """Return the sums that a choice takes, in their order."""
    taken = []
    try:
        terms = next(sums)
        while True:
            taken.append(exact_sum(terms, peers))
            terms = sums.send(taken[-1])
    except StopIteration:
        return taken


@pytest.mark.parametrize("missing", [False, True])
def test_who_holds_which_rows_does_not_matter(missing):
    X, y = table(missing=missing)
    order = np.random.default_rng(1).permutation(len(y))
    alone = chosen(X, y, [400])
    for rows, sizes in (
        (np.arange(400), [1, 99, 0, 200, 100]),
        (np.argsort(y, kind="stable"), [200, 200]),
        (order, [133, 267]),
    ):
        other = chosen(X.iloc[rows], y[rows], sizes)
        assert (other.chosen, other.rows) == (alone.chosen, alone.rows)
        for mine, theirs in zip(other.candidates, alone.candidates, strict=True):
            assert mine.problem == theirs.problem
            assert mine.log_loss == pytest.approx(theirs.log_loss, abs=1e-6)


def test_about_a_fifth_of_the_rows_judges_and_equal_rows_stay_together():
    X, y = table(5000)
    schema = Schema.infer(X, y)
    judges = judging(schema, Table.of(X))
    assert judges.mean() == pytest.approx(SHARE, abs=0.03)
    for label in (0, 1):
        assert judges[y == label].mean() == pytest.approx(SHARE, abs=0.04)
    twice = pd.concat([X, X[::-1]], ignore_index=True)
    np.testing.assert_array_equal(judging(schema, Table.of(twice)), np.concatenate([judges, judges[::-1]]))


@pytest.mark.parametrize("name", ["naive-bayes", "qda", "tan", "ga2m", "aode"])
def test_nothing_is_learned_from_rows_that_judge(name, monkeypatch):
    """Other labels of those rows change nothing but their own loss, the last number of a step."""
    monkeypatch.setattr(family_choice, "MOST_STEPS", 3)
    X, y = table()
    entrants, contest = contest_of(X, y, [150, 250], [name])
    flipped = replace(contest, labels=np.where(contest.judges, 1 - y, y))
    ours, theirs = (totals(family_sums(entrants, one), 2) for one in (contest, flipped))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        np.testing.assert_array_equal(mine[:-1], other[:-1])
    assert not np.array_equal(ours[-1], theirs[-1])


@given(
    st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=3), min_size=1, max_size=4), st.integers(1, 3)
)
@settings(max_examples=30)
def test_generators_side_by_side_have_the_sums_that_each_has_alone(steps, peers):
    """Each adds its own number of numbers to a running sum, for as many steps as it has."""

    def adding(numbers):
        running = np.zeros(2)
        for number in numbers:
            terms = np.array([[number * (peer + 1.0), running[0]] for peer in range(peers)])
            running = running + (yield terms.__getitem__)
        return running.tolist()

    def driven(sums):
        count, total = 0, None
        try:
            while True:
                terms = sums.send(total)
                count, total = count + 1, exact_sum(terms, peers)
        except StopIteration as end:
            return end.value, count

    joined, count = driven(together({str(k): adding(numbers) for k, numbers in enumerate(steps)}))
    assert joined == {str(k): driven(adding(numbers))[0] for k, numbers in enumerate(steps)}
    assert count == max(map(len, steps))


def test_a_planted_pair_takes_a_family_with_pairs_and_independent_columns_do_not():
    rng = np.random.default_rng(3)
    bands = rng.normal(size=(1500, 3))
    y = ((np.abs(bands[:, 0]) - 0.7) * bands[:, 1] > 0).astype(int)
    assert chosen(pd.DataFrame(bands, columns=list("abc")), y, [500] * 3).chosen == "ga2m"
    independent, y = rng.normal(size=(2500, 6)), rng.integers(0, 2, 2500)
    independent[:, 0] += 0.8 * y
    choice = chosen(pd.DataFrame(independent, columns=list("abcdef")), y, [500] * 5)
    assert choice.chosen in ("naive-bayes", "lda")
    assert choice.reason.startswith(f"{choice.chosen} ({CANDIDATES[choice.chosen].sentence}): log loss ")


def test_candidates_that_cannot_take_part_are_listed_with_the_reason(monkeypatch):
    X, y = table()
    monkeypatch.setattr(family_choice, "MOST_NUMBERS", 300)
    choice = chosen(X, y, [200, 200])
    problems = {judged.name: judged.problem for judged in choice.candidates if judged.log_loss is None}
    assert "aode" in problems and "numbers, in every message; at most 300 are judged" in problems["aode"]
    assert choice.chosen not in problems and len(choice.candidates) == len(CANDIDATES)
    monkeypatch.setattr(family_choice, "MOST_NUMBERS", 10)
    with pytest.raises(
        StructureError, match=r"no family takes these rows: .*: its statistics are .* at most 10 are judged"
    ):
        chosen(X, y, [200, 200])


def test_crosses_of_very_many_columns_are_not_judged(monkeypatch):
    monkeypatch.setattr(family_choice, "MOST_SUMMED", 500)
    choice = chosen(*table(), [200, 200], ["naive-bayes", "ga2m"])
    assert choice.chosen == "naive-bayes" and "no other family takes these rows" in choice.reason
    assert "from which crosses are chosen" in choice.candidates[1].problem


def test_few_rows_take_the_smallest_family():
    choice = chosen(*table(60), [30, 30])
    assert choice.chosen == "naive-bayes" and choice.rows < 30
    assert choice.reason.endswith("fewer than 30, so the smallest family is taken")


def test_one_peer_says_which_links_all_take():
    """Where it is none of the driver's peers, the others add nothing, and columns have no parents."""
    X, y = table()
    for proposer, linked in ((0, True), (1, True), (None, False)):
        entrants, contest = contest_of(X, y, [200, 200], ["tan"], proposer=proposer)
        structure = totals(family_sums(entrants, contest), 2)[2]
        assert structure.any() == linked


def test_a_choice_survives_json():
    choice = FamilyChoice(
        "tan", "why", 31.0, (Judged("lda", 0.5), Judged("tan", 0.4), Judged("aode", None, "large"))
    )
    assert FamilyChoice.from_json(choice.to_json()) == choice
    frame = choice.frame()
    assert list(frame["candidate"]) == ["tan", "lda", "aode"] and list(frame["chosen"]) == [
        True,
        False,
        False,
    ]
    assert choice.family == "tan"

"""The structure of a Bayesian network as a figure: where columns are drawn, and that arrows are its parents."""

import json
import re
import sys

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerbayes import KDB, TAN, BayesNetClassifier
from peerbayes.errors import PlotlyMissing
from peerbayes.report import figures
from peerbayes.report import structure_figure as drawing
from peerbayes.report.page import STATIC
from peerbayes.report.structure_figure import DRAWN, NAMED, children, lanes, structure, vertical_order
from peerbayes.simulation.view import Structure, View
from shared.report_runs import HOSTILE, mixed, numbers, run_of, strings


@st.composite
def networks(draw, most=1, columns=60):
    """Parents of columns in any order, up to `most` each."""
    many = draw(st.integers(1, columns))
    order = draw(st.permutations(range(many)))
    parents = [()] * many
    for place in range(1, many):
        own = draw(st.sets(st.integers(0, place - 1), max_size=most))
        parents[order[place]] = tuple(sorted(order[one] for one in own))
    return tuple(parents)


@given(networks(most=3, columns=30))
def test_arrows_cross_neither_columns_nor_their_names(parents):
    """In its line a column has nothing right of it: no other column, and no lane that goes on."""
    from_top = vertical_order(parents)
    lane = lanes(parents, from_top)
    line = {column: place for place, column in enumerate(from_top)}
    assert sorted(from_top) == list(range(len(parents)))
    for above, below in enumerate(children(parents)):
        for child in below:
            assert line[above] < line[child] and lane[above] < lane[child]
        last = max((line[child] for child in below), default=line[above])
        for column in from_top[line[above] + 1 : last + 1]:
            assert lane[column] > lane[above]


@given(networks(columns=40))
def test_the_lanes_of_a_tree_are_its_levels_and_arrows_do_not_cross(parents):
    from_top = vertical_order(parents)
    lane = lanes(parents, from_top)
    assert all(lane[j] == (lane[own[0]] + 1 if own else 0) for j, own in enumerate(parents))
    held = []  # depth first: a column's parent is among those that the last one stands under
    for column in from_top:
        while held and (not parents[column] or held[-1] != parents[column][0]):
            held.pop()
        assert not parents[column] or held
        held.append(column)


def drawn_arrows(spec):
    """[E, 2] (lane, line) where arrows begin, and where they end."""
    links = next(trace for trace in spec["data"] if trace["meta"]["role"] == "links")
    x, y = (numbers(links[key]).reshape(-1, 8)[:, :7] for key in ("x", "y"))
    return x, y


def drawn_columns(spec):
    """(lane, line) -> kind and the text of the pointer."""
    return {
        (float(x), float(y)): (trace["meta"]["role"], told)
        for trace in spec["data"]
        if trace["meta"]["role"] in ("continuous", "discrete")
        for x, y, told in zip(numbers(trace["x"]), numbers(trace["y"]), trace["hovertext"], strict=True)
    }


@pytest.mark.parametrize("estimator", [TAN(), KDB(2), BayesNetClassifier()], ids=["tan", "kdb", "none"])
def test_the_picture_of_a_model_shows_its_parents(estimator, tmp_path):
    X, y = mixed()
    model = estimator.fit(X, y)
    made = model.plot_structure()
    assert isinstance(made, go.Figure) and "the class (label)" in made.layout.title.text
    spec = structure(Structure.of(model.schema_, model.family_))
    at = drawn_columns(spec)
    named = {place: re.match(r"<b>(.*?)</b>", told)[1] for place, (_, told) in at.items()}
    x, y = drawn_arrows(spec)
    found = {
        (named[float(x[e, 0]), float(y[e, 0])], named[float(x[e, -1]), float(y[e, -1])])
        for e in range(len(x))
    }
    assert found == {(parent, name) for name, own in model.parents_.items() for parent in own}
    assert (np.diff(x, axis=1) >= 0).all() and (np.diff(y, axis=1) >= -1e-6).all()  # down and to the right
    for place, (kind, told) in at.items():
        name = named[place]
        assert (
            kind == ("discrete" if name in ("colour", "flag") else "continuous") and f"<br>{kind}<br>" in told
        )
        below = [child for child, own in model.parents_.items() if name in own]
        parents, after = told.split("<br>parents: ")[1].split("<br>children: ")
        assert re.split(r"; |<br>", parents) == ["the class (label)", *model.parents_[name]]
        assert re.split(r"; |<br>", after) == (below or ["none"])
    made.write_html(tmp_path / "structure.html")
    assert (tmp_path / "structure.html").stat().st_size > 1e6


def test_without_a_parent_there_is_no_structure_to_see():
    X, y = mixed()
    run = run_of(X, y, family="bayes-net", start="ml")
    assert "structure" not in figures.of(View.of(run))
    assert View.of(run_of(X, y)).structure is None


def chain(many, names=None):
    parents = ((), *((place,) for place in range(many - 1)))
    names = names or tuple(f"column {place}" for place in range(many))
    return Structure(
        names, many // 2, tuple(reversed([tuple(many - 1 - p for p in own) for own in parents])), "y"
    )


@pytest.mark.parametrize("many", [1, 2, 50, NAMED, NAMED + 1, DRAWN, DRAWN + 500])
def test_many_columns_are_drawn_with_names_while_there_is_room(many):
    spec = structure(chain(many))
    go.Figure(spec)
    json.dumps(spec, allow_nan=False)
    assert len(drawn_columns(spec)) == min(many, DRAWN)
    assert any(trace.get("text") for trace in spec["data"]) == (many <= NAMED)
    assert spec["layout"]["height"] <= 2000
    assert (f"the {DRAWN:,} columns nearest" in spec["layout"]["meta"]["summary"]) == (many > DRAWN)
    if many > DRAWN:  # the last of the chain are left out, and their number is said
        assert numbers(spec["data"][0]["x"]).size == 8 * (DRAWN - 1)


def test_the_pointer_shows_some_of_many_children():
    spec = structure(Structure(tuple(f"c{place}" for place in range(40)), 0, ((), *(((0,),) * 39)), "y"))
    [told] = [told for _, told in drawn_columns(spec).values() if told.startswith("<b>c0</b>")]
    assert told.count("<br>") < 12 and told.endswith("and 27 more")


def test_hostile_columns_of_a_structure_stay_text():
    names = tuple(dict.fromkeys(HOSTILE))
    spec = structure(chain(len(names), names))
    go.Figure(spec)
    for text in strings({**spec, "layout": {**spec["layout"], "meta": None}}):
        for tag in re.findall(r"<[^>]*>?", text):
            assert tag in ("<b>", "</b>", "<br>"), text


def test_a_picture_without_plotly_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(PlotlyMissing, match=r"pip install 'peerbayes\[report\]'"):
        TAN().fit(*mixed()).plot_structure()


def test_the_browser_takes_the_lanes_of_figures():
    """figures.js computes the range of lanes by the same numbers."""
    script = (STATIC / "figures.js").read_text()
    least, most = re.search(r"LANES = \[(\d+), (\d+)\]", script).groups()
    assert (float(least), float(most)) == (drawing.NARROWEST, drawing.WIDEST)
    assert float(re.search(r"TURN = ([\d.]+)", script)[1]) == drawing.TURN

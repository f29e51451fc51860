"""Figures of runs, the page that shows them, and the files for report."""

import base64
import contextlib
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from sklearn.datasets import load_iris

from peerbayes import network, report
from peerbayes.cli.report import runs_in
from peerbayes.data.files import size
from peerbayes.errors import DrawingFailed, PlotlyMissing
from peerbayes.learning.metrics import Outcome
from peerbayes.report import figures, page, style
from peerbayes.report.curves import MOST_CURVES, MOST_POINTS, drawn_peers
from peerbayes.report.model_figures import Model, reliability
from peerbayes.report.network_figure import positions
from peerbayes.report.page import STATIC
from peerbayes.report.style import distinct, gapped, label, packed, shown
from peerbayes.simulation.result import Run
from peerbayes.simulation.view import CURVES, View, spread
from shared.browsing import NAMES
from shared.commands import peerbayes
from shared.report_runs import HOSTILE, data, first, mixed, numbers, run_of, strings

ALL = ("error", "disagreement", "network", "spread", "bytes")
LEARNED = ("priors", "features", "telling")
DATA = ("rows", "columns")
STRUCTURE = ("structure",)
EFFECTS = ("shapes",)
JUDGED = ("confusion", "reliability")


def no_test_rows():
    """In here a run says that it has none."""
    return pytest.warns(UserWarning, match="no test error")


def with_missing():
    X, y = data()
    X = X.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    return X, y


def of_text():
    X, y = load_iris(return_X_y=True)
    return X, np.array(["setosa", "versicolor", "virginica"])[y]


RUNS = {
    "naive-bayes": {},
    "qda": {"family": "qda", "start": "ml"},
    "lda": {"family": "lda", "start": "ml"},
    "tan": {"family": "tan", "start": "ml", "data": mixed},
    "kdb": {"family": "kdb", "start": "ml", "data": mixed},
    "kdb, dsgd": {"family": "kdb", "strategy": "dsgd", "data": mixed},
    "discrete columns": {"data": mixed},
    "discrete only": {"data": lambda: (mixed()[0][["colour", "flag"]], mixed()[1])},
    "missing": {"data": with_missing},
    "two classes": {"data": lambda: data(2)},
    "26 classes": {"data": lambda: make_26(), "rows_per_peer": 80},
    "text": {"data": of_text, "rows_per_peer": 10},
    "one peer": {"peers": 1, "topology": "complete"},
    "two peers": {"peers": 2},
    "dsgd": {"strategy": "dsgd"},
    "local": {"strategy": "local"},
    "relay": {"strategy": "relay"},
    "no references": {"references": False},
    "no test rows": {"peers": 4, "rows_per_peer": 100},
    "ring": {"topology": "ring"},
    "star": {"topology": "star"},
    "grid": {"topology": "grid", "peers": 9},
    "complete": {"topology": "complete"},
    "changing": {"topology": "tree+3", "change_every": 2, "peers_down": 0.2, "message_loss": 0.1},
    "at the end": {"evaluate_every": 0},
    "now and then": {"evaluate_every": 4},
    "uneven": {"partition": "quantity-0.3"},
}


def make_26():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 26, 800)
    return rng.normal(size=(800, 5)) + rng.normal(size=(26, 5))[y], np.array(
        list("abcdefghijklmnopqrstuvwxyz")
    )[y]


@pytest.fixture(scope="module", params=RUNS, ids=str)
def case(request):
    settings = dict(RUNS[request.param])
    X, y = settings.pop("data", data)()
    with no_test_rows() if request.param == "no test rows" else contextlib.nullcontext():
        return request.param, run_of(X, y, **settings)


@pytest.fixture(scope="module")
def run():
    return run_of()


def applied(made, patch):
    """What `peerbayes.patch` of figures.js does, in Python."""
    made = deepcopy(made)
    for name, more in patch["figures"].items():
        spec = made[name]
        for place, part in more["traces"].items():
            trace = spec["data"][int(place)]
            how = trace["meta"]["grows"]
            if how == "append":
                for key, values in part.items():
                    trace[key] = packed(np.concatenate([numbers(trace[key]), numbers(values)]))
            elif how == "each":
                curves, repeats = trace["meta"]["curves"], trace["meta"]["repeats"]
                x, y = numbers(part["x"]), numbers(part["y"]).reshape(curves, -1)
                for key, values in (("x", np.broadcast_to(x, y.shape)), ("y", y)):
                    before = numbers(trace[key]).reshape(curves, -1)[:, :-1]
                    trace[key] = packed(gapped(np.concatenate([before, values], axis=1)))
                many = len(numbers(trace["y"])) // curves
                for key in repeats:
                    one = np.array(numbers(trace[key])).reshape(curves, -1)[:, 0]
                    told = np.repeat(one, many)
                    trace[key] = packed(told, "i4") if told.dtype.kind == "i" else told.tolist()
            else:
                for path, value in part.items():
                    put(trace, path, value)
        for path, value in more.get("layout", {}).items():
            put(spec["layout"], path, value)
        spec["layout"]["meta"]["summary"] = more["summary"]
        for key, values in more.get("against", {}).items():
            table = spec["layout"]["meta"]["against"][0]
            table[key] = packed(np.concatenate([numbers(table[key]), numbers(values)]))
    return made


def put(target, path, value):
    *steps, last = path.split(".")
    for step in steps:
        target = target[step]
    target[last] = value


# Figures.


def test_plotly_takes_every_figure(case):
    name, made = case
    view = View.of(made)
    found = figures.of(view)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for spec in found.values():
        go.Figure(spec)
        assert spec["layout"]["meta"]["summary"].endswith(".")
    for _, spec in figures.columns(view):
        go.Figure(spec)
    expected = set(ALL + LEARNED + DATA + JUDGED)
    if name == "one peer":
        expected -= {"disagreement", "network", "spread", "bytes"}
    elif name == "local":
        expected -= {"bytes"}
    elif name.endswith("dsgd"):
        expected -= {*LEARNED, *DATA}
    if name.startswith(("tan", "kdb")):
        expected |= set(STRUCTURE)
    if name.startswith("discrete"):
        expected |= set(EFFECTS)
    if not (made.records[:, 5] > 0).any():
        expected -= {"disagreement"}  # peers that all agree
    if name == "discrete only":
        expected -= {"columns"}
    assert set(found) == expected
    assert list(found) == [one for one in ALL + LEARNED + DATA + STRUCTURE + EFFECTS + JUDGED if one in found]


def test_all_live_figures_are_there_before_the_first_round(case):
    view = first(View.of(case[1]), 0)
    found = figures.live(view)
    assert tuple(found) == ALL
    for spec in found.values():
        go.Figure(spec)
    json.dumps(found, allow_nan=False)
    assert figures.patch(view, 0)["figures"] == {}


def test_patches_one_after_another_give_the_whole_figure(case):
    """The law of growing: whichever rounds come together, the arrays are those of the figure made at once."""
    view = View.of(case[1])
    many = len(view.rounds)
    for stops in ({0, many}, set(range(many + 1)), {0, 1, many}, {many // 2, many}):
        at = sorted(stops)
        made = figures.live(first(view, at[0]))
        for before, after in pairwise(at):
            since = int(view.rounds[before - 1]) if before else 0
            more = json.loads(json.dumps(figures.patch(first(view, after), since), allow_nan=False))
            made = applied(made, more)
        whole = figures.live(first(view, many))
        if 0 in stops:  # which error it is shows with the first round
            for one in (made, whole):
                one["error"]["data"][0].pop("hovertemplate")
        assert made == whole


def test_named_peers_grow_too(run):
    view = replace(View.of(run), names=tuple(HOSTILE[place] for place in range(8)))
    made = applied(figures.live(first(view, 2)), figures.patch(first(view, 6), 2))
    assert made == figures.live(first(view, 6))
    for spec in made.values():
        go.Figure(spec)
    assert figures.curve(view, 1)["name"] == HOSTILE[1]


def synthetic(peers, rounds, names=None):
    """A view of a run that nobody simulated."""
    rng = np.random.default_rng(0)
    curves = {name: rng.random((rounds, peers)) for name in CURVES}
    return View(
        "made up", {"strategy": "exact", "rounds": rounds}, {}, rounds, rounds, np.arange(1, rounds + 1),
        np.arange(peers), curves, {name: spread(values) for name, values in curves.items()},
        {name: values[-1] for name, values in curves.items()}, rng.integers(1, 100, peers),
        network.pairs(network.adjacency("tree", peers, rng)), names,
    )  # fmt: skip


def test_a_patch_is_small():
    patch = json.dumps(figures.patch(synthetic(320, 64), 63))
    assert len(patch) < 6400


@pytest.mark.parametrize(("peers", "rounds"), [(1, 1), (320, 64), (5000, 64), (1000, 5000), (20000, 10)])
def test_few_curves_are_drawn_and_always_the_same(peers, rounds):
    view = replace(synthetic(peers, 2), total=rounds)
    some = view.peers[drawn_peers(view)]
    assert 1 <= len(some) <= MOST_CURVES and len(some) * rounds <= MOST_POINTS
    assert len(np.unique(np.diff(some))) <= 1
    held = replace(view, peers=view.peers[::2], curves={name: v[:, ::2] for name, v in view.curves.items()})
    if peers > 2 * MOST_CURVES:
        assert (held.peers[drawn_peers(held)] == some).all()


def test_the_curves_are_the_history(run):
    view = View.of(run)
    spec = figures.of(view)["error"]
    trace = spec["data"][0]
    history = run.history.pivot(index="peer", columns="round", values="test_error")
    y = numbers(trace["y"]).reshape(8, -1)
    assert y[:, :-1] == pytest.approx(history.to_numpy(), abs=1e-6) and np.isnan(y[:, -1]).all()
    assert (numbers(trace["customdata"]).reshape(8, -1) == np.arange(8)[:, None]).all()
    peers = next(one for one in figures.of(view)["network"]["data"] if one["meta"]["role"] == "peers")
    assert numbers(peers["marker"]["color"]) == pytest.approx(history.to_numpy()[:, -1], abs=1e-6)
    assert (numbers(peers["marker"]["size"]) == run.sizes).all()
    lines = {one["meta"]["role"]: numbers(one["y"]) for one in spec["data"]}
    for who in ("rc", "ml", "local"):
        assert lines[who] == pytest.approx(run.references[f"test_{who}"], abs=1e-6)
    told = figures.curve(view, 3)
    assert told["rounds"] == [1, 2, 3, 4, 5, 6] and told["rows"] == 20
    assert told["error"] == pytest.approx(history.loc[3].to_numpy(), abs=1e-6)
    with pytest.raises(ValueError, match=r"peer is 8; expected 0 to 7"):
        figures.curve(view, 8)


def test_a_peer_without_a_curve_has_its_last_numbers(run):
    view = View.of(run)
    thin = replace(view, peers=view.peers[::2], curves={name: v[:, ::2] for name, v in view.curves.items()})
    told = figures.curve(thin, 3)
    assert not told["whole"] and told["rounds"] == [6]
    assert told["error"] == pytest.approx([view.last["test_error"][3]])


def test_the_spread_counts_every_peer(run):
    bars = figures.of(View.of(run))["spread"]["data"][0]
    assert numbers(bars["y"]).sum() == 8


def test_training_error_where_there_are_no_test_rows():
    with no_test_rows():
        view = View.of(run_of(peers=4, rows_per_peer=100))
    assert view.error == "train_error"
    found = figures.of(view)
    assert found["error"]["layout"]["yaxis"]["title"]["text"] == "training error"
    assert "training error" in found["network"]["layout"]["meta"]["summary"]


def test_confusion_is_normalised_by_the_true_class(run):
    heat = figures.of(View.of(run))["confusion"]["data"][0]
    counts = numbers(heat["customdata"])
    assert numbers(heat["z"]).sum(axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    assert counts == pytest.approx(run.outcomes["peers"].confusion, abs=1e-3)
    assert len(figures.of(View.of(run))["confusion"]["data"]) == 2  # peers, and RC beside them


@pytest.mark.long
@pytest.mark.filterwarnings(
    "ignore:continuous-label:peerbayes.errors.DataWarning"
)  # 300 classes look like one
def test_many_classes_and_many_columns_stay_readable():
    """Hundreds of classes and a thousand columns: some are drawn, and the figure says how many there are."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1500, 1000)), rng.permutation(np.arange(1500) % 300)
    made = run_of(X, y, peers=4, rows_per_peer=300, rounds=2, references=False)
    view = replace(View.of(made), outcomes={"peers": Outcome(rng.random((300, 300)), rng.random((10, 3)))})
    found = figures.of(view)
    for spec in found.values():
        go.Figure(spec)
    assert len(json.dumps(found)) < 1_000_000
    assert "1000 columns" in found["telling"]["layout"]["meta"]["summary"]
    assert len(found["features"]["data"]) == 12 * 10
    assert len(found["confusion"]["data"][0]["x"]) == 100


def test_reliability_has_a_dashed_curve_without_the_scaling():
    rng = np.random.default_rng(1)
    outcomes = {
        name: Outcome(rng.random((2, 2)), rng.random((15, 3))) for name in ("peers", "unscaled", "rc")
    }
    spec = reliability(replace(View.of(run_of(references=False)), outcomes=outcomes))
    curves = {curve["name"].split(" (")[0]: curve["line"] for curve in spec["data"]}
    assert curves["unscaled"]["dash"] == "dash"
    assert curves["peers"]["dash"] == curves["RC"]["dash"] == "solid"
    assert curves["unscaled"]["color"] == curves["peers"]["color"]
    assert f"peers, unscaled: {outcomes['unscaled'].calibration_error:.3f}" in str(spec["layout"])


def test_the_most_telling_columns_are_those_of_describe(run):
    from peerbayes.model.explain import mutual_information

    told = mutual_information(
        run.classifier(int(np.argsort(run.records[-8:, 3], kind="stable")[4])).describe()
    )
    learned = Model.of(View.of(run).statistics)
    assert [one.name for one in learned.columns] == told["feature"].tolist()
    assert [one.bits for one in learned.columns] == pytest.approx(told["bits"].to_numpy(), abs=1e-9)


@pytest.mark.filterwarnings("ignore:constant:peerbayes.errors.DataWarning")  # which is meant
def test_a_column_without_spread_is_drawn():
    X, y = data()
    X = X.copy()
    X[:, 0] = 3.0
    spec = figures.of(View.of(run_of(X, y)))["features"]
    for trace in spec["data"]:
        assert np.isfinite(numbers(trace["y"])).all() and math.isfinite(trace["x0"])


# Names from data.


@pytest.mark.parametrize("text", HOSTILE)
def test_labels_hold_no_markup(text):
    told = label(text)
    assert told and "<" not in told and ">" not in told and "%{" not in told and "$" not in told
    assert re.sub(r"&(amp|lt|gt|#123|#36);", "", told).count("&") == 0
    assert all(letter.isprintable() for letter in told) and len(shown(text)) <= 28


def test_equal_labels_are_told_apart():
    assert distinct(["a", "b", "a", "a"]) == ["a", "b", "a (2)", "a (3)"]


def test_sizes_are_said_in_units():
    assert [size(value) for value in (0, 999, 1000, 12_345_678, 1e18)] == [
        "0 B", "999 B", "1 kB", "12.3 MB", "1e+06 TB",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def hostile():
    """Classes, columns and categories that would like to be markup."""
    X, codes = data(5, rows=600)
    table = pd.DataFrame(X[:, :6], columns=list(HOSTILE[:6]))
    table[HOSTILE[8]] = np.array(HOSTILE[:4], dtype=object)[np.random.default_rng(0).integers(0, 4, len(X))]
    return run_of(table, np.array(HOSTILE, dtype=object)[codes], peers=6, rows_per_peer=50)


class Tags(HTMLParser):
    """Elements of a page, their attributes, and the text of each kind."""

    def __init__(self, text):
        super().__init__()
        self.found, self.texts, self._open = [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, text):
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(text)


def test_hostile_names_stay_text(hostile):
    view = View.of(hostile, HOSTILE[0])
    for spec in figures.of(view).values():
        go.Figure(spec)
        for text in strings({**spec, "layout": {**spec["layout"], "meta": None}}):
            for tag in re.findall(r"<[^>]*>?", text):
                assert tag in ("<b>", "</b>", "<br>", "<extra>", "</extra>"), text
    made = page.html([hostile], [HOSTILE[0]])
    tags = Tags(made)
    assert sum(tag == "script" for tag, _ in tags.found) == 4
    assert not any(name.startswith("on") for _, attributes in tags.found for name in attributes)
    assert any(HOSTILE[0][:20] in text for text in tags.texts["h1"])


# Where peers are drawn.


@pytest.mark.parametrize("topology", ["tree", "ring", "grid", "star", "complete", "tree+20", "chain"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 36, 600])
def test_positions_are_the_same_every_time_and_apart(topology, nodes):
    if nodes < 3 and topology != "complete":
        topology = "tree"
    if nodes * 0.5 < 20 and topology == "tree+20":
        topology = "ring"
    links = network.pairs(network.adjacency(topology, nodes, np.random.default_rng(1)))
    at = positions(nodes, links)
    assert at.shape == (nodes, 2) and np.isfinite(at).all() and np.abs(at).max() <= 1.7
    assert (positions(nodes, links) == at).all()
    if nodes > 1:
        apart = np.hypot(*(at[:, None] - at[None]).transpose(2, 0, 1)) + 9 * np.eye(nodes)
        assert apart.min() > 0.02 / math.sqrt(nodes)


def test_linked_peers_are_near():
    links = network.pairs(network.adjacency("grid", 400, np.random.default_rng(0)))
    at = positions(400, links)
    far = np.hypot(*(at[:, None] - at[None]).transpose(2, 0, 1)).mean()
    near = np.hypot(*(at[links[:, 0]] - at[links[:, 1]]).T).mean()
    assert near < far / 8


def test_a_network_in_pieces_is_drawn_side_by_side():
    links = np.array([[0, 1], [1, 2], [4, 5]])
    at = positions(7, links)
    assert len(np.unique(at.round(6), axis=0)) == 7 and np.isfinite(at).all()
    apart = np.hypot(*(at[:, None] - at[None]).transpose(2, 0, 1))
    pieces = np.array([0, 0, 0, 1, 2, 2, 3])
    assert apart[pieces[:, None] != pieces].min() > max(apart[0, 1], apart[1, 2], apart[4, 5])
    assert np.isfinite(positions(5, np.zeros((0, 2), dtype=int))).all()


# The page.


def test_one_file_that_needs_nothing_else(run, tmp_path):
    path = run.report(tmp_path / "new" / "report.html")
    assert path == tmp_path / "new" / "report.html" and [one.name for one in path.parent.iterdir()] == [
        "report.html"
    ]
    tags = Tags(path.read_text(encoding="utf-8"))
    assert not any({"src", "href"} & set(attributes) for _, attributes in tags.found)
    assert not any("@import" in text or "url(" in text for text in tags.texts["style"])
    text = " ".join(text for kind in ("td", "dd", "p", "h1") for text in tags.texts[kind])
    for told in (
        "exact",
        "8 peers",
        "160 rows",
        f"{run.summary()['test_error']:.4f}",
        "seed",
        run.made["numpy"],
    ):
        assert told in text or any(told in one for one in tags.texts["dt"]), told
    ids = {attributes.get("id") for _, attributes in tags.found}
    assert {f"figure-{name}" for name in (*ALL, *LEARNED, *JUDGED, "feature")} <= ids


def test_the_policy_names_what_is_in_the_page(run):
    made = page.html([run], ["a run"])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', made).group(1)
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.replace("style-src-attr 'unsafe-inline'", "")
    inside = re.findall(
        r"<(?:script|style)(?: id=\"[^\"]*\")?>(.*?)</(?:script|style)>", made, flags=re.DOTALL
    )
    assert len(inside) >= 5
    for text in inside:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert made.index("Content-Security-Policy") < made.index("<style")


def test_64_rounds_of_320_peers_fit(tmp_path):
    """The limit is 8 MB; rounds are cheap to make up, simulating them is not."""
    X, y = data(3, rows=2000)
    made = run_of(X, y, peers=320, rows_per_peer=5, rounds=1, references=False, evaluate_rows=50)
    records = np.concatenate([made.records] * 64)
    records[:, 0] = np.repeat(np.arange(1, 65), 320)
    records[:, 2:7] = np.random.default_rng(0).random((len(records), 5))
    long = replace(made, records=records, configuration={**made.configuration, "rounds": 64})
    path = report.write(tmp_path / "report.html", [long])
    assert path.stat().st_size < 8_000_000


def test_runs_side_by_side(run, tmp_path):
    other = run_of(strategy="crc", rounds=9)
    made = page.html([run, other], ["exact", HOSTILE[1]])
    ids = {attributes.get("id") for _, attributes in Tags(made).found}
    assert {"figure-error", "figure-network-0", "figure-network-1", "figure-confusion-1"} <= ids
    assert "figure-error-0" not in ids and "figure-network" not in ids
    content = json.loads(re.search(r'id="report-content">(.*?)</script>', made, flags=re.DOTALL).group(1))
    assert len(content["runs"]) == 2
    spec = content["figures"]["error"]
    go.Figure(spec)
    means = [one for one in spec["data"] if one["meta"]["role"] == "mean"]
    assert [len(numbers(one["x"])) for one in means] == [6, 9]
    assert means[0]["line"]["color"] != means[1]["line"]["color"]
    heads = "".join(Tags(made).texts["th"])
    assert "exact" in heads and "<b>bold</b>" in heads
    assert Tags(report.write(tmp_path / "r.html", [run, other]).read_text()).texts["h1"] == ["exact and crc"]


def test_what_cannot_be_written_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match="there are no runs"):
        report.write(tmp_path / "r.html", [])
    with pytest.raises(ValueError, match="1 titles for 2 runs"):
        report.write(tmp_path / "r.html", [run, run], ["one"])
    assert list(tmp_path.iterdir()) == []


def test_the_colours_of_pages_are_those_of_figures():
    css = (STATIC / "page.css").read_text()
    script = (STATIC / "figures.js").read_text()
    light = dict(re.findall(r"--light-([\w-]+): (#\w+);", css))
    assert light == style.LIGHT
    assert re.findall(r'"([a-z0-9-]+)"', script[script.index("ROLES") : script.index("];")]) == list(
        style.LIGHT
    )
    dark = css[css.index("prefers-color-scheme: dark") :]
    for role in style.LIGHT:
        assert f"--{role}: #" in dark and f"--{role}: var(--light-{role})" in css


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_stand_out():
    """WCAG AA: 4.5 for text, 3 for lines, on the colour of a card, light and dark."""
    css = (STATIC / "page.css").read_text()
    dark = dict(re.findall(r"--([\w-]+): (#\w+);", css[css.index("prefers-color-scheme: dark") :]))
    for colours in (style.LIGHT, dark):
        for role in ("ink", "muted", "rc", "ml", "local"):
            assert contrast(colours[role], colours["paper"]) >= 4.5, role
        for role in ("peers", "chosen", *(f"class-{place}" for place in range(1, 10)), "low", "middle"):
            assert contrast(colours[role], colours["paper"]) >= 3, role


def test_scripts_keep_to_the_policy():
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        assert '"use strict"' in text
        for word in (
            "eval(",
            "new Function",
            "innerHTML",
            "insertAdjacentHTML",
            "document.write",
            "://",
            ".onclick",
        ):
            assert word not in text, f"{path.name}: {word}"


# Without plotly, without a browser.


def test_plotly_is_only_needed_for_its_script():
    code = (
        "import sys; sys.modules['plotly'] = None; sys.modules['kaleido'] = None\n"
        "import peerbayes.report.figures, peerbayes.report"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_plotly_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "find_spec", lambda name: None)
    with pytest.raises(PlotlyMissing, match=r"pip install 'peerbayes\[report\]'"):
        report.write(tmp_path / "r.html", [run])
    assert isinstance(PlotlyMissing(""), ImportError)
    from peerbayes.cli import demo

    assert "pip install 'peerbayes[report]'" in demo._report(tmp_path, [run])


def test_missing_kaleido_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(DrawingFailed, match=r"pip install 'peerbayes\[figures\]'"):
        report.figure_files(tmp_path, [run])


def test_a_missing_browser_is_said(run, tmp_path, monkeypatch):
    kaleido = pytest.importorskip("kaleido")

    def refuse(*_, **__):
        raise RuntimeError("no browser found")

    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", refuse)
    with pytest.raises(DrawingFailed, match=r"no browser found.*Chrome or Chromium: install one"):
        report.figure_files(tmp_path, [run])


def test_an_unknown_form_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match=r"form is 'gif'; expected one of svg, png, pdf"):
        report.figure_files(tmp_path, [run], "gif")


def test_files_for_papers_are_on_white_and_hold_no_empty_traces(run):
    spec = report.printed(figures.of(View.of(run))["error"])
    assert spec["layout"]["paper_bgcolor"] == "#ffffff"
    assert "chosen" not in [one["meta"]["role"] for one in spec["data"]]
    go.Figure(spec)


# The command.


def test_the_command_writes_a_page(run, tmp_path):
    run.save(tmp_path / "kept")
    done = peerbayes("report", "kept", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kept/report.html (") and "MB)" in done.stdout
    assert (tmp_path / "kept" / "report.html").stat().st_size > 1e6


def test_a_folder_of_runs_is_its_runs(run, tmp_path):
    run.save(tmp_path / "demo" / "a")
    replace(run, configuration={**run.configuration, "strategy": "crc"}).save(tmp_path / "demo" / "b")
    done = peerbayes("report", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<title>exact and crc</title>" in (tmp_path / "report.html").read_text()
    peerbayes("report", "demo/a", "demo/b", "--out", "two.html", cwd=tmp_path)
    assert (tmp_path / "two.html").exists()


def test_what_is_no_run_is_said(tmp_path):
    for folder, told in (("nowhere", "is not a folder"), (".", "contains no run")):
        done = peerbayes("report", folder, cwd=tmp_path)
        assert done.returncode == 2 and told in done.stderr
    done = peerbayes("report", ".", "--form", "gif", cwd=tmp_path)
    assert done.returncode == 2 and "--form is 'gif'" in done.stderr
    (tmp_path / "live.sqlite").touch()
    with pytest.raises(ValueError, match="not finished: see it with `peerbayes watch"):
        runs_in(tmp_path)
    (tmp_path / "live.sqlite").unlink()
    (tmp_path / "peer.toml").touch()
    with pytest.raises(ValueError, match="a peer's home; reports are of simulated runs"):
        runs_in(tmp_path)
    (tmp_path / "run.peerbayes").write_bytes(b"nothing")
    done = peerbayes("report", ".", cwd=tmp_path)
    assert done.returncode == 2 and "is not from peerbayes" in done.stderr


def test_saved_runs_give_the_same_figures(run, tmp_path):
    run.save(tmp_path)
    assert figures.of(View.of(Run.load(tmp_path))) == figures.of(View.of(run))


@pytest.mark.long
@pytest.mark.skipif(not any(map(shutil.which, NAMES)), reason="no browser that kaleido could draw with")
@pytest.mark.parametrize(("form", "begins"), [("svg", b"<svg"), ("pdf", b"%PDF")])
def test_files_for_papers(run, tmp_path, form, begins, monkeypatch):
    pytest.importorskip("kaleido")
    monkeypatch.setattr(report, "drawn", lambda views: ({"network": figures.of(views[0])["network"]}, {}))
    (path,) = report.figure_files(tmp_path / "figures", [run], form)
    assert path == tmp_path / "figures" / f"network.{form}"
    content = path.read_bytes()
    assert content.startswith(begins)
    if form == "svg":
        assert len(re.findall(rb'class="point[ "]', content)) == len(run.sizes)

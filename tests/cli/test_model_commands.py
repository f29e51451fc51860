"""`peerbayes predict`, `explain` and `sample`, run as a user runs them."""

import io
import json
import math
import re
import sqlite3
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from typer.testing import CliRunner

import peerbayes as pb
from peerbayes.cli.app import app
from peerbayes.data.sources import blocks
from peerbayes.learning.metrics import Outcome
from peerbayes.model.explain import mutual_information, of_categories, of_gaussians
from peerbayes.model.scaling import Scaling

RNG = np.random.default_rng(5)
ROWS = 60
ILL = np.array(["no", "yes", "maybe"])[np.arange(ROWS) % 3]
FRAME = pd.DataFrame(
    {
        "age": RNG.normal(size=ROWS) + 3.0 * (ILL == "yes"),
        "noise": RNG.normal(size=ROWS),
        "[city]": np.where(ILL == "maybe", "Oslo", RNG.choice(["Oslo", "Bilbao"], ROWS)),
    }
)
SHUFFLED = FRAME.assign(ill=ILL, born=pd.Timestamp("2000-01-01"))[["born", "ill", "[city]", "noise", "age"]]


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def refused(message, *arguments):
    done = run(*arguments, code=2)
    assert message in done.stderr
    assert done.stderr.startswith("peerbayes: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A peer's home: its model, and rows beside it."""
    folder = tmp_path_factory.mktemp("home")
    pb.MixedNB().fit(FRAME, ILL).save(folder / "model.peerbayes")
    SHUFFLED.to_csv(folder / "rows.csv", index=False)
    return folder


MODEL = pb.MixedNB().fit(FRAME, ILL)


# --- predict ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["", "model.peerbayes"])
def test_predict_says_the_class_of_every_row_and_ignores_other_columns(home, file):
    done = run("predict", home / file, home / "rows.csv")
    lines = done.stdout.splitlines()
    assert lines[0] == "predicted"
    assert lines[1:] == list(MODEL.predict(FRAME))
    assert done.stderr == ""


def test_probabilities_come_out_to_the_last_bit(home):
    text = run("predict", home, home / "rows.csv", "--proba").stdout
    table = pd.read_csv(io.StringIO(text))
    assert list(table.columns) == ["predicted", "p(maybe)", "p(no)", "p(yes)"]
    assert np.array_equal(table.iloc[:, 1:].to_numpy(), MODEL.predict_proba(FRAME))
    records = json.loads(run("predict", home, home / "rows.csv", "--proba", "--format", "json").stdout)
    assert len(records) == ROWS
    assert records[0] == table.iloc[0].to_dict()


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "out.json"])
def test_predictions_are_written_whole_to_a_file(home, tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_text("old")
    to_file = ("predict", home, home / "rows.csv", "--proba", "--out", tmp_path / name)
    refused("exists already", *to_file)
    assert (tmp_path / name).read_text() == "old"
    assert run(*to_file, "--overwrite").output == ""
    reader = {"csv": pd.read_csv, "json": pd.read_json, "parquet": pd.read_parquet}[name.partition(".")[2]]
    table = reader(tmp_path / name)
    assert list(table["predicted"]) == list(MODEL.predict(FRAME))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_nothing_is_written_where_something_fails(home, tmp_path):
    (tmp_path / "rows.csv").write_text("age,noise\n1,2\n")
    refused("has no column '[city]'", "predict", home, tmp_path / "rows.csv", "--out", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    refused("is not a folder", "predict", home, home / "rows.csv", "--out", tmp_path / "none" / "out.csv")
    refused(
        "expected a name in .csv, .parquet or .json", "predict", home, home / "rows.csv", "--out", "x.xls"
    )
    clash = ("--out", tmp_path / "out.csv", "--format", "json")
    refused("expected a name in .csv", "predict", home, home / "rows.csv", *clash)
    refused("--format is 'xml'; expected one of csv, json", "predict", home, "rows.csv", "--format", "xml")


def test_true_classes_give_the_error_rate_and_the_confusion(home):
    done = run("predict", home, home / "rows.csv", "--label", "ill")
    wrong = np.mean(MODEL.predict(FRAME) != ILL)
    assert f"error rate {wrong:.4f} over 60 rows" in done.stderr
    table = [re.split(r"\s+", line) for line in done.stderr.splitlines()[-3:]]
    assert [row[0] for row in table] == ["maybe", "no", "yes"]
    counts = np.array([row[1:] for row in table], dtype=int)
    assert counts.sum() == ROWS
    assert np.trace(counts) == round(ROWS * (1 - wrong))
    assert done.stdout.splitlines()[1:] == list(MODEL.predict(FRAME))


def test_true_classes_give_log_loss_and_calibration_error_with_and_without_the_scaling(home, tmp_path):
    codes = np.searchsorted(MODEL.classes_, ILL)
    scaling = Scaling(3.0, (0.5, 0.1, -0.6), 0.05)
    scaled = type(MODEL).from_statistics(replace(MODEL.statistics_, scaling=scaling))
    scaled.save(tmp_path / "scaled")
    sentences = []
    for model in (scaled, MODEL):
        loss = -np.log(model.predict_proba(FRAME)[np.arange(ROWS), codes]).mean()
        error = Outcome.of(model.predict_proba(FRAME), codes).calibration_error
        sentences.append(f"log loss {loss:.4f}, calibration error {error:.4f}")
    done = run("predict", tmp_path / "scaled", home / "rows.csv", "--label", "ill")
    assert f"{sentences[0]}; without scaling {sentences[1]}\n" in done.stderr
    done = run("predict", home, home / "rows.csv", "--label", "ill")
    assert f"{sentences[1]}\n" in done.stderr and "without" not in done.stderr


def test_labels_that_the_model_does_not_know_are_errors(home, tmp_path):
    rows = SHUFFLED.drop(columns="born")
    rows.loc[:5, "ill"] = "dead"
    rows.to_csv(tmp_path / "rows.csv", index=False)
    done = run("predict", home, tmp_path / "rows.csv", "--label", "ill")
    assert done.stderr.splitlines()[-1].startswith("dead")
    rows.assign(ill=7).to_csv(tmp_path / "rows.csv", index=False)
    refused("none of them is a class of the model", "predict", home, tmp_path / "rows.csv", "--label", "ill")
    rows.assign(ill=["no", None] * 30).to_csv(tmp_path / "rows.csv", index=False)
    refused("30 of 60 rows have no label", "predict", home, tmp_path / "rows.csv", "--label", "ill")
    refused("did you mean 'ill'", "predict", home, tmp_path / "rows.csv", "--label", "Ill")
    refused("a feature of the model", "predict", home, tmp_path / "rows.csv", "--label", "age")


def test_unknown_categories_are_counted_and_told(home, tmp_path):
    FRAME.assign(**{"[city]": ["Rome", "Paris"] + ["Oslo"] * 58}).to_csv(tmp_path / "rows.csv", index=False)
    done = run("predict", home, tmp_path / "rows.csv")
    assert (
        "column '[city]' holds categories that the model never saw in 2 of 60 rows ('Rome', 'Paris')"
        in done.stderr
    )
    assert len(done.stdout.splitlines()) == ROWS + 1


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_files_are_predicted_in_blocks_as_if_whole(home, tmp_path, monkeypatch, kind):
    rows = tmp_path / "rows.parquet"
    frame = SHUFFLED.replace({"[city]": {"Bilbao": "Rome"}})  # unknown to the model
    frame.to_parquet(rows)
    answers, said = [], []
    for size in (blocks.BLOCK_ROWS, 7):
        monkeypatch.setattr(blocks, "BLOCK_ROWS", size)
        out = tmp_path / f"{size}.{kind}"
        done = run("predict", home, rows, "--proba", "--label", "ill", "--out", out)
        answers.append(pd.read_parquet(out) if kind == "parquet" else out.read_bytes())
        said.append(done.stderr)
        if kind != "parquet":
            printed = run("predict", home, rows, "--proba", "--format", kind).stdout
            assert printed.encode() == answers[-1]
    assert said[0] == said[1] and f"of {ROWS} rows ('Rome')" in said[0]
    assert answers[0].equals(answers[1]) if kind == "parquet" else answers[0] == answers[1]


def test_a_mistake_in_the_last_block_writes_nothing(home, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 7)
    frame = SHUFFLED.copy()
    frame.loc[ROWS - 1, "age"] = np.inf
    frame.to_parquet(tmp_path / "rows.parquet")
    refused(f"infinity (inf, row {ROWS - 1})", "predict", home, tmp_path / "rows.parquet")
    refused("infinity", "predict", home, tmp_path / "rows.parquet", "--out", tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


def test_rows_may_come_from_a_database(home, tmp_path):
    pytest.importorskip("sqlalchemy")
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        connection.execute('CREATE TABLE patients (age REAL, noise REAL, "[city]" TEXT)')
        connection.executemany("INSERT INTO patients VALUES (?, ?, ?)", FRAME.to_numpy().tolist())
    connection.close()
    url = f"sqlite:///{tmp_path}/rows.db"
    done = run("predict", home, url, "--query", "SELECT * FROM patients")
    assert done.stdout.splitlines()[1:] == list(MODEL.predict(FRAME))
    refused("say which rows with a query", "predict", home, url)
    refused("no such table", "predict", home, url, "--query", "SELECT * FROM nobody")


def test_a_model_of_an_array_takes_columns_by_position(tmp_path):
    array = FRAME[["age", "noise"]].to_numpy()
    model = pb.QDA().fit(array, ILL == "yes")
    model.save(tmp_path / "model")
    rows = FRAME[["age", "noise"]].assign(sick=ILL == "yes")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    done = run("predict", tmp_path / "model", tmp_path / "rows.csv", "--label", "sick")
    assert done.stdout.splitlines()[1:] == [str(value) for value in model.predict(array)]
    refused("takes 2 columns", "predict", tmp_path / "model", tmp_path / "rows.csv")
    assert run("sample", tmp_path / "model", "-n", 3).stdout.splitlines()[0] == "x0,x1,label"
    assert "x0" in run("explain", tmp_path / "model").stdout
    rows.drop(columns="sick").to_csv(tmp_path / "rows.csv", index=False)
    assert "Row 1 is" in run("explain", tmp_path / "model", tmp_path / "rows.csv").stdout


# --- model files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["predict", "explain", "sample"])
def test_models_that_are_missing_or_damaged_are_refused_in_one_line(home, tmp_path, command):
    rows = [home / "rows.csv"] if command == "predict" else []
    refused("none.peerbayes does not exist; expected a model", command, tmp_path / "none.peerbayes", *rows)
    refused("model.peerbayes does not exist; has its peer run yet?", command, tmp_path, *rows)
    (tmp_path / "damaged").write_bytes((home / "model.peerbayes").read_bytes()[:-3])
    refused("is truncated or altered", command, tmp_path / "damaged", *rows)
    refused("is not from peerbayes", command, home / "rows.csv", *rows)


# --- explain ---------------------------------------------------------------------------------------------------


def test_explain_tells_priors_and_the_most_telling_features_first(home):
    shown = run("explain", home).stdout
    assert shown.index("age") < shown.index("[city]") < shown.index("noise") and "\\" not in shown
    told = json.loads(run("explain", home, "--format", "json", "--top", 2).stdout)
    assert [entry["feature"] for entry in told["features"]] == ["age", "[city]"]
    assert {entry["class"]: round(entry["probability"], 6) for entry in told["prior"]} == dict.fromkeys(
        ("maybe", "no", "yes"), round(1 / 3, 6)
    )
    described = MODEL.describe()
    assert (
        told["features"][0]["classes"][0]["mean"] == described[described["feature"] == "age"]["mean"].iloc[0]
    )


def test_explain_a_row_adds_up_to_its_log_odds(home):
    told = json.loads(
        run("explain", home, home / "rows.csv", "--row", 2, "--format", "json", "--top", 1).stdout
    )
    log_proba = dict(zip(MODEL.classes_, MODEL.predict_log_proba(FRAME[1:2])[0], strict=True))
    assert told["predicted"] == MODEL.predict(FRAME)[1]
    assert told["log_odds"] == pytest.approx(log_proba[told["predicted"]] - log_proba[told["against"]])
    assert len(told["contributions"]) == 2
    shown = sum(part["log_odds"] for part in told["contributions"]) + told["others"]
    assert shown == pytest.approx(told["log_odds"])
    table = run("explain", home, home / "rows.csv", "--row", 2).stdout
    assert f"Row 2 is {told['predicted']}" in table
    assert "(baseline)" in table
    assert "[city]" in table and "\\" not in table


def test_explain_refuses_what_makes_no_sense(home):
    refused("row is 61; expected 1 to 60", "explain", home, home / "rows.csv", "--row", 61)
    refused("row is 0; expected 1 to 60", "explain", home, home / "rows.csv", "--row", 0)
    refused("--row and --query need DATA", "explain", home, "--row", 1)
    refused("--top is 0", "explain", home, "--top", 0)
    refused("--format is 'csv'; expected one of table, json", "explain", home, "--format", "csv")


PRIORS = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3).map(lambda p: np.array(p) / sum(p))


@given(PRIORS, st.lists(st.floats(-5, 5), min_size=3, max_size=3), st.permutations([0, 1, 2]))
def test_bits_lie_between_none_and_the_entropy_and_ignore_the_order_of_classes(prior, mean, order):
    mean, deviation = np.array(mean), np.array([0.5, 1.0, 2.0])
    entropy = -(prior * np.log2(prior)).sum()
    bits = of_gaussians(prior, mean, deviation)
    assert 0 <= bits <= entropy + 1e-9
    assert bits == pytest.approx(of_gaussians(prior[order], mean[order], deviation[order]), abs=1e-9)
    assert bits == pytest.approx(of_gaussians(prior, 7 * mean + 3, 7 * deviation), abs=1e-9)
    assert of_gaussians(prior, np.ones(3), np.ones(3)) == pytest.approx(0, abs=1e-9)
    assert of_categories(prior, np.eye(3)) == pytest.approx(entropy)
    assert of_categories(prior, np.full((3, 4), 0.25)) == pytest.approx(0, abs=1e-9)


def test_bits_of_gaussians_are_those_of_their_fine_histogram():
    prior, mean, deviation = np.array([0.3, 0.7]), np.array([0.0, 2.0]), np.array([1.0, 0.5])
    edges = np.linspace(-10, 10, 20001)
    density = np.exp(-0.5 * ((edges - mean[:, None]) / deviation[:, None]) ** 2) / deviation[:, None]
    exact = of_categories(prior, density / density.sum(axis=1, keepdims=True))
    assert of_gaussians(prior, mean, deviation) == pytest.approx(exact, abs=0.005)


def bits_of(prior, weights):
    """Σ_c π_c Σ_k p_ck log₂(p_ck / Σ_c π_c p_ck), cell by cell: [C], [C, K]."""
    bits = 0.0
    for p, cells in zip(prior, weights, strict=True):
        for k, cell in enumerate(cells):
            if cell > 0:
                bits += (
                    p
                    * cell
                    * math.log2(cell / sum(q * row[k] for q, row in zip(prior, weights, strict=True)))
                )
    return bits


@given(PRIORS, st.integers(0, 2**32 - 1))
def test_bits_are_those_of_the_definition(prior, seed):
    """Of categories, some of them never seen; of Gaussians by their densities on a fine grid, to a hundredth."""
    rng = np.random.default_rng(seed)
    cells = rng.dirichlet([0.5] * 4, 3) * (rng.random((3, 4)) < 0.8) + 1e-300
    cells[:, 0] += 0.1
    cells /= cells.sum(axis=1, keepdims=True)
    assert of_categories(prior, cells) == pytest.approx(bits_of(prior, cells), abs=1e-12)
    mean, deviation = rng.normal(size=3), rng.uniform(0.3, 3.0, 3)
    density = norm.pdf(np.linspace(-20, 20, 801), mean[:, None], deviation[:, None])
    exact = bits_of(prior, density / density.sum(axis=1, keepdims=True))
    bits = of_gaussians(prior, mean, deviation)
    assert bits == pytest.approx(exact, abs=0.01)
    assert bits == pytest.approx(of_gaussians(prior, -mean, deviation), abs=1e-9)  # in a mirror


@pytest.mark.parametrize(
    "estimator", [pb.MixedNB(), pb.QDA(), pb.LDA(), pb.MixedNB(calibrate=True, max_iter=4)]
)
def test_every_family_tells(estimator):
    table = mutual_information(estimator.fit(FRAME, ILL).describe())
    assert sorted(table["feature"]) == sorted(FRAME.columns)
    assert table["bits"].is_monotonic_decreasing
    assert table["feature"].iloc[0] == "age"


# --- sample ----------------------------------------------------------------------------------------------------


def test_samples_are_the_seeds_and_can_be_predicted_again(home, tmp_path):
    text = run("sample", home, "-n", 50, "--seed", 3).stdout
    assert text == run("sample", home, "-n", 50, "--seed", 3, "--format", "csv").stdout
    assert text != run("sample", home, "-n", 50, "--seed", 4).stdout
    table = pd.read_csv(io.StringIO(text))
    rows, labels = MODEL.sample(50, random_state=3)
    assert list(table["label"]) == list(labels)
    assert np.array_equal(table["age"], rows["age"])
    run("sample", home, "-n", 50, "--seed", 3, "--out", tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text() == text
    assert "error rate 0." in run("predict", home, tmp_path / "rows.csv", "--label", "label").stderr
    records = json.loads(run("sample", home, "-n", 50, "--seed", 3, "--format", "json").stdout)
    assert records == table.to_dict("records")


def test_samples_that_make_no_sense_are_refused(home):
    refused("-n is 0; expected 1 or more", "sample", home, "-n", 0)
    assert len(run("sample", home).stdout.splitlines()) == 101


def test_the_label_of_a_sample_never_hides_a_feature(tmp_path):
    pb.MixedNB().fit(FRAME.rename(columns={"age": "label"}), ILL).save(tmp_path / "model.peerbayes")
    assert run("sample", tmp_path, "-n", 2).stdout.splitlines()[0] == "label,noise,[city],label_"

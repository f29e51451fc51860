"""Model files: what is read is what was saved, and anything else is refused."""

import hashlib
import json
import os
import re
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb

MAGIC, PREFIX, DIGEST = b"PEERBAYES\n", struct.Struct("<HI"), 32  # the layout, as files.py documents it
START = len(MAGIC) + PREFIX.size

RNG = np.random.default_rng(0)
ROWS = 40
ARRAY = RNG.normal(size=(ROWS, 3))
Y = np.arange(ROWS) % 3
TEXT = pd.Series(RNG.choice(["red", "green", None], ROWS), dtype=object)
FRAME = pd.DataFrame({"length": ARRAY[:, 0], "größe": ARRAY[:, 1], "colour": TEXT, "open": ARRAY[:, 2] > 0})
GAPPY = FRAME.assign(length=np.where(ARRAY[:, 1] > 0.5, np.nan, ARRAY[:, 0]), empty=np.nan)
LABELS = np.array(["no", "yes", "maybe"])[Y]
COSTS = [[0.0, 1.0, 10.0], [2.0, 0.0, 1.0], [1.0, 1.0, 0.0]]

MODELS = {
    "MixedNB": lambda: pb.MixedNB(alpha=0.5).fit(GAPPY, LABELS),
    "MixedNB, calibrated": lambda: pb.MixedNB(calibrate=True, max_iter=5).fit(GAPPY, LABELS),
    "MixedNB, costs": lambda: pb.MixedNB(costs=COSTS).fit(GAPPY, LABELS),
    "MixedNB, array": lambda: pb.MixedNB(clip=None).fit(ARRAY, Y),
    "MixedNB, booleans": lambda: pb.MixedNB(kinds="paper").fit(FRAME, Y == 1),
    "MixedNB, prior": lambda: pb.MixedNB(prior=pb.MixedNB().fit(ARRAY, Y).statistics_ * 0.1).fit(ARRAY, Y),
    "MixedNB, schema": lambda: pb.MixedNB(schema=pb.Schema.infer(ARRAY, Y, clip=1.0)).fit(ARRAY, Y),
    "MixedNB, kinds": lambda: pb.MixedNB(kinds={"length": "discrete"}).fit(FRAME, LABELS),
    "QDA": lambda: pb.QDA(shrinkage=3.0).fit(FRAME, LABELS),
    "QDA, calibrated": lambda: pb.QDA(calibrate=True, max_iter=5, costs=np.array(COSTS)).fit(FRAME, LABELS),
    "LDA": lambda: pb.LDA(variance_floor=0.1).fit(FRAME, LABELS),
    "LDA, calibrated": lambda: pb.LDA(calibrate=True, max_iter=5, keep="last").fit(ARRAY, Y),
}


def table_of(model):
    """Rows that the model can predict, unseen categories among them."""
    names = getattr(model, "feature_names_in_", None)
    return ARRAY if names is None else GAPPY.fillna({"length": 0.0}).replace("red", "pink")[list(names)]


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.fixture
def small(tmp_path):
    """A small model, and its file."""
    model = pb.MixedNB(costs=[[0, 1], [1, 0]]).fit(FRAME[["length", "colour", "open"]], Y > 0)
    model.save(tmp_path / "model")
    return model, tmp_path / "model"


def parts(content):
    """The header, and the bytes of the arrays."""
    _, length = PREFIX.unpack(content[len(MAGIC) : START])
    return json.loads(content[START : START + length]), content[START + length : -DIGEST]


def sealed(header, body, version=1):
    """A file whose digest is right, whatever it holds."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = MAGIC + PREFIX.pack(version, len(text)) + text + body
    return content + hashlib.sha256(content).digest()


# --- what is read is what was saved ------------------------------------------------------------------------


def test_a_loaded_model_predicts_the_same_to_the_last_bit(model, tmp_path):
    model.save(tmp_path / "model")
    loaded, X = pb.load(tmp_path / "model"), table_of(model)
    for method in ("predict_proba", "predict_log_proba", "predict_joint_log_proba"):
        assert getattr(loaded, method)(X).tobytes() == getattr(model, method)(X).tobytes()
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_a_loaded_model_is_read_the_same(model, tmp_path):
    model.save(tmp_path / "model")
    loaded, X = pb.load(tmp_path / "model"), table_of(model)
    pd.testing.assert_frame_equal(loaded.explain(X[:3]), model.explain(X[:3]), check_exact=True)
    pd.testing.assert_frame_equal(loaded.describe(), model.describe(), check_exact=True)
    (mine, my_labels), (theirs, their_labels) = (one.sample(20, random_state=7) for one in (model, loaded))
    pd.testing.assert_frame_equal(pd.DataFrame(mine), pd.DataFrame(theirs), check_exact=True)
    np.testing.assert_array_equal(my_labels, their_labels)


def test_a_loaded_model_knows_its_classes_and_columns(model, tmp_path):
    model.save(str(tmp_path / "model"))
    loaded = pb.load(str(tmp_path / "model"))
    assert type(loaded) is type(model)
    assert (loaded.classes_.dtype, loaded.classes_.tolist()) == (
        model.classes_.dtype,
        model.classes_.tolist(),
    )
    assert loaded.n_features_in_ == model.n_features_in_
    assert list(getattr(loaded, "feature_names_in_", [])) == list(getattr(model, "feature_names_in_", []))
    assert (loaded.schema_, loaded.family_) == (model.schema_, model.family_)
    assert loaded.calibrate == model.calibrate == loaded.statistics_.calibrated
    for name, value in model.get_params().items():
        if name not in ("prior", "costs"):
            assert getattr(loaded, name) == value, name


def test_saving_a_loaded_model_writes_the_same_file(model, tmp_path):
    model.save(tmp_path / "first")
    pb.load(tmp_path / "first").save(tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@pytest.mark.parametrize(
    "name", ["MixedNB", "QDA", "LDA", "MixedNB, array", "MixedNB, prior", "MixedNB, schema"]
)
def test_a_loaded_model_goes_on_learning(name, tmp_path):
    model = MODELS[name]()
    rows, labels = (
        (ARRAY, Y) if model.n_features_in_ == 3 else (GAPPY if name == "MixedNB" else FRAME, LABELS)
    )
    model.save(tmp_path / "model")
    loaded = pb.load(tmp_path / "model").partial_fit(rows, labels)
    np.testing.assert_array_equal(
        loaded.predict_proba(rows), model.partial_fit(rows, labels).predict_proba(rows)
    )


def test_statistics_of_loaded_models_add_up(tmp_path):
    halves = [pb.MixedNB().fit(GAPPY[half::2], LABELS[half::2]) for half in (0, 1)]
    for place, half in enumerate(halves):
        half.save(tmp_path / str(place))
    read = [pb.load(tmp_path / str(place)).statistics_ for place in (0, 1)]
    np.testing.assert_array_equal(sum(read).values, sum(half.statistics_ for half in halves).values)


@pytest.mark.parametrize(
    "parameters",
    [{"max_iter": np.int64(3)}, {"lr": np.float32(0.5)}, {"calibrate": np.False_}, {"clip": np.float32(4)}],
    ids=str,
)
def test_a_model_with_numpy_parameters_can_be_saved(parameters, tmp_path):
    model = pb.MixedNB(**parameters).fit(ARRAY, Y)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(
        pb.load(tmp_path / "model").predict_proba(ARRAY), model.predict_proba(ARRAY)
    )


def test_a_file_is_a_header_raw_arrays_and_a_digest(small):
    """Nothing else, so no pickle."""
    model, path = small
    content = path.read_bytes()
    header, body = parts(content)
    assert content == sealed(json.dumps(header, sort_keys=True).encode(), body)
    statistics = model.statistics_
    arrays = {"statistics": statistics.values, **statistics.observed._asdict()}
    assert header["arrays"] == {name: list(array.shape) for name, array in arrays.items()}
    in_order = [arrays[name].ravel() for name in sorted(arrays)]
    np.testing.assert_array_equal(np.frombuffer(body, "<f8"), np.concatenate(in_order))


def test_loading_never_unpickles(small, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a model file was unpickled")

    for name in ("pickle.loads", "pickle.load", "pickle.Unpickler", "marshal.loads"):
        monkeypatch.setattr(name, refuse)
    pb.load(small[1])


# --- anything else is refused ------------------------------------------------------------------------------


def assert_damaged(path, content):
    path.write_bytes(content)
    with pytest.raises(pb.ModelFileDamaged, match=re.escape(str(path))):
        pb.load(path)


def test_a_file_cut_short_anywhere_is_damaged(small):
    content = small[1].read_bytes()
    for length in [*range(0, len(content) - DIGEST, 5), *range(len(content) - DIGEST, len(content))]:
        assert_damaged(small[1], content[:length])


def test_a_file_with_any_byte_flipped_is_damaged(small):
    content = small[1].read_bytes()
    ends = [*range(START), *range(len(content) - DIGEST, len(content))]
    for place in sorted({*ends, *np.linspace(0, len(content) - 1, 300).astype(int).tolist()}):
        for flip in (0x01, 0x80):
            changed = bytearray(content)
            changed[place] ^= flip
            assert_damaged(small[1], bytes(changed))


@pytest.mark.parametrize("tail", [b"\0", b"\n", bytes(64)])
def test_a_file_with_bytes_after_its_end_is_damaged(small, tail):
    assert_damaged(small[1], small[1].read_bytes() + tail)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", MAGIC, MAGIC + bytes(100), b"a,b\n1,2\n", b"\x80\x04]\x94.", b"PK\x03\x04" + bytes(100)],
    ids=["empty", "line", "magic", "zeros", "text", "pickle", "zip"],
)
def test_a_file_that_is_no_model_is_damaged(tmp_path, content):
    assert_damaged(tmp_path / "model", content)


def test_a_missing_file_is_not_called_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        pb.load(tmp_path / "model")


@pytest.mark.parametrize("version", [2, 3, 65535])
def test_a_newer_format_is_too_new(small, version):
    header, body = parts(small[1].read_bytes())
    small[1].write_bytes(sealed(header, body, version))
    with pytest.raises(pb.ModelFileTooNew, match=f"format {version}.*reads up to 1.*pip install --upgrade"):
        pb.load(small[1])


def test_a_newer_format_may_hold_anything(small):
    small[1].write_bytes(sealed(b"", b"", version=2))
    with pytest.raises(pb.ModelFileTooNew):
        pb.load(small[1])


def test_there_never_was_a_format_zero(small):
    assert_damaged(small[1], sealed(*parts(small[1].read_bytes()), version=0))


@pytest.mark.parametrize(
    "header",
    [b"", b"[]", b"null", b"3", b"{", b'"arrays"', b"\xff", b"{}", b"[" * 10**5],
    ids=lambda text: repr(text[:9]),
)
def test_a_sealed_file_with_another_header_is_damaged(small, header):
    assert_damaged(small[1], sealed(header, parts(small[1].read_bytes())[1]))


def _schema(header, **changes):
    header["schema"] = json.dumps({**json.loads(header["schema"]), **changes})


def _column(header, place, **changes):
    columns = json.loads(header["schema"])["columns"]
    columns[place].update(changes)
    _schema(header, columns=columns)


# The small model has a continuous column and discrete ones of 2 (colour) and 2 (open) categories.
HEADERS = {
    "unknown estimator": lambda h: h.update(estimator="Forest"),
    "estimator of another type": lambda h: h.update(estimator=["MixedNB"]),
    "another estimator": lambda h: h.update(estimator="QDA"),
    "another family": lambda h: h["family"].update(name="lda"),
    "unknown hyper-parameter": lambda h: h["family"].update(depth=3),
    "another layout": lambda h: h["family"].update(missing=True),
    "layout of another type": lambda h: h["family"].update(missing=1.5),
    "no layout": lambda h: h["family"].pop("missing"),
    "calibration of another type": lambda h: h.update(calibrated="no"),
    "floor of zero": lambda h: h["parameters"].update(variance_floor=0.0),
    "negative floor": lambda h: h["parameters"].update(variance_floor=-1.0),
    "floor of another type": lambda h: h["parameters"].update(count_floor="0"),
    "unknown parameter": lambda h: h["parameters"].update(depth=3),
    "no schema": lambda h: h.pop("schema"),
    "schema that is none": lambda h: h.update(schema="{}"),
    "schema of another type": lambda h: h.update(schema=3),
    "schema with fewer columns": lambda h: _schema(h, columns=json.loads(h["schema"])["columns"][:2]),
    "schema with more classes": lambda h: _schema(h, classes=[0, 1, 2]),
    "schema with more categories": lambda h: _column(h, 1, categories=["red", "green", "blue"]),
    "schema with another kind": lambda h: _column(h, 1, kind="continuous", categories=[]),
    "schema with a scale of zero": lambda h: _column(h, 0, scale=0.0),
    "schema with a huge location": lambda h: _column(h, 0, location=10**400),
    "no parameters": lambda h: h.pop("parameters"),
    "parameters of another type": lambda h: h.update(parameters=[1, 2]),
    "no costs": lambda h: h["parameters"].pop("costs"),
    "costs of another shape": lambda h: h["parameters"].update(costs=[[0, 1, 2]]),
    "no arrays": lambda h: h.pop("arrays"),
    "arrays of another type": lambda h: h.update(arrays=[[2, 7], [2, 7]]),
    "statistics turned": lambda h: h["arrays"]["statistics"].reverse(),
    "arrays too large": lambda h: h["arrays"].update(statistics=[2**40, 2**40]),
    "arrays too small": lambda h: h["arrays"].update(statistics=[1, 1]),
    "negative shape": lambda h: h["arrays"].update(statistics=[-1, -14]),
    "shape of another type": lambda h: h["arrays"].update(statistics="27"),
}


@pytest.mark.parametrize("edit", HEADERS.values(), ids=HEADERS.keys())
def test_a_sealed_file_that_describes_no_model_is_damaged(small, edit):
    header, body = parts(small[1].read_bytes())
    edit(header)
    assert_damaged(small[1], sealed(header, body))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, -1])
def test_a_sealed_file_with_numbers_that_are_not_finite_is_damaged(small, place, value):
    header, body = parts(small[1].read_bytes())
    numbers = np.frombuffer(body, "<f8").copy()
    numbers[place] = value
    assert_damaged(small[1], sealed(header, numbers.tobytes()))


def _places(value, path=()):
    """The path of every value in a nested header."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from _places(inner, (*path, key))


def _replaced(value, path, new):
    """A nested header with `new` in the place that `path` leads to."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("value", [None, -1, 0, 2**70, 0.5, np.nan, np.inf, "text", [], {}, True], ids=repr)
def test_a_sealed_file_gives_a_model_that_predicts_or_is_damaged(small, value):
    """Whatever stands in whichever place of the header."""
    path = small[1]
    header, body = parts(path.read_bytes())
    header["schema"] = json.loads(header["schema"])
    for place in set(_places(header)) - {
        ("named",)
    }:  # which only decides whether scikit-learn checks the names
        changed = _replaced(header, place, value)
        path.write_bytes(sealed({**changed, "schema": json.dumps(changed["schema"])}, body))
        try:
            loaded = pb.load(path)
        except pb.ModelFileDamaged:
            continue
        rows = FRAME[["length", "colour", "open"]].set_axis(loaded.schema_.names, axis=1)
        assert np.isfinite(loaded.predict_proba(rows)).all(), place


# --- whole or not at all -----------------------------------------------------------------------------------


def _fail(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "replace")], ids=["fsync", "replace"])
def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(small, monkeypatch, owner, name):
    path = small[1]
    content = path.read_bytes()
    monkeypatch.setattr(owner, name, _fail)
    with pytest.raises(OSError, match="No space left"):
        pb.QDA().fit(ARRAY, Y).save(path, overwrite=True)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]
    monkeypatch.undo()
    pb.QDA().fit(ARRAY, Y).save(path, overwrite=True)
    assert isinstance(pb.load(path), pb.QDA)
    assert list(path.parent.iterdir()) == [path]


def test_a_model_that_cannot_be_written_leaves_no_file(tmp_path):
    model = pb.MixedNB().fit(ARRAY, Y)
    model.lr = object()
    with pytest.raises(TypeError):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())

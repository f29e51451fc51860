"""MLflow, TensorBoard and Weights & Biases hold what a run was: read back from their own stores, without a server."""

import json
import struct
import time

import pytest
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes import callbacks
from peerbayes.callbacks import MLflow, TensorBoard, WandB
from peerbayes.errors import CallbackPartMissing
from peerbayes.simulation.sharded import simulate_shards
from shared.commands import HANG

WINE = load_wine(return_X_y=True)
SETTINGS = {"peers": 6, "rows_per_peer": 15, "rounds": 6, "evaluate_every": 2}

# MLflow's database classes, and what wandb's messages are made of, warn of their own future.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    """Nothing is sent to anybody, or written elsewhere."""
    values = {
        "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true",
        "WANDB_CONFIG_DIR": str(tmp_path / "config"), "WANDB_CACHE_DIR": str(tmp_path / "cache"),
        "WANDB_DATA_DIR": str(tmp_path / "data"),
    }  # fmt: skip
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def stop(round_index, figures):
    """A callback that does not work."""
    if round_index == 4:
        raise OSError("disk full")


def interrupt(round_index, figures):
    """Ctrl-C."""
    raise KeyboardInterrupt


def means(run, name):
    """A column of the history, by round."""
    return run.history.groupby("round")[name].mean().to_dict()


def deviations(run, name):
    """How a column spreads over peers, by round."""
    return run.history.groupby("round")[name].std(ddof=0).to_dict()


# --- MLflow


def metric(client, run_id, name):
    """What MLflow's store has of a metric, by step."""
    return {each.step: each.value for each in client.get_metric_history(run_id, name)}


@pytest.fixture(params=["file", pytest.param("sqlite", marks=pytest.mark.long)])
def mlflow_store(request, tmp_path, monkeypatch):
    """The address of a store that is not there yet; a database takes seconds to be made."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    if request.param == "sqlite":
        pytest.importorskip("alembic")
        return f"sqlite:///{tmp_path / 'mlflow.db'}"
    return (tmp_path / "mlruns").as_uri()


def test_mlflow_reads_back_what_a_run_was(mlflow_store):
    from mlflow import MlflowClient

    tracker = MLflow("wines", mlflow_store, name="first", tags={"who": "a test"})
    run = pb.simulate(*WINE, **SETTINGS, callbacks=[tracker])
    first = tracker.run_id
    for fails in (stop, interrupt):
        with pytest.raises((pb.PeerbayesError, KeyboardInterrupt)):
            pb.simulate(*WINE, **SETTINGS, callbacks=[tracker, fails])

    client = MlflowClient(tracking_uri=mlflow_store)
    stored = client.get_run(first)
    assert stored.info.status == "FINISHED" and stored.info.run_name == "first"
    assert stored.data.params == {
        "rows": "90", "columns": "13", **{name: str(value) for name, value in run.configuration.items()}
    }  # fmt: skip
    assert stored.data.tags["who"] == "a test" and stored.data.tags["made.began"] == run.made["began"]
    for name in ("test_error", "train_error", "disagreement", "bytes"):
        assert metric(client, first, name) == pytest.approx(means(run, name))
        assert metric(client, first, f"{name}_std") == pytest.approx(deviations(run, name))
    assert list(metric(client, first, "seconds")) == [2, 4, 6]
    summary = run.summary()
    assert metric(client, first, "summary/test_rc") == {6: summary["test_rc"]}
    experiment = client.get_experiment_by_name("wines").experiment_id
    last = client.search_runs([experiment])
    assert sorted(each.info.status for each in last) == ["FAILED", "FINISHED", "KILLED"]
    [failed] = [each for each in last if each.info.status == "FAILED"]
    assert "disk full" in failed.data.tags["error"] and list(metric(client, failed.info.run_id, "bytes")) == [
        2,
        4,
    ]


# --- TensorBoard


def events(path):
    """What TensorBoard itself reads from a folder."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulator.EventAccumulator(str(path))
    reader.Reload()
    return reader


def scalars(reader, tag):
    """The values of a tag, by step."""
    return {event.step: event.value for event in reader.Scalars(tag)}


def text(reader, tag):
    """The text of a tag."""
    [event] = reader.Tensors(tag)
    return event.tensor_proto.string_val[0].decode()


def test_tensorboard_reads_back_what_a_run_was(tmp_path):
    pytest.importorskip("tensorboard")
    tracker = TensorBoard(tmp_path / "logs")
    run = pb.simulate(*WINE, **SETTINGS, callbacks=[tracker])
    reader = events(tracker.path)
    for name in ("test_error", "train_error", "disagreement", "bytes"):
        assert scalars(reader, name) == pytest.approx(means(run, name), rel=1e-6)
        assert scalars(reader, f"{name}_std") == pytest.approx(deviations(run, name), rel=1e-6, abs=1e-9)
    assert scalars(reader, "summary/test_rc") == {6: pytest.approx(run.summary()["test_rc"])}
    assert '| strategy | "exact" |' in text(reader, "settings") and "| rows | 90 |" in text(
        reader, "settings"
    )
    assert f'| began | "{run.made["began"]}" |' in text(reader, "made")


def test_tensorboard_has_a_folder_for_each_run_and_closes_those_that_fail(tmp_path):
    pytest.importorskip("tensorboard")
    tracker = TensorBoard(tmp_path, name="wine")
    paths = []
    for fails in ([], [stop]):
        try:
            pb.simulate(*WINE, **SETTINGS, callbacks=[tracker, *fails])
        except pb.PeerbayesError as error:
            assert "disk full" in str(error)
        paths.append(tracker.path)
    assert [path.name for path in paths] == ["wine", "wine-2"]
    reader = events(paths[1])
    assert list(scalars(reader, "test_error")) == [2, 4] and "disk full" in text(reader, "error")
    assert "summary/test_error" not in reader.Tags()["scalars"]


def test_tensorboard_shows_a_round_at_once(tmp_path):
    pytest.importorskip("tensorboard")
    tracker, seen = TensorBoard(tmp_path), []

    def look(round_index, figures):
        seen.append(scalars(events(tracker.path), "test_error"))

    run = pb.simulate(*WINE, **SETTINGS, callbacks=[tracker, look])
    assert [list(each) for each in seen] == [[2], [2, 4], [2, 4, 6]]
    assert seen[-1] == pytest.approx(means(run, "test_error"))


def test_tensorboard_logs_shards(tmp_path):
    pytest.importorskip("tensorboard")
    tracker = TensorBoard(tmp_path)
    run = simulate_shards(*WINE, **SETTINGS, strategy="exact", callbacks=[tracker])
    assert scalars(events(tracker.path), "train_error") == pytest.approx(means(run, "train_error"), rel=1e-6)


# --- Weights & Biases

BLOCK = 32768  # bytes of a block of the log in which wandb stores a run
FIRST, LAST = (1, 2), (1, 4)  # kinds of pieces that begin and end a record


def records(folder):
    """Yield the records that `wandb sync` would send: pieces in blocks, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    [path] = folder.glob("*.wandb")
    content, start, pieces = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while start + 7 <= len(content):
        if BLOCK - start % BLOCK < 7:
            start += BLOCK - start % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, start)
        pieces = (b"" if kind in FIRST else pieces) + content[start + 7 : start + 7 + length]
        start += 7 + length
        if kind in LAST:
            yield Record.FromString(pieces)


def stored_by_wandb(folder):
    """The configuration, the figures by step, the summary and the exit status of a run in a folder.

    wandb's own process writes the end of the file soon after the run is finished.
    """
    end = time.monotonic() + HANG
    while (content := read_by_wandb(folder))[-1] is None and time.monotonic() < end:
        time.sleep(0.1)
    return content


def read_by_wandb(folder):
    """What is stored of a run so far; the exit status is None before its end."""
    configuration, history, summary, status = {}, {}, {}, None

    def values(items):
        return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}

    for record in records(folder):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            configuration |= values(record.run.config.update)
        elif kind == "history":
            history[record.history.step.num] = values(record.history.item)
        elif kind == "summary":
            summary |= values(record.summary.update)
        elif kind == "exit":
            status = record.exit.exit_code
    return configuration, history, summary, status


def test_wandb_stores_what_a_run_was(tmp_path):
    pytest.importorskip("wandb")
    tracker = WandB("wines", tmp_path / "not there")
    run = pb.simulate(*WINE, **SETTINGS, callbacks=[tracker])
    configuration, history, summary, status = stored_by_wandb(tracker.path)
    assert tracker.path.is_relative_to(tmp_path / "not there") and status == 0
    assert configuration["rows"] == 90 and configuration["strategy"] == "exact"
    assert configuration["made"]["began"] == run.made["began"]
    for name in ("test_error", "train_error", "disagreement", "bytes"):
        assert {step: each[name] for step, each in history.items()} == pytest.approx(means(run, name))
    assert summary["summary/test_rc"] == run.summary()["test_rc"]
    with pytest.raises(pb.PeerbayesError):
        pb.simulate(*WINE, **SETTINGS, callbacks=[tracker, stop])
    _, history, summary, status = stored_by_wandb(tracker.path)
    assert list(history) == [2, 4] and "disk full" in summary["error"] and status == 1


# --- without the packages


@pytest.mark.parametrize(
    ("make", "extra"), [(MLflow, "mlflow"), (lambda: TensorBoard("logs"), "tensorboard"), (WandB, "wandb")]
)
def test_a_missing_package_is_named_at_once(make, extra, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

    monkeypatch.setattr(callbacks, "import_module", missing)
    with pytest.raises(CallbackPartMissing, match=rf"{extra} is not installed; .* 'peerbayes\[{extra}\]'"):
        make()

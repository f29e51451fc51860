"""The Ray engine: the same results as a loop, whatever happens to its workers."""

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from peerbayes.errors import ConfigurationError
from peerbayes.experiments.engines import AHEAD, DEATHS, CellFailed, LocalEngine, RayEngine
from peerbayes.experiments.paper_tables import Table
from peerbayes.experiments.results_store import Store
from peerbayes.experiments.sweep import Sweep
from peerbayes.simulation.sharded.workers import cluster

pytest.importorskip("ray", reason="needs the extra cluster")

# Ray lets go of the processes it started without waiting for them, and Python says so when they are collected.
pytestmark = pytest.mark.filterwarnings(
    "ignore:subprocess:ResourceWarning", "ignore:unclosed:ResourceWarning"
)

SPECIFICATIONS = [{"number": number} for number in range(9)]


@pytest.fixture(scope="module", autouse=True)
def importable():
    """Workers find the functions of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield
        gc.collect()  # here, where the warnings are expected


@pytest.fixture(scope="module")
def running(importable):
    """Ray for the tests that kill and fail: starting it takes seconds."""
    with cluster(2):
        yield


def square(specification):
    return {"square": specification["number"] ** 2, "threads": os.environ["OMP_NUM_THREADS"]}


def expected(number):
    return {"square": number**2, "threads": "1"}


def slow(specification):
    """Write who computes this cell, then take long enough to be killed, the first time."""
    pids = Path(specification["folder"]) / f"{specification['number']}"
    first = not pids.exists()
    with pids.open("a") as file:
        file.write(f"{os.getpid()}\n")
    if first and specification["number"] == 3:
        time.sleep(60)
    return square(specification)


def deadly(specification):
    os.kill(os.getpid(), signal.SIGKILL)


def failing(specification):
    tries = Path(specification["folder"]) / "tries"
    with tries.open("a") as file:
        file.write("x")
    raise ValueError("no such dataset")


def test_ray_started_and_ended_by_the_engine_gives_what_a_loop_gives():
    import ray

    assert dict(RayEngine(workers=2).run(square, SPECIFICATIONS)) == {k: expected(k) for k in range(9)}
    gc.collect()
    assert not ray.is_initialized()
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


def test_a_killed_worker_costs_only_time(running, tmp_path):
    cells = [{**cell, "folder": str(tmp_path)} for cell in SPECIFICATIONS]
    killed = []

    def kill():
        pids = tmp_path / "3"
        while not (pids.exists() and pids.read_text().endswith("\n")):
            time.sleep(0.05)
        killed.append(int(pids.read_text()))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    results = dict(RayEngine(workers=2).run(slow, cells))
    killer.join()
    assert results == {k: expected(k) for k in range(9)}
    tried = (tmp_path / "3").read_text().split()
    assert len(tried) == 2 and int(tried[0]) == killed[0] != int(tried[1])


def test_a_cell_that_kills_its_workers_is_named(running):
    with pytest.raises(ConfigurationError, match=rf"{DEATHS} workers died .*'number': 7"):
        list(RayEngine(workers=2).run(deadly, [{"number": 7}]))


def test_an_error_of_a_cell_is_raised_with_it_and_not_retried(running, tmp_path):
    cell = {"number": 5, "folder": str(tmp_path)}
    with pytest.raises(CellFailed, match=r"'number': 5.* failed: ValueError\('no such dataset'\)") as caught:
        list(RayEngine(workers=2).run(failing, [cell]))
    assert caught.value.specification == cell
    assert isinstance(caught.value.__cause__, ValueError)
    assert (tmp_path / "tries").read_text() == "x"


def test_an_interrupted_sweep_had_few_cells_in_flight(running, tmp_path):
    results = RayEngine(workers=1).run(
        slow, [{"number": k, "folder": str(tmp_path)} for k in (0, 1, 2, 4, 5)]
    )
    assert next(results)[1]["threads"] == "1"
    results.close()
    assert len(list(tmp_path.iterdir())) <= AHEAD


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"peerbayes\[cluster\]"):
        list(RayEngine().run(square, SPECIFICATIONS))


def test_ray_gives_the_local_engines_numbers(tmp_path):
    """The same cells, the same bits."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    frame = pd.DataFrame(rng.normal(size=(600, 3)) + labels[:, None], columns=["a", "b", "c"]).assign(
        label=labels
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    table = Table(
        "04",
        "",
        "gap",
        {"tree": {}, "ring": {"topology": "ring"}},
        {"peers": 6, "rows_per_peer": 20, "rounds": 5},
    )
    sweep = Sweep((table,), (str(tmp_path / "rows.parquet"),), ("crc", "exact", "auto"), (0, 1))
    stores = [Store(tmp_path / f"{name}.sqlite") for name in ("local", "ray")]
    for store, engine in zip(stores, (LocalEngine(2), RayEngine(2)), strict=True):
        sweep.compute(store, engine)
    results = [store.results(cell.key for cell in sweep.cells()) for store in stores]
    for found in (*results[0].values(), *results[1].values()):
        found.pop("seconds")
    assert len(results[0]) == len(sweep.cells()) and results[0] == results[1]

"""Which tests run, how and in which order; and the fixtures of several folders. What else they share is in shared/."""

import os
import random
import signal
import sys
from itertools import groupby
from pathlib import Path

# Tests run side by side: threads within each would only be in the way. Read when NumPy and PyTorch are imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from peerbayes.model.families import Family

pytest.register_assert_rewrite("shared")  # what is shared says as much as a test where it fails

from shared.browsing import browser, open_page  # noqa: E402, F401  (fixtures)
from shared.families import FAMILIES  # noqa: E402
from shared.link_option import KINDS, Current, kind_of_links  # noqa: E402, F401  (a fixture)

# A shell ignores Ctrl-C in what it starts in the background, and so would all processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How many examples of a law are tried where a test does not say it: in a newcomer's minutes, and with --all.
for profile, examples in (("short", 20), ("all", 60)):
    settings.register_profile(
        profile,
        deadline=None,  # machines are noisy: no test is timed
        max_examples=examples,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile("short")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="also the tests marked long: soak, hosts, documented commands, …"
    )
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="files, and tests within a file, in random order"
    )
    parser.addoption(
        "--links",
        choices=KINDS,
        help="only tests marked links, over links of this kind (shared/kinds_of_links.py)",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("all" if config.getoption("--all") else "short")
    if (kind := config.getoption("--links")) is not None:
        Current.kind = kind
        import shared.kinds_of_links  # noqa: F401  (networks are made by it from now on)


def pytest_sessionfinish() -> None:
    if (used := sys.modules.get("shared.kinds_of_links")) is not None:
        used.stop_relay()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two workers more than processors, since tests of real peers wait as much as they work; 0 for one test."""
    if any("::" in argument for argument in config.args):
        return 0
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long tests out unless they or their file are asked for; every worker begins with its share of them."""
    named = any("::" in argument or argument.endswith(".py") for argument in config.args)
    if not config.getoption("--all") and not named:
        config.hook.pytest_deselected(items=[item for item in items if is_long(item)])
        items[:] = [item for item in items if not is_long(item)]
    if config.getoption("--links") is not None:
        chosen = [item for item in items if follows(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen
    if (seed := config.getoption("--shuffle")) is not None:
        files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
        order = random.Random(seed)
        order.shuffle(files)
        for tests in files:
            order.shuffle(tests)
        items[:] = [item for tests in files for item in tests]
    items[:] = dealt(items, getattr(config, "workerinput", {}).get("workercount", 1))


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return tests in an order in which the part that each worker is given begins with its share of the long ones.

    Workers are given equal parts, one after the other, and then take from each other's ends: so that none of them ends
    with minutes of long tests while the others have nothing left to do.
    """
    long, short = [item for item in items if is_long(item)], [item for item in items if not is_long(item)]
    order: list[pytest.Item] = []
    for worker in range(workers):
        share = long[worker::workers]
        room = max(0, (len(items) - len(order)) // (workers - worker) - len(share))
        order += share + short[:room]
        short = short[room:]
    return order


def is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def follows(item: pytest.Item) -> bool:
    """Return whether a test goes over links of the kind that `--links` says, and not over those of a parameter."""
    of_parameter = getattr(item, "callspec", None) and item.callspec.params.get("kind_of_links")
    return item.get_closest_marker("links") is not None and of_parameter is None


@pytest.fixture(scope="session", params=FAMILIES.values(), ids=FAMILIES.keys())
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def paper_data() -> Path:
    """The folder of the paper's datasets, named by PEERBAYES_DATA; tests that need it are skipped without it."""
    folder = Path(os.environ.get("PEERBAYES_DATA", "nowhere"))
    if not (folder / "letter_recognition.parquet").exists():
        pytest.skip("PEERBAYES_DATA does not name the folder of the paper's datasets")
    return folder

"""What is seen and switched while a simulation goes on, in a browser: the time that is left, and logarithmic axes."""

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette")
pytest.importorskip("plotly")

from shared.browsing import until
from shared.dashboards import ROUNDS, Simulated, watching

LAYOUT = "document.getElementById('figure-error')._fullLayout"
MEAN = "document.getElementById('figure-error')?.data?.find((trace) => trace.meta.role === 'mean')"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A simulation whose clock the test sets, and the address of its dashboard."""
    clock = SimpleNamespace(now=time.time())
    monkeypatch.setattr("peerbayes.simulation.view.time", SimpleNamespace(time=lambda: clock.now))
    made = Simulated(tmp_path / "run")
    made.round()
    with watching(tmp_path / "run") as (_, url):
        yield made, clock, url
    made.file.close()


def seen(page, round_index):
    until(page, f"document.getElementById('round').innerText.includes('round {round_index} ')")


def test_the_time_that_is_left_follows_the_pace_of_the_last_rounds(run, open_page):
    made, clock, url = run
    page = open_page(url)
    seen(page, 1)
    assert page.inner_text("#speed") == ""  # one round has no pace
    clock.now += 4
    made.round()
    seen(page, 2)
    until(page, "document.getElementById('speed').innerText === '4.0 s per round, about 3 min left'")
    clock.now += 4
    while made.done < 42:
        made.round()
    seen(page, 42)
    until(page, "document.getElementById('speed').innerText === '5.13 rounds per second, about 2 s left'")
    while made.done < ROUNDS:
        made.round()
    seen(page, ROUNDS)
    until(page, "!document.getElementById('speed').innerText.includes('left')")


def test_axes_that_are_switched_while_rounds_come_stay_as_they_are(run, open_page):
    made, _, url = run
    page = open_page(url)
    for _ in range(3):
        made.round()
    until(page, f"{MEAN}?.x.length === 4")
    assert page.evaluate(f"[{LAYOUT}.xaxis.type, {LAYOUT}.yaxis.type]") == ["linear", "linear"]
    page.check("#axis-log")
    until(page, f"{LAYOUT}.yaxis.type === 'log'")
    made.round()
    until(page, f"{MEAN}.x.length === 5")
    assert page.evaluate(f"[{LAYOUT}.xaxis.type, {LAYOUT}.yaxis.type]") == ["linear", "log"]
    page.select_option("#axis-x", "bytes")
    page.check("#axis-log-x")
    until(page, f"{LAYOUT}.xaxis.type === 'log' && {LAYOUT}.xaxis.title.text.startsWith('bytes')")
    made.round()
    until(page, f"{MEAN}.x.length === 6")
    assert page.evaluate(f"Array.from({MEAN}.x)") == [100.0 * turn for turn in range(1, 7)]
    assert page.evaluate(f"[{LAYOUT}.xaxis.type, {LAYOUT}.yaxis.type]") == ["log", "log"]
    page.uncheck("#axis-log")
    page.uncheck("#axis-log-x")
    until(page, f"{LAYOUT}.yaxis.type === 'linear' && {LAYOUT}.xaxis.type === 'linear'")

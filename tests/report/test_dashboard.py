"""The dashboard in a real browser: it follows a running simulation and a running peer, and says so when it cannot."""

import contextlib
import re
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("plotly")
pytest.importorskip("cryptography")

from sklearn.datasets import load_digits

from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.loopback import Loopback
from peerbayes.simulation.result import LIVE_FILE, RUN_FILE
from shared.commands import HANG
from shared.dashboards import ROUNDS, Simulated, until, watching

pytestmark = pytest.mark.long

SIMULATION = """
[data]
name = "digits"
[simulation]
peers = 30
rows_per_peer = 20
partition = "drift-y"
rounds = 2000
evaluate_rows = 400
"""

POINTS = "name => peerbayes.figure(name).data.find(trace => trace.meta.role === {role!r}).x.length"
LINE = "document.querySelector('#figure-error .scatterlayer .js-line:last-child')?.getAttribute('d')?.length || 0"
WHERE = """peer => {
  const figure = document.getElementById("figure-network");
  const trace = figure.data.find(one => one.meta.role === "peers");
  const {xaxis, yaxis} = figure._fullLayout, box = figure.getBoundingClientRect();
  return [box.left + xaxis._offset + xaxis.l2p(trace.x[peer]), box.top + yaxis._offset + yaxis.l2p(trace.y[peer])];
}"""


def points(page, name, role):
    return page.evaluate(POINTS.format(role=role), name)


def drawn(page, name):
    return page.evaluate(f"Number(document.getElementById('figure-{name}')?.dataset.drawn || 0)")


def wait(found, what):
    return until(found, what, HANG)


def round_of(page):
    found = re.search(r"round ([\d,]+)", page.inner_text("#round"))
    return int(found[1].replace(",", "")) if found else 0


@pytest.fixture
def simulation(tmp_path):
    """`peerbayes simulate --watch` as a process, its address and its folder."""
    (tmp_path / "digits.toml").write_text(SIMULATION)
    words = ["simulate", str(tmp_path / "digits.toml"), "--out", str(tmp_path / "run"), "--watch", "--stay"]
    with subprocess.Popen(
        [sys.executable, "-m", "peerbayes", *words, "--watch-address", "0"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            told = process.stderr.readline()
            assert "Watch it at http://127.0.0.1:" in told
            process.send_signal(signal.SIGSTOP)  # until somebody looks, however fast the machine is
            yield process, told.split()[-1], tmp_path / "run"
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=HANG)
        finally:
            process.kill()  # one that does not end in time would leave its pipe open


def test_a_running_simulation_is_followed_to_its_end(browser, simulation, open_page):
    process, url, folder = simulation
    page = open_page(url)
    page.evaluate("window.never_loaded_again = true")
    process.send_signal(signal.SIGCONT)
    wait(lambda: "running" in page.inner_text("#state") and drawn(page, "error"), "the first curves")
    process.send_signal(signal.SIGSTOP)  # held while somebody looks, however fast the machine is
    first = round_of(page), points(page, "error", "mean"), points(page, "error", "each"), page.evaluate(LINE)
    assert not (folder / RUN_FILE).exists() and (folder / LIVE_FILE).exists()

    def grown():
        now = (
            round_of(page),
            points(page, "error", "mean"),
            points(page, "error", "each"),
            page.evaluate(LINE),
        )
        return all(more > less for more, less in zip(now, first, strict=True))

    process.send_signal(signal.SIGCONT)
    wait(grown, "curves that grow")
    process.send_signal(signal.SIGSTOP)
    assert page.evaluate("document.getElementById('progress').value") >= first[0]

    # A click on a peer in the network shows its curve.
    page.locator("#figure-network").scroll_into_view_if_needed()
    wait(lambda: drawn(page, "network"), "the network")

    def clicked():
        page.mouse.click(*page.evaluate(WHERE, 7))
        page.wait_for_timeout(200)
        return points(page, "error", "chosen") > 0 and page.input_value("#chosen-peer") == "7"

    wait(clicked, "the chosen peer's curve")
    assert "Peer 7: 20 rows; test error" in page.inner_text("#chosen-said")
    before = points(page, "error", "chosen")
    process.send_signal(signal.SIGCONT)
    wait(lambda: points(page, "error", "chosen") > before, "a chosen curve that grows")

    # The end comes by itself: all figures, the model's as well.
    wait(lambda: page.inner_text("#state") == "finished", "the end")
    wait(lambda: page.locator("#figure-confusion").count() == 1, "the figures of the model")
    page.locator("#figure-confusion").scroll_into_view_if_needed()
    wait(lambda: drawn(page, "confusion"), "the confusion matrix")
    assert (
        round_of(page) == 2000 and points(page, "error", "mean") == 2000 and points(page, "error", "rc") > 0
    )
    assert page.evaluate("window.never_loaded_again") and (folder / RUN_FILE).exists()
    assert points(page, "error", "chosen") == 2000  # whom one follows stays chosen


@pytest.fixture
def network(tmp_path):
    """Three real peers; the first has a dashboard."""
    frame = load_digits(as_frame=True).frame.sample(frac=1.0, random_state=0)
    terms = Terms(
        "digits", "target", rounds=1_000_000, limits=Limits(deadline=1.0, quorum=0.3), strategy="exact"
    )
    made = Loopback.create(tmp_path, terms, [frame.iloc[place::3] for place in range(3)], [(0, 1), (0, 2)])
    home = made.homes["peer-1"]
    home.settings_path.write_text(home.settings_path.read_text().replace("# hold_out", "hold_out"))
    yield made
    made.stop()


def test_a_running_peer_is_followed_and_a_neighbour_that_dies_is_shown(browser, network, open_page):
    for name in network.homes:
        network.start(name, *(("--dashboard", "--dashboard-address", "0") if name == "peer-1" else ()))
    log = network.homes["peer-1"].log_path
    told = wait(lambda: re.search(r"Watch it at (\S+)", log.read_text()), "the dashboard's address")
    page = open_page(told[1])

    def states():
        return {
            row.get_attribute("data-name"): row.locator(".state").inner_text()
            for row in page.locator("#neighbours-rows tr").all()
        }

    wait(lambda: states() == {"peer-2": "up", "peer-3": "up"}, "neighbours that are up")
    wait(lambda: page.inner_text("#state") == "running" and drawn(page, "error"), "the first curves")
    assert page.inner_text("#name") == "peer-1" and "digits" in page.inner_text("#about")
    first = round_of(page), points(page, "error", "test_error"), points(page, "bytes", "bytes")
    newest = "Number(document.querySelector('#audit-rows tr').dataset.number)"
    line = page.evaluate(newest)

    def grown():
        now = round_of(page), points(page, "error", "test_error"), points(page, "bytes", "bytes")
        return (
            all(more > less for more, less in zip(now, first, strict=True)) and page.evaluate(newest) > line
        )

    wait(grown, "rounds, curves and lines of the audit log")
    cells = page.locator("#audit-rows tr").first.inner_text().split("\t")
    assert cells[1] in ("peer-2", "peer-3") and cells[2].startswith("round ") and len(cells) == 5
    assert "the hash chain is intact" in page.inner_text("#audit-told")
    assert re.search(r"Error on held-out rows\s+0\.\d{4}", page.inner_text("#facts"))
    marks = "peerbayes.figure('network').data.map(trace => trace.meta.role)"
    assert page.evaluate(marks) == ["links", "up", "me"]
    wait(lambda: page.locator("#figure-priors").count() == 1, "the model's figures")

    network.processes["peer-2"].kill()
    wait(lambda: states() == {"peer-2": "down", "peer-3": "up"}, "a neighbour that is down")
    wait(lambda: page.evaluate(marks) == ["links", "up", "down", "me"], "it in the network")
    missed = "#neighbours-rows tr[data-name='peer-2'] td:nth-child(6)"
    wait(lambda: int(page.inner_text(missed)) > 0, "rounds without it")
    then = round_of(page)
    wait(lambda: round_of(page) > then, "rounds that go on")
    network.processes["peer-1"].send_signal(signal.SIGSTOP)  # nothing is computed by the page's own process
    try:
        page.reload()
        wait(lambda: drawn(page, "error"), "a page of a peer that stands still")
    finally:
        network.processes["peer-1"].send_signal(signal.SIGCONT)


def test_the_runs_of_a_network_are_listed(browser, network, open_page):
    from peerbayes.peer.runs import Runs

    home = network.homes["peer-1"]
    with watching(home.folder) as (_, url):
        page = open_page(url)
        wait(lambda: page.inner_text("#name") == "peer-1", "the page")
        assert page.locator("#runs").is_hidden(), "of a network that has had one run, the page is about that"
        Runs(home.folder).propose()
        wait(lambda: page.locator("#runs-rows tr").count() == 2, "the second run")
        cells = page.locator("#runs-rows tr").first.inner_text().split("\t")
        assert [cell.strip() for cell in cells[:4]] == ["2", "proposed", "peer-1", "1 of 3"]
        assert cells[6] == "waits for peer-2, peer-3"
        assert page.locator("#runs button, #runs a, #runs input").count() == 0


@pytest.fixture
def stopped(tmp_path):
    """A simulation whose last message is two minutes old, and its dashboard."""
    made = Simulated(tmp_path / "stopped")
    for _ in range(5):
        made.round()
    with contextlib.closing(sqlite3.connect(tmp_path / "stopped" / LIVE_FILE, isolation_level=None)) as file:
        file.execute("UPDATE turns SET at = at - 120")
    with watching(tmp_path / "stopped") as (process, url):
        yield made, process, url
    made.file.close()


def test_a_simulation_that_stopped_and_one_that_takes_its_folder(browser, stopped, open_page):
    made, _, url = stopped
    page = open_page(url)
    wait(lambda: page.inner_text("#state") == "seems to have stopped", "that it stopped")
    assert re.search(r"last message \d+ min ago", page.inner_text("#heard"))
    made.round()
    wait(lambda: page.inner_text("#state") == "running" and round_of(page) == 6, "that it goes on")
    other = Simulated(made.file.path.parent, "crc", peers=9)
    wait(lambda: "9 peers, strategy crc" in page.inner_text("#about"), "the other simulation")
    other.round()
    wait(lambda: round_of(page) == 1 and points(page, "error", "mean") == 1, "its first round")
    other.file.close()


def test_a_lost_connection_is_shown_and_taken_up_again(browser, stopped):
    made, process, url = stopped
    page = browser.new_page()
    page.goto(url)
    wait(lambda: drawn(page, "error"), "the first curves")
    process.kill()
    process.wait()
    wait(lambda: "not connected" in page.inner_text("#state"), "that it is not connected")
    made.round()
    port = url.rstrip("/").rpartition(":")[2]
    words = [sys.executable, "-m", "peerbayes", "watch", str(made.file.path.parent), "--address", port]
    again = subprocess.Popen(words, stdout=subprocess.DEVNULL)

    def connected():
        nonlocal again
        if again.poll() is not None:  # something else had the port for a moment
            again = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        return page.inner_text("#state") in (
            "running",
            "seems to have stopped",
        )  # the second on a slow machine

    try:
        wait(connected, "that it is connected again")
        wait(lambda: points(page, "error", "mean") == 6, "what was missed")
    finally:
        page.close()
        again.terminate()
        assert again.wait(HANG) == 0


def test_by_keyboard_on_a_phone_in_the_dark(browser, stopped, open_page):
    _, _, url = stopped
    page = open_page(
        url,
        viewport={"width": 360, "height": 740},
        color_scheme="dark",
        reduced_motion="reduce",
        has_touch=True,
    )
    wait(lambda: drawn(page, "error"), "the first curves")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", back)[:3])) < 60
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the figures"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "chosen-peer"
    page.keyboard.type("2")
    wait(lambda: points(page, "error", "chosen") == 5, "the chosen peer's curve")
    page.keyboard.press("Escape")
    wait(lambda: points(page, "error", "chosen") == 0, "no chosen peer")
    assert f"round 5 of {ROUNDS}" in page.inner_text("#announced")
    assert "test error went from" in page.get_attribute("#figure-error", "aria-label")


def test_a_network_of_ten_thousand_peers_is_drawn(browser, tmp_path, open_page):
    made = Simulated(tmp_path, peers=10_000)
    made.round()
    with watching(tmp_path) as (_, url):
        page = open_page(url)
        wait(lambda: drawn(page, "error"), "the first curves")
        page.locator("#figure-network").scroll_into_view_if_needed()
        wait(lambda: drawn(page, "network"), "the network")
        assert points(page, "network", "peers") == 10_000
        page.fill("#chosen-peer", "9999")
        wait(lambda: "Peer 9999: 7 rows" in page.inner_text("#chosen-said"), "the last peer")
        began = time.monotonic()
        made.round()
        wait(lambda: points(page, "error", "mean") == 2, "the next round")
        assert time.monotonic() - began < HANG
        page.context.close()
    made.file.close()


def test_the_folder_is_only_read_and_the_key_is_not(network, tmp_path):
    """A peer's folder is shown without its key, and without a right to write there."""
    from peerbayes.report.dashboard.feed import Folder

    home = network.homes["peer-1"]
    home.key_path.unlink()
    files = {path.name: path.read_bytes() for path in home.folder.iterdir()}
    seen = Folder(home.folder).look()
    assert seen.kind == "peer" and seen.facts["peers"] == 3 and not seen.facts["running"]
    assert [each["state"] for each in seen.facts["neighbours"]] == ["not known", "not known"]
    assert {path.name: path.read_bytes() for path in home.folder.iterdir()} == files

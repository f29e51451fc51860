"""A report as it is seen: at a desk and on a phone, light and dark, printed, and captured as a whole."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from peerbayes import report, simulate
from shared.browsing import until

STRATEGIES = ("exact", "crc", "local")
SHAPES = [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")]

# Every figure that has no drawing; every card that shows nothing; every table that is cut.
MISSING = """[...document.querySelectorAll('.plot')]
  .filter((div) => !div.querySelector('.main-svg')).map((div) => div.id)"""
EMPTY = """[...document.querySelectorAll('.card')].filter((card) => card.textContent.trim().length < 5
  || card.getBoundingClientRect().height < 40
  || [...card.querySelectorAll('.plot')].some((div) => !div.querySelector('path, image, rect.bg'))).length"""
CUT = """[...document.querySelectorAll('table, dl.facts')].filter((table) => {
  const room = table.closest('.scroll') || table;
  const card = table.closest('.card').getBoundingClientRect();
  const box = room.getBoundingClientRect();
  const scrolls = ['auto', 'scroll'].includes(getComputedStyle(room).overflowX);
  const outside = box.right > card.right + 1 || box.left < card.left - 1;
  return outside || (room.scrollWidth > room.clientWidth + 1 && !scrolls);
}).length"""
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OUTSIDE = """[...document.querySelectorAll('.plot .main-svg')].filter((drawing) => {
  const card = drawing.closest('.card').getBoundingClientRect();
  return drawing.getBoundingClientRect().right > card.right + 1;
}).length"""


@pytest.fixture(scope="module")
def runs():
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    settings = {
        "peers": 8,
        "rows_per_peer": 30,
        "rounds": 12,
        "partition": "dirichlet-0.5",
        "topology": "tree",
    }
    labels = np.array(["malignant", "benign"])[y]
    return [simulate(X.iloc[:, :9], labels, strategy=strategy, **settings) for strategy in STRATEGIES]


@pytest.fixture(scope="module")
def one(runs, tmp_path_factory):
    return report.write(tmp_path_factory.mktemp("one") / "report.html", runs[:1]).as_uri()


@pytest.fixture(scope="module")
def several(runs, tmp_path_factory):
    return report.write(tmp_path_factory.mktemp("several") / "report.html", runs).as_uri()


def opened(open_page, address, width, scheme):
    """Open a page and wait until all its figures are drawn, without scrolling."""
    page = open_page(address, viewport={"width": width, "height": 900}, color_scheme=scheme)
    until(page, f"{MISSING}.length === 0")
    return page


@pytest.mark.parametrize(("width", "scheme"), SHAPES)
def test_nothing_is_cut_or_empty_and_all_figures_are_there_without_scrolling(open_page, one, width, scheme):
    page = opened(open_page, one, width, scheme)
    assert page.evaluate("scrollY") == 0
    assert page.evaluate(WIDER) <= 0
    assert page.evaluate(EMPTY) == page.evaluate(CUT) == page.evaluate(OUTSIDE) == 0


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), SHAPES)
def test_several_runs_fit_as_well(open_page, several, width, scheme):
    page = opened(open_page, several, width, scheme)
    assert page.evaluate(WIDER) <= 0
    assert page.evaluate(EMPTY) == page.evaluate(CUT) == page.evaluate(OUTSIDE) == 0


# Tables that are wider than their room, though they could scroll; cells without the title of their column beside them.
SCROLLING = """[...document.querySelectorAll('.scroll')].filter((room) => room.scrollWidth > room.clientWidth).length"""
UNTITLED = """[...document.querySelectorAll('table td')].filter((cell) => cell.getClientRects().length
  && cell.colSpan === 1 && getComputedStyle(cell, '::before').content !== `"${cell.dataset.title}"`).length"""
TITLES = "[...document.querySelectorAll('thead th')].filter((title) => title.getClientRects().length).length"


@pytest.mark.parametrize("number", ["one", "several"])
def test_tables_fit_a_phone_without_scrolling_and_keep_the_titles_of_their_columns(
    open_page, request, number
):
    page = opened(open_page, request.getfixturevalue(number), 390, "light")
    assert page.locator("table").count() >= 2
    assert page.evaluate(SCROLLING) == 0 and page.evaluate(CUT) == 0 and page.evaluate(WIDER) <= 0
    assert page.evaluate(UNTITLED) == 0 and page.evaluate(TITLES) == 0
    assert (
        page.evaluate(
            "Math.min(...[...document.querySelectorAll('td')].map((c) => parseFloat(getComputedStyle(c).fontSize)))"
        )
        >= 13
    )
    page.set_viewport_size({"width": 1400, "height": 900})
    assert page.evaluate(TITLES) >= 6  # a desk has tables with a head
    assert (
        page.evaluate("getComputedStyle(document.querySelector('td[data-title]'), '::before').content")
        == "none"
    )


RANGES = """(name) => ['0', '1', '2'].filter((run) => document.getElementById(`figure-${name}-${run}`)).map((run) => {
  const { xaxis, yaxis } = document.getElementById(`figure-${name}-${run}`)._fullLayout;
  return [...xaxis.range, ...yaxis.range].map((value) => Number(value).toFixed(6)).join(' ');
})"""


def test_panels_of_several_runs_share_their_axes_and_colours(open_page, several):
    page = opened(open_page, several, 1400, "light")
    for name in ("spread", "disagreement", "bytes"):
        ranges = page.evaluate(RANGES, name)
        assert len(ranges) >= 2 and len(set(ranges)) == 1, name
    limits = page.evaluate(
        """() => ['0', '1', '2'].map((run) => {
        const { marker } = peerbayes.figure(`network-${run}`).data.find((trace) => trace.meta.role === 'peers');
        return `${marker.cmin} ${marker.cmax}`; })"""
    )
    assert len(set(limits)) == 1
    assert page.locator("#figure-columns").count() == 1  # all runs have the same rows: one figure of them
    # Against bytes as well; what is out of sight is drawn again once it is seen.
    page.evaluate("peerbayes.axes({ x: 'bytes', logX: true })")
    page.locator("#figure-disagreement-0").scroll_into_view_if_needed()
    until(
        page,
        "document.getElementById('figure-disagreement-0')._fullLayout.xaxis.title.text.startsWith('bytes')",
    )
    page.evaluate("peerbayes.all()")
    assert len(set(page.evaluate(RANGES, "disagreement"))) == 1


def test_curves_are_drawn_against_bytes_and_seconds_on_logarithmic_axes(open_page, one, runs):
    [run, *_] = runs
    page = opened(open_page, one, 1400, "light")
    mean = "document.getElementById('figure-error').data.find((trace) => trace.meta.role === 'mean')"
    layout = "document.getElementById('figure-error')._fullLayout"
    sent = run.history.groupby("round")["bytes"].mean().to_numpy()
    page.select_option("#axis-x", "bytes")
    until(page, f"{layout}.xaxis.title.text === 'bytes sent by each peer'")
    assert page.evaluate(f"Array.from({mean}.x)") == pytest.approx(sent)
    page.select_option("#axis-x", "seconds")
    until(page, f"{layout}.xaxis.title.text === 'seconds of the rounds'")
    assert page.evaluate(f"Array.from({mean}.x)") == pytest.approx(run.seconds_by_round, rel=1e-6)
    page.check("#axis-log")
    page.check("#axis-log-x")
    until(page, f"{layout}.yaxis.type === 'log' && {layout}.xaxis.type === 'log'")
    rc = run.references["test_rc"]
    [note] = page.evaluate(
        f"{layout}.annotations.filter((note) => note.text.startsWith('RC')).map((note) => note.y)"
    )
    assert note == pytest.approx(np.log10(rc))
    page.select_option("#axis-x", "round")
    page.uncheck("#axis-log")
    until(page, f"{layout}.yaxis.type === 'linear' && {layout}.xaxis.title.text === 'round'")


def test_a_selected_peer_is_drawn_against_bytes_too(open_page, one, runs):
    page = opened(open_page, one, 1400, "light")
    page.select_option("#axis-x", "bytes")
    page.fill("#chosen-peer", "3")
    chosen = "document.getElementById('figure-error').data.find((trace) => trace.meta.role === 'chosen')"
    until(page, f"{chosen}.x.length > 0")
    sent = runs[0].history.groupby("round")["bytes"].mean().to_numpy()
    assert page.evaluate(f"Array.from({chosen}.x)") == pytest.approx(sent)


PAPER = """() => {
  const full = 718;  // pixels of the width of A4 within its margins
  return [...document.querySelectorAll('.plot .main-svg, table, .card')]
    .filter((item) => item.getBoundingClientRect().width > full + 1).length;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_has_whole_figures_and_tables_in_light_colours(open_page, several, tmp_path, scheme):
    page = opened(open_page, several, 1400, scheme)
    page.set_viewport_size({"width": 718, "height": 1032})
    page.emulate_media(media="print", color_scheme=scheme)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(MISSING) == [] and page.evaluate(EMPTY) == 0 and page.evaluate(CUT) == 0
    assert page.evaluate(PAPER) == 0 and page.evaluate(OUTSIDE) == 0
    heights = page.evaluate(
        "[...document.querySelectorAll('figure.card')].map((card) => card.getBoundingClientRect().height)"
    )
    assert max(heights) < 1032  # a card is never cut, as it fits on a page
    ink = page.evaluate("getComputedStyle(document.querySelector('#figure-error .xtitle')).fill")
    assert ink == "rgb(28, 34, 48)"
    page.emulate_media(media="screen", color_scheme=scheme)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expected = "rgb(28, 34, 48)" if scheme == "light" else "rgb(231, 234, 240)"
    page.evaluate("peerbayes.all()")
    until(page, f"getComputedStyle(document.querySelector('#figure-error .xtitle')).fill === '{expected}'")


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="poppler-utils are not installed")
def test_a_printed_report_has_every_figure_and_every_setting(open_page, one, tmp_path):
    page = opened(open_page, one, 1400, "dark")
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    text = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "report.pdf", "-"], capture_output=True, text=True, check=True
    ).stdout
    pages = text.split("\f")[:-1]
    assert all(sheet.strip() for sheet in pages) and len(pages) <= 16
    for heading in page.locator("h3").all_text_contents():
        assert re.search(r"\s+".join(map(re.escape, heading.split())), text), heading
    for setting in ("rows_per_peer", "dirichlet-0.5", "disagreement", "mean radius"):
        assert setting in text, setting

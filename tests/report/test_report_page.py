"""The report in a browser: what is drawn, what happens to whoever clicks, and what must never happen."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from peerbayes import report, simulate
from peerbayes.report import figures
from peerbayes.report.page import STATIC
from peerbayes.simulation.view import View
from shared.browsing import until
from shared.report_runs import HOSTILE, first, numbers, run_of

PEERS, ROUNDS = 24, 12
PATHS = "all => all.map((one) => one.getAttribute('d'))"


@pytest.fixture(scope="module")
def run():
    X, y = load_digits(return_X_y=True)
    return simulate(
        X[:, 10:40], y, peers=PEERS, rows_per_peer=30, rounds=ROUNDS, partition="drift-y", topology="tree+6"
    )


@pytest.fixture(scope="module")
def history(run):
    """[N, T] test errors."""
    return run.history.pivot(index="peer", columns="round", values="test_error").to_numpy()


@pytest.fixture(scope="module")
def address(run, tmp_path_factory):
    return report.write(tmp_path_factory.mktemp("report") / "report.html", [run]).as_uri()


def drawn(page, name):
    """Wait until a figure is drawn, in sight."""
    page.locator(f"#figure-{name}").scroll_into_view_if_needed()
    page.wait_for_selector(f"#figure-{name}[data-drawn] .main-svg", state="attached")
    return page.locator(f"#figure-{name}")


def redrawn(page, name, condition):
    """Wait until something holds of a figure as plotly has it: an expression of `data`."""
    until(
        page,
        f"(() => {{ const {{ data }} = document.getElementById('figure-{name}'); return {condition}; }})()",
    )


def points(path):
    """Numbers of an SVG path, in pixels: one list for each piece."""
    return [
        np.array(re.findall(r"(-?[\d.]+),(-?[\d.]+)", piece), dtype=float) for piece in path.split("M")[1:]
    ]


def in_data(page, name, pixels):
    """Pixels of a figure's axes as its numbers."""
    scale = page.evaluate(
        """(name) => { const { xaxis, yaxis } = document.getElementById(`figure-${name}`)._fullLayout;
        return [xaxis.p2l(0), xaxis.p2l(100), yaxis.p2l(0), yaxis.p2l(100)]; }""",
        name,
    )
    x0, x1, y0, y1 = scale
    return np.stack([x0 + pixels[:, 0] * (x1 - x0) / 100, y0 + pixels[:, 1] * (y1 - y0) / 100], 1)


def test_every_peers_curve_is_drawn_where_it_belongs(open_page, address, history):
    page = open_page(address)
    figure = drawn(page, "error")
    traces = [
        [points(path)[0] for path in trace.locator(".js-line").evaluate_all(PATHS)]
        for trace in figure.locator(".scatterlayer .trace").all()
    ]
    each = traces[0]
    assert len(each) == PEERS and {len(pixels) for pixels in each} <= set(range(2, ROUNDS + 1))
    for peer, pixels in enumerate(each):
        told = in_data(page, "error", pixels)
        assert told[0] == pytest.approx([1, history[peer, 0]], abs=5e-3)
        assert told[-1] == pytest.approx([ROUNDS, history[peer, -1]], abs=5e-3)
    mean = traces[3][0]
    assert in_data(page, "error", mean)[-1, 1] == pytest.approx(history[:, -1].mean(), abs=0.02)
    texts = figure.locator(".annotation-text").all_text_contents()
    assert {text.split()[0] for text in texts} == {"RC", "ML", "alone"}


def test_the_network_is_drawn(open_page, address, run):
    page = open_page(address)
    figure = drawn(page, "network")
    marks = figure.locator(".scatterlayer .points path.point")
    assert marks.count() == PEERS
    boxes = [mark.bounding_box() for mark in marks.all()]
    centres = np.array([(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes])
    frame = figure.bounding_box()
    assert (centres > [frame["x"], frame["y"]]).all()
    assert (centres < [frame["x"] + frame["width"], frame["y"] + frame["height"]]).all()
    assert np.ptp(centres, axis=0).min() > 150  # over the whole figure, not in a heap
    assert len({mark.evaluate("one => one.style.fill") for mark in marks.all()}) > PEERS / 2
    assert figure.locator(".scatterlayer .trace").first.locator(".js-line").count() == len(run.links)


@pytest.mark.long
def test_every_other_figure_is_drawn(open_page, address):
    page = open_page(address)
    for name in (
        "spread", "disagreement", "bytes", "priors", "telling", "features", "feature", "confusion", "reliability",
    ):  # fmt: skip
        figure = drawn(page, name)
        assert figure.locator(".cartesianlayer path, .cartesianlayer image").count() > 0, name
        assert figure.get_attribute("role") == "img" and len(figure.get_attribute("aria-label")) > 30


@pytest.fixture(scope="module")
def dependent(tmp_path_factory):
    """A run of KDB with 50 columns of long names, 10 of them discrete; and its page."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    X = np.cumsum(rng.normal(size=(300, 50)), axis=1) + y[:, None]
    table = pd.DataFrame(X, columns=[f"measurement number {place}, mg/l" for place in range(50)])
    for name in table.columns[::5]:
        table[name] = np.where(table[name] > 0, "high", "low")
    made = simulate(table, y, peers=4, rows_per_peer=50, rounds=2, family="kdb", start="ml", references=False)
    return made, report.write(tmp_path_factory.mktemp("kdb") / "report.html", [made]).as_uri()


BOXES = """all => all.map((one) => {
  const { x, y, right, bottom } = one.getBoundingClientRect();
  return [x, y, right, bottom];
})"""


def overlap(boxes, others):
    """How far boxes reach into each other, in pixels, across and down: [N, M]."""
    first, second = boxes[:, None], others[None]
    return (np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2])).min(
        axis=2
    )


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_the_structure_is_drawn_and_its_names_overlap_nothing(open_page, dependent, width, scheme):
    run, address = dependent
    page = open_page(address, viewport={"width": width, "height": 900}, color_scheme=scheme)
    figure = drawn(page, "structure")
    columns = np.array(figure.locator(".scatterlayer .points path.point").evaluate_all(BOXES))
    names = np.array(figure.locator(".scatterlayer .textpoint text").evaluate_all(BOXES))
    links = sum(map(len, run.layout.parents))
    heads = sum(bool(own) for own in run.layout.parents)
    assert len(names) == 50 and len(columns) == 50 + heads and links > 60
    assert figure.locator(".scatterlayer .js-line").count() == links
    apart = overlap(names, names)
    np.fill_diagonal(apart, -1.0)
    assert apart.max() <= 2  # a letter's box is higher than the letter
    assert overlap(names, columns[-50:]).max() <= 1
    box = figure.bounding_box()
    assert (names[:, 0] >= box["x"]).all() and (names[:, 2] <= box["x"] + box["width"]).all()
    legend = figure.locator(".legendtext").all_text_contents()
    assert legend == ["continuous", "discrete"]
    ink = figure.locator(".textpoint text").first.evaluate("one => getComputedStyle(one).fill")
    assert ink == ("rgb(28, 34, 48)" if scheme == "light" else "rgb(231, 234, 240)")


@pytest.mark.long
def test_the_pointer_shows_parents_and_children(open_page, dependent):
    run, address = dependent
    page = open_page(address)
    figure = drawn(page, "structure")
    parents = run.classifier(0).parents_
    name = max(parents, key=lambda one: len(parents[one]))
    mark = figure.locator(".textpoint", has_text=re.compile(rf"^{name}$"))
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.mouse.move(box["x"] - 6, box["y"] + box["height"] / 2)
    page.wait_for_selector("#figure-structure .hoverlayer .hovertext")
    told = page.text_content("#figure-structure .hoverlayer .hovertext")
    assert name in told and "the class (label)" in told and all(one in told for one in parents[name])


def chosen_curve(page, name="error"):
    return page.evaluate(
        """(name) => { const { data } = document.getElementById(`figure-${name}`);
        const one = data.find((trace) => trace.meta.role === 'chosen');
        return [Array.from(one.x), Array.from(one.y)]; }""",
        name,
    )


CHOSEN = "data.find((one) => one.meta.role === 'chosen').y.length"


@pytest.mark.long
def test_a_click_on_a_peer_shows_its_curve(open_page, address, history, run):
    page = open_page(address)
    figure = drawn(page, "network")
    drawn(page, "error")
    figure.scroll_into_view_if_needed()
    box = figure.locator(".scatterlayer .points path.point").nth(7).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    redrawn(page, "network", f"{CHOSEN} === 1")
    until(page, "document.getElementById('chosen-said').textContent.startsWith('Peer 7: 30 rows')")
    assert page.input_value("#chosen-peer") == "7"
    assert f"{history[7, -1]:.4f}" in page.text_content("#chosen-said")
    page.locator("#figure-error").scroll_into_view_if_needed()
    redrawn(page, "error", f"{CHOSEN} === {ROUNDS}")
    x, y = chosen_curve(page)
    assert x == list(range(1, ROUNDS + 1)) and y == pytest.approx(history[7], abs=1e-6)
    page.locator("#figure-disagreement").scroll_into_view_if_needed()
    redrawn(page, "disagreement", f"{CHOSEN} === {ROUNDS}")
    apart = run.history.pivot(index="peer", columns="round", values="disagreement").to_numpy()
    assert chosen_curve(page, "disagreement")[1] == pytest.approx(apart[7], rel=1e-5)


@pytest.mark.long
def test_a_click_on_a_curve_chooses_its_peer(open_page, address, history):
    page = open_page(address)
    figure = drawn(page, "error")
    peer = int(np.argmax(history[:, 0]))
    place = page.evaluate(
        """([x, y]) => { const div = document.getElementById('figure-error');
        const { xaxis, yaxis } = div._fullLayout; const box = div.getBoundingClientRect();
        return [box.left + xaxis._offset + xaxis.l2p(x), box.top + yaxis._offset + yaxis.l2p(y)]; }""",
        [1, float(history[peer, 0])],
    )
    page.mouse.move(*place)
    page.wait_for_timeout(200)
    page.mouse.click(*place)
    until(page, "document.getElementById('chosen-peer').value !== ''")
    same = np.flatnonzero(history[:, 0] == history[peer, 0])
    assert int(page.input_value("#chosen-peer")) in same and figure.count() == 1


@pytest.mark.long
def test_a_peer_is_chosen_by_keyboard(open_page, address, history):
    page = open_page(address)
    drawn(page, "error")
    page.evaluate("scrollTo(0, 0)")
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "chosen-peer":
            break
    page.keyboard.type("11")
    until(page, "document.getElementById('chosen-said').textContent.startsWith('Peer 11')")
    redrawn(page, "error", f"{CHOSEN} === {ROUNDS}")
    assert chosen_curve(page)[1] == pytest.approx(history[11], abs=1e-6)
    page.keyboard.press("ArrowUp")
    until(page, "document.getElementById('chosen-said').textContent.startsWith('Peer 12')")
    page.keyboard.type("99")
    until(page, "document.getElementById('chosen-said').textContent.includes('choose 0 to 23')")
    page.keyboard.press("Escape")
    redrawn(page, "error", f"{CHOSEN} === 0")
    assert page.text_content("#chosen-said") == ""
    assert page.get_attribute("#chosen-said", "aria-live") == "polite"


@pytest.mark.long
def test_a_column_can_be_chosen(open_page, address):
    page = open_page(address)
    drawn(page, "feature")
    before = page.get_attribute("#figure-feature", "aria-label")
    page.select_option("#choice-feature", index=5)
    until(
        page, f"document.getElementById('figure-feature').getAttribute('aria-label') !== {json.dumps(before)}"
    )
    name = page.locator("#choice-feature option").nth(5).text_content()
    assert name in page.get_attribute("#figure-feature", "aria-label")


@pytest.mark.long
def test_figures_take_the_colours_of_a_dark_page(open_page, address):
    page = open_page(address, color_scheme="dark")
    figure = drawn(page, "error")
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == "rgb(15, 18, 23)"
    assert figure.locator(".xtitle").evaluate("one => getComputedStyle(one).fill") == "rgb(231, 234, 240)"
    page.emulate_media(color_scheme="light")
    until(
        page, "getComputedStyle(document.querySelector('#figure-error .xtitle')).fill === 'rgb(28, 34, 48)'"
    )


@pytest.mark.long
@pytest.mark.parametrize("width", [360, 768])
def test_a_phone_scrolls_in_one_direction(open_page, address, width):
    page = open_page(address, viewport={"width": width, "height": 740}, has_touch=True, is_mobile=width < 500)
    for name in ("error", "network", "features", "confusion", "telling"):
        drawn(page, name)
    wide = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide[0] <= wide[1]
    for box in page.locator(".plot .main-svg").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().right)"
    ):
        assert box <= width


@pytest.mark.long
def test_the_picture_of_a_figure_can_be_kept(open_page, address):
    page = open_page(address)
    figure = drawn(page, "spread")
    figure.hover()
    with page.expect_download() as kept:
        figure.locator('.modebar-btn[data-title*="ownload"]').click()
    assert kept.value.suggested_filename == "peerbayes-spread.svg"
    bar = figure.locator(".modebar").inner_html()
    assert "logo" not in bar.lower() and "cloud" not in bar.lower()


@pytest.mark.long
def test_hostile_names_are_shown_as_they_are(open_page, tmp_path):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 5, 400)
    X = rng.normal(size=(400, 5)) + rng.normal(size=(5, 5))[codes]
    table = pd.DataFrame(X, columns=[HOSTILE[place] for place in (0, 1, 2, 3, 5)])
    made = run_of(table, np.array(HOSTILE, dtype=object)[codes], peers=5, rows_per_peer=60, rounds=3)
    page = open_page(report.write(tmp_path / "report.html", [made], [HOSTILE[0]]).as_uri())
    ticks = drawn(page, "priors").locator(".xtick text").all_text_contents()
    assert {"<b>bold</b>", "a & b &lt;", "$x^2$"} <= set(ticks)
    assert any(tick.startswith("%{customdata}") for tick in ticks)
    names = drawn(page, "telling").locator(".ytick text").all_text_contents()
    assert {"<script>alert(1)</script>", "</script><!--"} <= set(names)
    drawn(page, "features")
    drawn(page, "confusion")


@pytest.mark.long
def test_runs_side_by_side(open_page, run, history, tmp_path):
    other = run_of(peers=6, strategy="crc", rounds=4)
    page = open_page(report.write(tmp_path / "report.html", [run, other], ["first", "second"]).as_uri())
    figure = drawn(page, "error")
    legend = figure.locator(".legendtext").all_text_contents()
    assert legend[:2] == ["first", "second"]
    for name in ("network-0", "network-1"):
        drawn(page, name)
    assert page.locator("#figure-network-1 .points path.point").count() == 6
    page.evaluate("scrollTo(0, 0)")
    page.select_option("#chosen-run", "1")
    page.fill("#chosen-peer", "2")
    until(page, "document.getElementById('chosen-said').textContent.startsWith('Peer 2: 20 rows')")
    drawn(page, "error")
    redrawn(page, "error", f"{CHOSEN} === 4")
    expected = other.history.query("peer == 2")["test_error"].to_numpy()
    assert chosen_curve(page)[1] == pytest.approx(expected, abs=1e-6)
    drawn(page, "network-1")
    redrawn(page, "network-1", f"{CHOSEN} === 1")
    assert (
        page.evaluate(f"(() => {{ const {{ data }} = peerbayes.figure('network-0'); return {CHOSEN}; }})()")
        == 0
    )
    page.fill("#chosen-peer", "20")
    until(page, "document.getElementById('chosen-said').textContent.includes('choose 0 to 5')")


@pytest.mark.long
def test_ten_thousand_peers_are_drawn(open_page, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 10_200)
    X = rng.normal(size=(len(y), 2)) + y[:, None]
    made = simulate(X, y, peers=10_000, rows_per_peer=1, rounds=2, references=False, evaluate_rows=20)
    page = open_page(report.write(tmp_path / "report.html", [made]).as_uri())
    figure = drawn(page, "network")
    assert figure.locator(".scatterlayer .points path.point").count() == 10_000
    page.evaluate("scrollTo(0, 0)")
    page.fill("#chosen-peer", "9999")
    until(page, "document.getElementById('chosen-said').textContent.startsWith('Peer 9999: 1 row;')")
    drawn(page, "error")
    redrawn(page, "error", f"{CHOSEN} === 2")


LIVE = """<!doctype html><html><head><meta charset="utf-8"><style>STYLE</style></head><body>
FIGURES
<div id="chooser"></div>
<script>PLOTLY</script><script>FIGURES_JS</script></body></html>"""


@pytest.mark.long
def test_patches_in_the_browser_give_the_whole_figure(open_page, run, tmp_path):
    """The same law as in Python: grown arrays are those of the figure made at once, bit by bit."""
    from peerbayes.report import style

    view = View.of(run)
    text = LIVE.replace("STYLE", (STATIC / "page.css").read_text())
    text = text.replace("FIGURES_JS", (STATIC / "figures.js").read_text()).replace("PLOTLY", style.script())
    divs = "\n".join(f'<div class="plot" id="figure-{name}"></div>' for name in figures.LIVE)
    text = text.replace("FIGURES", divs)
    path = tmp_path / "live.html"
    path.write_text(text, encoding="utf-8")
    page = open_page(path.as_uri())
    begin = figures.live(first(view, 0))
    page.evaluate(
        "(specs) => { for (const [name, spec] of Object.entries(specs)) peerbayes.draw(name, spec); }", begin
    )
    asked = page.evaluate(
        """() => { globalThis.asked = 0; peerbayes.curve = async (peer) => { asked += 1;
        return { peer, name: `peer ${peer}`, rows: 1, kind: 'test error', rounds: [1], error: [0.5] }; };
        peerbayes.chooser([{ title: '', count: 24, names: null }]); return peerbayes.select(3).then(() => asked); }"""
    )
    assert asked == 1
    for before, after in ((0, 1), (1, 2), (2, 7), (7, ROUNDS)):
        patch = json.loads(json.dumps(figures.patch(first(view, after), before)))
        page.evaluate("(patch) => peerbayes.patch(patch)", patch)
    whole = figures.live(first(view, ROUNDS))
    grown = page.evaluate(
        """() => Object.fromEntries(['error', 'disagreement', 'network', 'spread', 'bytes'].map((name) => {
        const plain = (value) => (ArrayBuffer.isView(value) ? Array.from(value, (v) => (v !== v ? null : v)) : value);
        return [name, peerbayes.figure(name).data.map((trace) => ({ x: plain(trace.x), y: plain(trace.y),
          customdata: plain(trace.customdata), color: trace.marker && plain(trace.marker.color) }))]; }))"""
    )
    for name, spec in whole.items():
        for place, trace in enumerate(spec["data"]):
            if trace["meta"]["role"] == "chosen":
                continue
            for key, value in (("x", trace["x"]), ("y", trace["y"]), ("customdata", trace.get("customdata")),
                               ("color", trace.get("marker", {}).get("color"))):  # fmt: skip
                ours, expected = grown[name][place].get(key), numbers(value)
                if isinstance(expected, np.ndarray):
                    expected = [None if np.isnan(one) else float(one) for one in expected]
                assert ours == expected, (name, place, key)
    until(page, "Number(document.getElementById('figure-error').dataset.drawn) >= 1 && asked >= 2")
    redrawn(page, "error", f"data[3].x.length === {ROUNDS}")


@pytest.mark.long
def test_redraws_leave_the_page_time(open_page, run, tmp_path):
    """Twenty patches at once are drawn together, not one by one."""
    from peerbayes.report import style

    view = View.of(run)
    text = LIVE.replace("STYLE", (STATIC / "page.css").read_text())
    text = text.replace("FIGURES_JS", (STATIC / "figures.js").read_text()).replace("PLOTLY", style.script())
    path = tmp_path / "live.html"
    path.write_text(text.replace("FIGURES", '<div class="plot" id="figure-error"></div>'), encoding="utf-8")
    page = open_page(path.as_uri())
    page.evaluate("(spec) => peerbayes.draw('error', spec)", figures.live(first(view, 1))["error"])
    patches = [figures.patch(first(view, after), after - 1) for after in range(2, ROUNDS + 1)]
    page.evaluate(
        "(patches) => patches.forEach((one) => peerbayes.patch(one))", json.loads(json.dumps(patches))
    )
    redrawn(page, "error", f"data && data[3].x.length === {ROUNDS}")
    assert int(page.get_attribute("#figure-error", "data-drawn")) <= 3

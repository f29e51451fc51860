"""The pictures in the docs, from real runs: python tools/screenshots.py [FOLDER [NAME…]].

Needs the extra `test` (Playwright drives the browser), Pillow, and Chromium and poppler's pdftoppm on the path.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

import peerbayes as pb
from peerbayes import report
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.loopback import Loopback

IMAGES = Path(__file__).parents[1] / "docs" / "images"
README = Path(__file__).parents[1] / "README.md"
IN_README = "pb.study("  # is in the code that its picture of a study is of
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 120.0  # seconds to wait for anything
HEIGHTS = {
    "report": 1420,
    "report-dark": 1420,
    "report-phone": 1500,
    "report-phone-dark": 1500,
    "printed": 1000,
    "comparison": 1250,
    "study": 640,
    "structure": 330,
    "dashboard": 1400,
    "dashboard-dark": 1400,
    "dashboard-phone": 1500,
    "dashboard-phone-dark": 1500,
    "dashboards": 1150,
    "peer": 1180,
}  # as far as the network is drawn

PHONE, DESK = 390, 1400
WIDTHS = {
    "structure": 760,
    "study": 860,
    "comparison": 1200,
    "dashboards": 1000,
    "peer": 1200,
}  # others: a desk or a phone
COLOURS = 128  # of a picture: text and lines need no more, and its file is half as large
LARGEST = 200_000  # bytes of a picture: readers of the docs load them

RUN = """
[data]
name = "digits"

[simulation]
peers = 50
rows_per_peer = 20
topology = "tree+10"
partition = "drift-y"
strategy = "exact"
rounds = {rounds}
"""


def python_blocks(page: Path) -> list[str]:
    """The Python of a page in Markdown."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def digits() -> tuple[Any, np.ndarray]:
    found = load_digits(as_frame=True)
    return found.data, found.target.to_numpy()


def of_report(page: Any, folder: Path) -> None:
    """One digit per peer, on a tree."""
    X, y = digits()
    run = pb.simulate(X, y, peers=50, rows_per_peer=20, partition="drift-y", topology="tree+10")
    page.goto(run.report(folder / "report.html").absolute().as_uri())
    all_drawn(page)


def of_print(page: Any, folder: Path) -> Path:
    """The first page of a report on paper."""
    of_report(page, folder)
    page.pdf(path=folder / "report.pdf", format="A4")
    words = [
        "pdftoppm",
        "-png",
        "-r",
        "90",
        "-singlefile",
        str(folder / "report.pdf"),
        str(folder / "printed"),
    ]
    subprocess.run(words, check=True)
    return folder / "printed.png"


def of_comparison(page: Any, folder: Path) -> None:
    """Three strategies on the same rows, against the bytes that they send."""
    X, y = digits()
    settings = {"peers": 30, "rows_per_peer": 30, "partition": "drift-y", "topology": "tree+10"}
    runs = [pb.simulate(X, y, strategy=name, **settings) for name in ("exact", "crc", "tracking")]
    page.goto(report.write(folder / "report.html", runs).absolute().as_uri())
    all_drawn(page)
    page.select_option("#axis-x", "bytes")
    page.check("#axis-log")
    page.locator("h2", has_text="Training").scroll_into_view_if_needed()
    page.evaluate("scrollBy(0, document.querySelector('#chooser').getBoundingClientRect().top - 60)")
    page.wait_for_timeout(3000)


def of_study(page: Any, folder: Path) -> None:
    """The study of the README, as its code draws it: by the bytes that strategies send on four networks."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    code = next(text for text in python_blocks(README) if IN_README in text)
    with contextlib.chdir(folder):
        exec(code, {"pb": pb, "X": X, "y": y})
    (folder / "curves.html").replace(folder / "study.html")
    page.goto((folder / "study.html").absolute().as_uri())
    page.wait_for_selector(".plotly .scatterlayer")
    page.wait_for_timeout(1000)


def all_drawn(page: Any) -> None:
    """Wait until all figures of a report are drawn."""
    end = time.monotonic() + TIMEOUT
    while page.evaluate("[...document.querySelectorAll('.plot')].some((div) => !div.dataset.drawn)"):
        if time.monotonic() > end:
            raise SystemExit("the figures were not drawn")
        page.wait_for_timeout(200)


def of_structure(page: Any, folder: Path) -> None:
    """TAN on the chemistry of wines, three of its columns as levels."""
    found = load_wine(as_frame=True)
    X = found.data
    for name in ("color_intensity", "hue", "proline"):
        X[name] = np.where(X[name] > X[name].median(), "high", "low")
    pb.TAN().fit(X, found.target).plot_structure().write_html(folder / "structure.html")
    page.goto((folder / "structure.html").absolute().as_uri())
    page.wait_for_selector(".plotly .textpoint")


@contextlib.contextmanager
def of_dashboard(page: Any, folder: Path) -> Iterator[None]:
    """A simulation, a third of the way."""
    rounds = 200
    (folder / "run.toml").write_text(RUN.format(rounds=rounds))
    words = [sys.executable, "-m", "peerbayes", "simulate", str(folder / "run.toml"), "--watch"]
    with watched(words) as url:
        page.goto(url)
        until(page, rounds // 3)
        yield


@contextlib.contextmanager
def of_dashboards(page: Any, folder: Path) -> Iterator[None]:
    """Two simulations that go on, beside each other."""
    running = []
    for strategy in ("exact", "crc"):
        text = RUN.format(rounds=2000).replace('"exact"', f'"{strategy}"')
        (folder / f"{strategy}.toml").write_text(text)
        words = ["simulate", str(folder / f"{strategy}.toml"), "--out", str(folder / "runs" / strategy)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running.append(subprocess.Popen([sys.executable, "-m", "peerbayes", *words], **quiet))  # type: ignore[call-overload]
    try:
        words = [sys.executable, "-m", "peerbayes", "watch", str(folder / "runs"), "--address", "0"]
        with watched(words, "stdout") as url:
            page.goto(url)
            until(page, 150)
            page.wait_for_timeout(2000)
            yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def of_peer(page: Any, folder: Path) -> Iterator[None]:
    """One of three peers, each with a third of the digits; the third is killed on the way."""
    X, y = digits()
    tables = [X.iloc[k::3, ::3].assign(digit=y[k::3]) for k in range(3)]
    terms = Terms("three-hospitals", "digit", rounds=2000, limits=Limits(deadline=0.5, quorum=0.5))
    network = Loopback.create(folder / "network", terms, tables, [(0, 1), (1, 2), (0, 2)])
    home = network.homes["peer-1"]
    home.settings_path.write_text(
        re.sub(r"# hold_out = \S+", "hold_out = 0.2", home.settings_path.read_text())
    )
    try:
        for name in ("peer-2", "peer-3"):
            network.start(name)
        words = [sys.executable, "-m", "peerbayes", "peer", "run", str(home.folder), "--dashboard"]
        with watched(words) as url:
            page.goto(url)
            until(page, 60)
            network.processes["peer-3"].kill()
            time.sleep(4)
            yield
    finally:
        network.stop()


@contextlib.contextmanager
def watched(words: list[str], channel: str = "stderr") -> Iterator[str]:
    """A command that says where to watch it, as long as this lasts."""
    channels = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, channel: subprocess.PIPE}
    process = subprocess.Popen(words, text=True, **channels)  # type: ignore[call-overload]
    lines = getattr(process, channel)
    try:
        for line in lines:
            if found := re.search(r"http://\S+", line):
                yield found[0]
                return
        raise SystemExit(f"{' '.join(words)} did not say where to watch it")
    finally:
        process.kill()
        process.wait()
        lines.close()


def until(page: Any, turn: int) -> None:
    """Wait until the page is at a round."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        if (found := re.search(r"[Rr]ound\s+([\d,]+)", page.inner_text("body"))) and int(
            found[1].replace(",", "")
        ) >= turn:
            return
        page.wait_for_timeout(200)
    raise SystemExit(f"the page did not come to round {turn}")


def shrink(path: Path) -> None:
    """Write a picture again with few colours."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main(target: Path, only: list[str]) -> None:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit(f"no browser: expected one of {', '.join(BROWSERS)} on the path")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        pictures = {
            "report": of_report,
            "report-dark": of_report,
            "report-phone": of_report,
            "report-phone-dark": of_report,
            "printed": of_print,
            "comparison": of_comparison,
            "study": of_study,
            "structure": of_structure,
            "dashboard": of_dashboard,
            "dashboard-dark": of_dashboard,
            "dashboard-phone": of_dashboard,
            "dashboard-phone-dark": of_dashboard,
            "dashboards": of_dashboards,
            "peer": of_peer,
        }
        for name, picture in pictures.items():
            if only and name not in only:
                continue
            folder = Path(temporary) / name
            folder.mkdir()
            page = browser.new_page(
                viewport={
                    "width": WIDTHS.get(name, PHONE if "phone" in name else DESK),
                    "height": HEIGHTS[name],
                },
                color_scheme="dark" if name.endswith("-dark") else "light",
            )
            still, kept = picture(page, folder), target / f"{name}.png"
            if isinstance(still, Path):
                shutil.copy(still, kept)
            else:
                with contextlib.nullcontext() if still is None else still:
                    page.screenshot(path=kept)
            page.close()
            shrink(kept)
            print(f"{kept}: {kept.stat().st_size:,} bytes")
            if kept.stat().st_size > LARGEST:
                raise SystemExit(f"{kept} has more than {LARGEST:,} bytes; make it smaller")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES, sys.argv[2:])

"""A report as one self-contained page, or as files for papers."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.data.registry import Registry, callable_problem
from peerbayes.errors import DrawingFailed, ExtensionError
from peerbayes.report.compare import error, facts, outcome, sentence, settings, summary
from peerbayes.report.curves import ERROR_NAMES
from peerbayes.report.figures import CAPTIONS, COMPARED, columns, learned_by, of
from peerbayes.report.style import Spec, colour, layout, packed, script, shown, style_ids
from peerbayes.simulation.result import Run
from peerbayes.simulation.view import HELD, View, sampled
from peerbayes.simulation.view import titles as default_titles

# --- one self-contained HTML page of one run or several, which opens offline
# Its content security policy allows only what is in the page: scripts and styles by their digests. plotly.js sets
# style attributes, so these are allowed.

STATIC = Path(__file__).parent / "static"

# Headings of sections, and the figures in each.
SECTIONS = {
    "Training": ("error", "spread", "network", "disagreement", "bytes"),
    "Learned model": ("telling", "priors", "structure", "features", "feature"),
    "Predictions": ("confusion", "reliability"),
}
# Columns, of six, that a figure spans in the report of one run.
SPANS = {
    "error": 4, "network": 4, "telling": 3, "priors": 3, "structure": 6, "features": 6, "feature": 6, "confusion": 4,
}  # fmt: skip
TALL = ("network",)  # spans two rows: two other figures fit beside it

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="peerbayes">
<title>{title}</title>
{styles}
</head>
<body>
<header>
<h1>{title}</h1>
{lead}
</header>
<main>
{main}
</main>
<footer>
<p>Made with peerbayes. This page is self-contained: it loads nothing from the network.</p>
</footer>
<script type="application/json" id="report-content">{content}</script>
{scripts}
</body>
</html>
"""


# Sections of outside packages by name: functions of a run that return plotly figures by title, as dictionaries.
REPORT_SECTIONS: Registry[Callable[[Run], Mapping[str, Any]]] = Registry(
    "report section", "peerbayes.report_sections", {}, callable_problem
)


def html(runs: Sequence[Run], titles: Sequence[str], sections: Sequence[str] = ()) -> str:
    """Return the HTML page of these runs, with the sections of outside packages that are named."""
    views = [View.of(run, title) for run, title in zip(runs, titles, strict=True)]
    figures, choices = drawn(views)
    outside = [_outside_section(name, index, runs, titles) for index, name in enumerate(sections)]
    for _, specs in outside:
        figures |= specs
    content = {
        "runs": [_curves(view, len(views)) for view in views],
        "figures": figures,
        "features": {name: [spec for _, spec in options] for name, options in choices.items()},
    }
    plotly = script()
    scripts = [plotly, *((STATIC / name).read_text(encoding="utf-8") for name in ("figures.js", "report.js"))]
    styles = [("", (STATIC / "page.css").read_text(encoding="utf-8"))]
    styles += [(f' id="{name}"', "") for name in style_ids(plotly)]
    return PAGE.format(
        policy=policy(scripts, [text for _, text in styles]),
        title=escape(_title(runs, titles)),
        styles="\n".join(f"<style{name}>{text}</style>" for name, text in styles),
        lead="\n".join(f'<p class="lead">{escape(text)}</p>' for text in _lead(runs, titles)),
        main=_main(runs, views, figures, choices, [block for block, _ in outside]),
        content=data(content),
        scripts="\n".join(f"<script>{text}</script>" for text in scripts),
    )


def _outside_section(
    name: str, number: int, runs: Sequence[Run], titles: Sequence[str]
) -> tuple[str, dict[str, Spec]]:
    """Return a section of an outside package: its part of the page, and its figures by their names there."""
    make = REPORT_SECTIONS[name]
    specs: dict[str, Spec] = {}
    cards = []
    for run, run_title in zip(runs, titles, strict=True):
        try:
            figures = {str(title): _outside_figure(str(title), spec) for title, spec in make(run).items()}
            data(figures)  # plotly's own figures hold arrays that JSON cannot
        except Exception as error:  # whatever an outside package may raise
            raise ExtensionError(
                f"the report section {name!r} of the package {REPORT_SECTIONS.package(name)} failed: "
                f"{type(error).__name__}: {error}. Expected figures by title: {{'data': [...], 'layout': {{...}}}}"
            ) from error
        for title, spec in figures.items():
            key = f"section{number}x{len(specs)}"
            specs[key] = spec
            head = title if len(runs) == 1 else f"{shown(run_title, 40)}: {title}"
            cards.append(_card(shown(head, 80), key, 3, "", {}))
    heading = escape(shown(name.replace("-", " ").capitalize(), 60))
    return f'<h2>{heading}</h2>\n<div class="grid">{"".join(cards)}</div>', specs


def _outside_figure(title: str, spec: Mapping[str, Any]) -> Spec:
    """Return a figure of an outside package with the layout that all figures have."""
    traces = [{**trace, "meta": {"role": "outside"}} for trace in spec["data"]]
    return {"data": traces, "layout": layout(title, **dict(spec.get("layout", {})))}


def drawn(views: Sequence[View]) -> tuple[dict[str, Spec], dict[str, list[tuple[str, Spec]]]]:
    """Return figures by name, and by name the columns to choose from; of several runs, names end in the run's index."""
    specs: dict[str, Spec] = {}
    choices: dict[str, list[tuple[str, Spec]]] = {}
    for index, view in enumerate(views):
        suffix = "" if len(views) == 1 else f"-{index}"
        learned = learned_by(view)
        specs |= {f"{name}{suffix}": spec for name, spec in of(view, learned).items()}
        if options := columns(view, learned):
            choices[f"feature{suffix}"] = options
    if len(views) > 1:
        specs = {name: spec for name, spec in specs.items() if not name.startswith("error-")}
        specs["error"] = error(views)
    return specs, choices


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return a policy that allows only these scripts and styles, and images that the page makes itself."""

    def digests(texts: Sequence[str]) -> str:
        hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        return " ".join(dict.fromkeys(f"'sha256-{digest}'" for digest in hashes))

    return (
        f"default-src 'none'; script-src {digests(scripts)}; style-src {digests(styles)}; "
        "style-src-attr 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def data(content: Any) -> str:
    """Return JSON that is safe inside a <script> element: < is escaped."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), default=_plain)
    return text.replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    """Return a NumPy number as a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written to a page")


def _curves(view: View, runs: int) -> Spec:
    """Return the peers' curves, from which a reader can select one; runs share the budget of values."""
    indices = sampled(len(view.peers), len(view.rounds), HELD // runs)
    return {
        "title": shown(view.title, 40),
        "count": view.peer_count,
        "names": None if view.names is None else [shown(name) for name in view.names],
        "kind": ERROR_NAMES[view.error],
        "peers": packed(view.peers[indices], "i4"),
        "rounds": packed(view.rounds, "i4"),
        "sizes": packed(view.sizes, "i4"),
        "error": packed(view.curves[view.error][:, indices].T.ravel()),
        "disagreement": packed(view.curves["disagreement"][:, indices].T.ravel()),
        "last": {"error": packed(view.last[view.error]), "disagreement": packed(view.last["disagreement"])},
    }


def _title(runs: Sequence[Run], titles: Sequence[str]) -> str:
    if len(runs) > 1:
        return shown(f"{', '.join(titles[:-1])} and {titles[-1]}", 100)
    peers = len(runs[0].sizes)
    return shown(f"{titles[0]}, {peers:,} peer{'s' if peers > 1 else ''}", 100)


def _lead(runs: Sequence[Run], titles: Sequence[str]) -> list[str]:
    sentences = [sentence(run) for run in runs]
    if len(set(sentences)) == 1:
        return sentences[:1]
    return [f"{shown(title, 40)}: {text}" for title, text in zip(titles, sentences, strict=True)]


def _main(
    runs: Sequence[Run],
    views: Sequence[View],
    specs: dict[str, Spec],
    choices: dict[str, list[tuple[str, Spec]]],
    outside: Sequence[str],
) -> str:
    titles = [view.title for view in views]
    single = len(runs) == 1
    results = outcome(runs[0]) if single else summary(runs, titles)
    blocks = ["<h2>Results</h2>", f'<div class="card">{results}</div>']
    for heading, names in SECTIONS.items():
        cards = [card for name in names for card in _cards(name, titles, specs, choices)]
        if not cards:
            continue
        blocks.append(f"<h2>{escape(heading)}</h2>")
        if "error" in names:
            blocks.append('<div id="chooser" class="chooser"></div>')
        blocks.append(f'<div class="grid">{"".join(cards)}</div>')
    blocks += outside
    configuration = facts(runs[0]) if single else settings(runs, titles)
    blocks += ["<h2>Configuration</h2>", f'<div class="card">{configuration}</div>']
    return "\n".join(blocks)


def _cards(
    name: str, titles: Sequence[str], specs: dict[str, Spec], choices: dict[str, list[tuple[str, Spec]]]
) -> list[str]:
    """Return the cards of a figure: one per run, or one of all runs together."""
    heading, caption = CAPTIONS[name]
    if len(titles) > 1 and name in specs:
        return [_card(heading, name, 6, COMPARED, choices)]
    if len(titles) == 1:
        present = name in specs or name in choices
        return [_card(heading, name, SPANS.get(name, 2), caption, choices, name in TALL)] if present else []
    span = 3 if len(titles) % 3 else 2
    cards = [
        _card(shown(title, 40), f"{name}-{index}", span, "", choices)
        for index, title in enumerate(titles)
        if f"{name}-{index}" in specs or f"{name}-{index}" in choices
    ]
    head = f'<div class="span-6 group"><h3>{escape(heading)}</h3><p>{escape(caption)}</p></div>'
    return [head, *cards] if cards else []


def _card(
    heading: str,
    name: str,
    span: int,
    caption: str,
    choices: dict[str, list[tuple[str, Spec]]],
    tall: bool = False,
) -> str:
    selector = ""
    if name in choices:
        options = "".join(
            f'<option value="{index}">{escape(shown(column, 60))}</option>'
            for index, (column, _) in enumerate(choices[name])
        )
        selector = (
            f'<p><label for="choice-{name}">Column</label> '
            f'<select id="choice-{name}" data-feature="{name}">{options}</select></p>'
        )
    figcaption = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure class="card span-{span}{" tall" if tall else ""}"><h3>{escape(heading)}</h3>{selector}'
        f'<div class="plot" id="figure-{name}"></div>{figcaption}</figure>'
    )


# --- figures as image files for papers, drawn by kaleido: plotly.js in a browser on this machine

FORMS = ("svg", "png", "pdf")
WIDTH = 720  # pixels: the width of a page at a readable font size
WIDER = {"features": 900, "confusion": 900}
SCALE = {"png": 3}  # 300 dots per inch at the width of a page


def figure_files(
    folder: str | Path, runs: Sequence[Run], form: str = "svg", titles: Sequence[str] | None = None
) -> list[Path]:
    """Write every figure as FOLDER/NAME.FORM, in light colours; with several runs, names end in the run's index."""
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; expected one of {', '.join(FORMS)}")
    if not runs:
        raise ValueError("there are no runs; expected one or more")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    run_titles = titles or default_titles(runs, [f"run {number}" for number in range(1, len(runs) + 1)])
    specs, _ = drawn([View.of(run, title) for run, title in zip(runs, run_titles, strict=True)])
    paths = {name: target / f"{name}.{form}" for name in specs}
    _draw(
        [
            {
                "fig": printed(spec),
                "path": paths[name],
                "opts": {
                    "format": form,
                    "width": WIDER.get(name.split("-")[0], WIDTH),
                    "height": spec["layout"]["height"],
                    "scale": SCALE.get(form, 1),
                },
            }
            for name, spec in specs.items()
        ]
    )
    return list(paths.values())


def printed(spec: Spec) -> Spec:
    """Return the figure on white, without the empty traces of the selected peer."""
    white = {"paper_bgcolor": colour("paper"), "plot_bgcolor": colour("paper"), "autosize": False}
    traces = [trace for trace in spec["data"] if trace["meta"]["role"] != "chosen"]
    return {"data": traces, "layout": {**spec["layout"], **white}}


def _draw(jobs: list[dict[str, Any]]) -> None:
    try:
        import kaleido
    except ModuleNotFoundError as missing:
        raise DrawingFailed(
            f"{missing.name} is not installed; image files of figures need it: pip install 'peerbayes[figures]'"
        ) from missing
    generator = kaleido.PageGenerator(mathjax=False)  # MathJax would be loaded from the network
    try:
        kaleido.write_fig_from_object_sync(jobs, kopts={"page_generator": generator})
    except Exception as error:
        raise DrawingFailed(
            f"the figures could not be drawn: {error}. kaleido draws with Chrome or Chromium: install one "
            "(`apt install chromium`, or `kaleido_get_chrome`)"
        ) from error

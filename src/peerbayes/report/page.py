"""One HTML page that shows everything of one run or several, and opens without a network.

Its policy lets nothing in but what is written in it: scripts and styles by their digests. plotly.js sets style
attributes, so these are allowed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.report.arrays import Spec, packed
from peerbayes.report.captions import CAPTIONS, COMPARED
from peerbayes.report.compare import error
from peerbayes.report.curves import KINDS
from peerbayes.report.figures import columns, learned_by, of
from peerbayes.report.labels import shown
from peerbayes.report.plotlyjs import script, style_ids
from peerbayes.report.tables import facts, outcome, sentence, settings, summary
from peerbayes.runs import Run
from peerbayes.views import HELD, View, sampled

STATIC = Path(__file__).parent / "static"

# Sections, and the figures in each.
SECTIONS = {
    "How the peers did": ("error", "spread", "network", "disagreement", "bytes"),
    "What was learned": ("telling", "priors", "structure", "features", "feature"),
    "How it predicts": ("confusion", "reliability"),
}
# Columns of six that a figure takes beside others of the same run.
SPANS = {
    "error": 4, "network": 4, "telling": 3, "priors": 3, "structure": 6, "features": 6, "feature": 6, "confusion": 4,
}  # fmt: skip
TALL = ("network",)  # two others fit beside it

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
<p>Made with peerbayes. This page is whole: it asks no other machine for anything.</p>
</footer>
<script type="application/json" id="report-content">{content}</script>
{scripts}
</body>
</html>
"""


def html(runs: Sequence[Run], titles: Sequence[str]) -> str:
    """The page of these runs."""
    views = [View.of(run, title) for run, title in zip(runs, titles, strict=True)]
    shown_figures, chosen = drawn(views)
    content = {
        "runs": [_held(view, len(views)) for view in views],
        "figures": shown_figures,
        "features": {name: [spec for _, spec in choice] for name, choice in chosen.items()},
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
        main=_main(runs, views, shown_figures, chosen),
        content=data(content),
        scripts="\n".join(f"<script>{text}</script>" for text in scripts),
    )


def drawn(views: Sequence[View]) -> tuple[dict[str, Spec], dict[str, list[tuple[str, Spec]]]]:
    """Figures by name, and by name those of the columns that can be chosen; of several runs with a number behind."""
    made: dict[str, Spec] = {}
    chosen: dict[str, list[tuple[str, Spec]]] = {}
    for place, view in enumerate(views):
        end = "" if len(views) == 1 else f"-{place}"
        learned = learned_by(view)
        made |= {f"{name}{end}": spec for name, spec in of(view, learned).items()}
        if choice := columns(view, learned):
            chosen[f"feature{end}"] = choice
    if len(views) > 1:
        made = {name: spec for name, spec in made.items() if not name.startswith("error-")}
        made["error"] = error(views)
    return made, chosen


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Only these scripts and styles, and pictures that the page makes itself."""

    def digests(texts: Sequence[str]) -> str:
        found = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        return " ".join(dict.fromkeys(f"'sha256-{digest}'" for digest in found))

    return (
        f"default-src 'none'; script-src {digests(scripts)}; style-src {digests(styles)}; "
        "style-src-attr 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def data(content: Any) -> str:
    """JSON that no name in it can end: < begins a tag."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), default=_plain)
    return text.replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    """A NumPy number as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written to a page")


def _held(view: View, runs: int) -> Spec:
    """The peers' curves, for whoever chooses one; the budget of numbers is shared by the runs."""
    some = sampled(len(view.peers), len(view.rounds), HELD // runs)
    return {
        "title": shown(view.title, 40),
        "nodes": view.nodes,
        "names": None if view.names is None else [shown(name) for name in view.names],
        "kind": KINDS[view.error],
        "peers": packed(view.peers[some], "i4"),
        "rounds": packed(view.rounds, "i4"),
        "sizes": packed(view.sizes, "i4"),
        "error": packed(view.curves[view.error][:, some].T.ravel()),
        "disagreement": packed(view.curves["disagreement"][:, some].T.ravel()),
        "last": {"error": packed(view.last[view.error]), "disagreement": packed(view.last["disagreement"])},
    }


def _title(runs: Sequence[Run], titles: Sequence[str]) -> str:
    if len(runs) > 1:
        return shown(f"{', '.join(titles[:-1])} and {titles[-1]}", 100)
    peers = len(runs[0].sizes)
    return shown(f"{titles[0]}, {peers:,} peer{'s' if peers > 1 else ''}", 100)


def _lead(runs: Sequence[Run], titles: Sequence[str]) -> list[str]:
    told = [sentence(run) for run in runs]
    if len(set(told)) == 1:
        return told[:1]
    return [f"{shown(title, 40)}: {text}" for title, text in zip(titles, told, strict=True)]


def _main(
    runs: Sequence[Run],
    views: Sequence[View],
    made: dict[str, Spec],
    chosen: dict[str, list[tuple[str, Spec]]],
) -> str:
    titles = [view.title for view in views]
    alone = len(runs) == 1
    ended = outcome(runs[0]) if alone else summary(runs, titles)
    parts = ["<h2>How it ended</h2>", f'<div class="card">{ended}</div>']
    for heading, names in SECTIONS.items():
        cards = [card for name in names for card in _cards(name, titles, made, chosen)]
        if not cards:
            continue
        parts.append(f"<h2>{escape(heading)}</h2>")
        if "error" in names:
            parts.append('<div id="chooser" class="chooser"></div>')
        parts.append(f'<div class="grid">{"".join(cards)}</div>')
    about = facts(runs[0]) if alone else settings(runs, titles)
    parts += ["<h2>What was run</h2>", f'<div class="card">{about}</div>']
    return "\n".join(parts)


def _cards(
    name: str, titles: Sequence[str], made: dict[str, Spec], chosen: dict[str, list[tuple[str, Spec]]]
) -> list[str]:
    """A figure of each run, or one of all together."""
    heading, caption = CAPTIONS[name]
    if len(titles) > 1 and name in made:
        return [_card(heading, name, 6, COMPARED, chosen)]
    if len(titles) == 1:
        there = name in made or name in chosen
        return [_card(heading, name, SPANS.get(name, 2), caption, chosen, name in TALL)] if there else []
    span = 3 if len(titles) % 3 else 2
    cards = [
        _card(shown(title, 40), f"{name}-{place}", span, "", chosen)
        for place, title in enumerate(titles)
        if f"{name}-{place}" in made or f"{name}-{place}" in chosen
    ]
    head = f'<div class="span-6 group"><h3>{escape(heading)}</h3><p>{escape(caption)}</p></div>'
    return [head, *cards] if cards else []


def _card(
    heading: str,
    name: str,
    span: int,
    caption: str,
    chosen: dict[str, list[tuple[str, Spec]]],
    tall: bool = False,
) -> str:
    choice = ""
    if name in chosen:
        options = "".join(
            f'<option value="{place}">{escape(shown(column, 60))}</option>'
            for place, (column, _) in enumerate(chosen[name])
        )
        choice = (
            f'<p><label for="choice-{name}">Column</label> '
            f'<select id="choice-{name}" data-feature="{name}">{options}</select></p>'
        )
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure class="card span-{span}{" tall" if tall else ""}"><h3>{escape(heading)}</h3>{choice}'
        f'<div class="plot" id="figure-{name}"></div>{below}</figure>'
    )

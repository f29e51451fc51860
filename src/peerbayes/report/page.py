"""A report: one self-contained HTML page of one run, or of several side by side."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from peerbayes.data.files import size
from peerbayes.data.registry import Registry, callable_problem
from peerbayes.errors import ExtensionError
from peerbayes.learning.family_choice import FamilyChoice
from peerbayes.model.candidates import CANDIDATES
from peerbayes.report import provenance_card
from peerbayes.report.curves import ERROR_NAMES, REFERENCE_TITLES, compared
from peerbayes.report.figures import COMPARED, captions_of, columns, learned_by, of
from peerbayes.report.side_by_side import aligned
from peerbayes.report.style import STATIC, Spec, compact_json, figure, packed, script, shown, style_ids
from peerbayes.simulation.result import Run
from peerbayes.simulation.scores import ALONE, ERROR, PEERS, TITLES, title_of
from peerbayes.simulation.view import HELD, View, sampled

# The page opens offline. Its content security policy allows only what is in the page: scripts and styles by their
# digests. plotly.js sets style attributes, so these are allowed.

Choices = dict[str, list[tuple[str, Spec]]]  # by figure: the columns to choose from, each with its figure

# Headings of sections, and the figures in each.
SECTIONS = {
    "Training": ("error", "spread", "network", "disagreement", "bytes"),
    "Data": ("rows", "columns"),
    "Learned model": ("telling", "priors", "structure", "shapes", "pairs", "features", "feature"),
    "Predictions": ("confusion", "reliability"),
}
# Columns, of six, that a figure spans in the report of one run.
SPANS = {
    "rows": 6, "columns": 6,
    "error": 4, "network": 4, "telling": 3, "priors": 3, "structure": 6, "shapes": 6, "pairs": 6, "features": 6,
    "feature": 6, "confusion": 4,
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
        main=_main(runs, titles, figures, choices, captions_of(views), [block for block, _ in outside]),
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
    return figure(traces, title, **spec.get("layout", {}))


def drawn(views: Sequence[View]) -> tuple[dict[str, Spec], Choices]:
    """Return figures by name, and by name the columns to choose from; of several runs, names end in the run's index."""
    specs: dict[str, Spec] = {}
    choices: Choices = {}
    models = [learned_by(view) for view in views]
    drawings = [of(view, learned) for view, learned in zip(views, models, strict=True)]
    if len(views) > 1:
        drawings = aligned(drawings, views)
    for index, (view, learned, drawing) in enumerate(zip(views, models, drawings, strict=True)):
        suffix = "" if len(views) == 1 else f"-{index}"
        specs |= {f"{name}{suffix}": spec for name, spec in drawing.items()}
        if options := columns(view, learned):
            choices[f"feature{suffix}"] = options
    if len(views) > 1:
        specs = {name: spec for name, spec in specs.items() if not name.startswith("error-")}
        specs["error"] = compared(views)
        for name in SECTIONS["Data"]:  # runs of the same rows need one figure of them
            if len(drawings[0].get(name, ())) and all(run.get(name) == drawings[0][name] for run in drawings):
                specs = {key: spec for key, spec in specs.items() if not key.startswith(f"{name}-")}
                specs[name] = drawings[0][name]
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
    return compact_json(content).replace("<", "\\u003c")


def _curves(view: View, runs: int) -> Spec:
    """Return the peers' curves, from which a reader can select one; runs share the budget of values."""
    indices = sampled(len(view.peers), len(view.rounds), HELD // runs)
    return {
        "title": shown(view.title, 40),
        "count": view.peer_count,
        "names": None if view.names is None else [shown(name) for name in view.names],
        "kind": ERROR_NAMES[view.error],
        "seconds": bool(len(view.seconds)),
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
    titles: Sequence[str],
    specs: dict[str, Spec],
    choices: Choices,
    captions: Mapping[str, tuple[str, str]],
    outside: Sequence[str],
) -> str:
    single = len(runs) == 1
    results = outcome(runs[0]) if single else summary(runs, titles)
    blocks = ["<h2>Results</h2>", f'<div class="card">{results}</div>']
    if single and (choice := runs[0].family_choice) is not None:
        blocks += ["<h2>Choice of the family</h2>", f'<div class="card">{candidates(choice)}</div>']
    for heading, names in SECTIONS.items():
        cards = [card for name in names for card in _cards(name, captions[name], titles, specs, choices)]
        if not cards:
            continue
        blocks.append(f"<h2>{escape(heading)}</h2>")
        if "error" in names:
            blocks.append('<div id="chooser" class="chooser"></div>')
        blocks.append(f'<div class="grid">{"".join(cards)}</div>')
    configuration = facts(runs[0]) if single else settings(runs, titles)
    return "\n".join(
        [
            *blocks,
            *outside,
            "<h2>Configuration</h2>",
            f'<div class="card">{configuration}</div>',
            provenance_card.card(runs, titles),
        ]
    )


def _cards(
    name: str, titled: tuple[str, str], titles: Sequence[str], specs: dict[str, Spec], choices: Choices
) -> list[str]:
    """Return the cards of a figure, which has a title and a caption: one per run, or one of all runs together."""
    heading, caption = titled
    several, present = len(titles) > 1, {*specs, *choices}
    if name in present:
        width = 6 if several else SPANS.get(name, 2)
        tall = name in TALL and not several
        text = COMPARED if several and name == "error" else caption
        return [_card(heading, name, width, text, choices, tall)]
    span = 3 if len(titles) % 3 else 2
    cards = [
        _card(shown(title, 40), f"{name}-{index}", span, "", choices)
        for index, title in enumerate(titles)
        if f"{name}-{index}" in present
    ]
    head = f'<div class="span-6 group"><h3>{escape(heading)}</h3><p>{escape(caption)}</p></div>'
    return [f'<div class="grid panels">{head}{"".join(cards)}</div>'] if cards else []


def _card(heading: str, name: str, span: int, caption: str, choices: Choices, tall: bool = False) -> str:
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


# --- tables of a report: results and configuration of runs

LABELS = {"numbers": "Results", "settings": "Configuration"}
LONGEST = 160  # most characters of a setting
LONGEST_NOTE = 300
IN_ROWS = (PEERS, ALONE, "rc", "rc_end", "ml")  # learners that have rows of their own in the table of errors


_error = "{:.4f}".format


def _gap(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


# Rows of the summary: title, key of `Run.summary`, and formatter.
ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("Test error, mean of the peers", "test_error", _error),
    ("Test error, standard deviation over peers", "test_std", _error),
    ("Test error of RC on the pooled rows", "test_rc", _error),
    ("Test error of RC on the pooled rows, taken to its end", "test_rc_end", _error),
    ("Test error of ML on the pooled rows", "test_ml", _error),
    ("Test error of each peer alone", "test_local", _error),
    ("Gap to RC", "test_gap_rc", _gap),
    ("Gap to ML", "test_gap_ml", _gap),
    ("Gap to each peer alone", "test_gap_local", _gap),
    ("Training error, mean of the peers", "train_error", _error),
    ("Training error of RC on the pooled rows", "train_rc", _error),
    ("Training error of ML on the pooled rows", "train_ml", _error),
    ("Disagreement, mean of the peers", "disagreement", "{:.3g}".format),
    ("Sent by each peer", "bytes_per_peer", size),
    ("Peers that vanished, and do not count", "vanished", "{:.0f}".format),
    ("Messages to each neighbour", "messages_per_link", "{:,.0f}".format),
    ("Seconds", "seconds", "{:.2f}".format),
)


def outcome(run: Run) -> str:
    """Return the table of one run: the peers, and below them the references."""
    values = run.summary()
    rows = []
    for reference, title in {"": "peers, on average", **REFERENCE_TITLES}.items():
        keys = [f"{kind}_{reference or 'error'}" for kind in ("test", "train")]
        if not any(math.isfinite(values[key]) for key in keys):
            continue
        test, train = (_error(values[key]) if math.isfinite(values[key]) else "–" for key in keys)
        if not reference and math.isfinite(values["test_error"]):
            test += f" ± {values['test_std']:.4f}"
        gap = values.get(f"test_gap_{reference}", math.nan)
        gap = gap if math.isfinite(gap) else values.get(f"train_gap_{reference}", math.nan)
        cells = f"<td>{test}</td><td>{train}</td><td>{_gap(gap) if math.isfinite(gap) else ''}</td>"
        rows.append(_row(title[0].upper() + title[1:], cells, "" if reference else " class=best"))
    rows += [
        _row(title_of(score.learner), f"<td>{_error(score.mean)}</td><td>–</td><td></td>")
        for score in run.scored.rows
        if score.metric == ERROR and score.learner not in IN_ROWS and math.isfinite(score.mean)
    ]
    seconds = f"; computed in {sum(run.seconds.values()):.2f} seconds" if run.seconds else ""
    vanished = f" {run.vanished.size} peers vanished for good and do not count." if run.vanished.size else ""
    return (
        _table("numbers", ("Test error", "Training error", "Peers' gap"), rows)
        + f'<p class="aside">Sent by each peer: {size(values["bytes_per_peer"])}, '
        f"{values['messages_per_link']:,.0f} messages to each neighbour; disagreement "
        f"{values['disagreement']:.3g}{seconds}. ± is the standard deviation over peers.{vanished}</p>"
        + scored(run)
    )


def scored(run: Run) -> str:
    """Return the table of further metrics, a row for each learner, and sentences on figures; nothing without either."""
    metrics, learners = run.scored.table()
    rows = [
        _row(
            title_of(learner),
            "".join(f"<td>{_error(value) if math.isfinite(value) else '–'}</td>" for value in values),
        )
        for learner, (_, *values) in learners
        if any(map(math.isfinite, values))
    ]
    table = (
        _table("numbers", [TITLES.get(name, name) for name in metrics[1:]], rows, "Metrics") if rows else ""
    )
    notes = "".join(f"<br>{escape(shown(note[:1].upper() + note[1:], LONGEST_NOTE))}." for note in run.notes)
    return table + (f'<p class="aside">{notes.removeprefix("<br>")}</p>' if notes else "")


def candidates(choice: FamilyChoice) -> str:
    """Return the sentence of the choice of a family, and the table of its candidates, the best first."""
    order = sorted(
        choice.candidates,
        key=lambda judged: (judged.name != choice.chosen, judged.log_loss is None, judged.log_loss),
    )
    rows = []
    for judged in order:
        loss = "left out" if judged.log_loss is None else _error(judged.log_loss)
        what = judged.problem or CANDIDATES[judged.name].sentence
        style = " class=best" if judged.name == choice.chosen else ""
        rows.append(_row(judged.name, f"<td>{loss}</td><td>{escape(shown(what, LONGEST))}</td>", style))
    table = _table("numbers", ("Log loss on held-out rows", "What it is"), rows, "Candidates")
    reason = choice.reason[:1].upper() + choice.reason[1:]
    return (
        f'{table}<p class="aside">{escape(reason)}. Before the first round all peers judged each candidate on about a '
        "fifth of their rows, from which it did not learn.</p>"
    )


def facts(run: Run) -> str:
    """Return the configuration, the data and the versions of one run."""
    entries = (
        f"<div><dt>{escape(shown(key))}</dt><dd>{escape(text)}</dd></div>"
        for key, text in _all_facts(run).items()
    )
    return f'<dl class="facts">{"".join(entries)}</dl>'


def summary(runs: Sequence[Run], titles: Sequence[str]) -> str:
    """Return the table of results: a column per run, a row per metric; metrics that no run has are left out."""
    summaries = [{**run.summary(), "seconds": sum(run.seconds.values())} for run in runs]
    rows = []
    for title, key, form in ROWS:
        values = [run_summary.get(key, math.nan) for run_summary in summaries]
        if not any(map(math.isfinite, values)):
            continue
        cells = [form(value) if math.isfinite(value) else "–" for value in values]
        best = min(filter(math.isfinite, values)) if key == "test_error" else None
        html_cells = [
            f'<td class="best">{cell}</td>' if value == best else f"<td>{cell}</td>"
            for cell, value in zip(cells, values, strict=True)
        ]
        rows.append(_row(title, "".join(html_cells)))
    return _table("numbers", titles, rows)


def settings(runs: Sequence[Run], titles: Sequence[str]) -> str:
    """Return the table of configuration, data and versions: a column per run."""
    run_facts = [_all_facts(run) for run in runs]
    rows = []
    for key in dict.fromkeys(key for texts in run_facts for key in texts):
        values = [texts.get(key, "–") for texts in run_facts]
        if len(set(values)) == 1:
            cells = f'<td colspan="{len(runs)}">{escape(values[0])}</td>'
        else:
            cells = "".join(f'<td class="best">{escape(value)}</td>' for value in values)
        rows.append(_row(shown(key), cells))
    return _table("settings", titles, rows)


def sentence(run: Run) -> str:
    """Return one sentence that describes the run."""
    settings, schema = run.configuration, run.schema
    chosen = "" if run.family_choice is None else ", which they chose themselves,"
    return (
        f"{_counted(len(run.sizes), 'peer')} with {_counted(int(run.sizes.sum()), 'row')} in total learned one "
        f"{settings.get('family', 'naive-bayes')} classifier{chosen} of "
        f"{_counted(len(schema.classes), 'class', 'classes')} and {_counted(len(schema.names), 'column')} "
        f"in {_counted(int(settings['rounds']), 'round')}; "
        "no row left its peer."
    )


def _counted(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def _all_facts(run: Run) -> dict[str, str]:
    """Return the data, the configuration and the versions of a run, as text."""
    sizes, schema = run.sizes, run.schema
    per_peer = f"{sizes.min():,} to {sizes.max():,}" if sizes.min() < sizes.max() else f"{sizes[0]:,}"
    values = {
        "rows": f"{sizes.sum():,}, {per_peer} per peer",
        "columns": f"{len(schema.continuous)} continuous, {len(schema.discrete)} discrete",
        "classes": f"{len(schema.classes):,}",
        "links": f"{len(run.links):,}",
        "seconds spent": ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in run.seconds.items()) or "–",
        **run.configuration,
        **run.made,
    }
    return {key: "–" if value is None else shown(value, LONGEST) for key, value in values.items()}


def _row(heading: str, cells: str, style: str = "") -> str:
    return f'<tr{style}><th scope="row">{escape(heading)}</th>{cells}</tr>'


def _table(kind: str, titles: Sequence[str], rows: Sequence[str], label: str = "") -> str:
    titles = [escape(shown(title, 40)) for title in titles]
    cells = "".join(f'<th scope="col">{title}</th>' for title in titles)
    rows = [_labelled(row, titles) for row in rows]
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label or LABELS[kind]}"><table class="{kind}">'
        f"<thead><tr><td></td>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _labelled(row: str, titles: Sequence[str]) -> str:
    """Return a row whose cells have the titles of their columns, beside which a narrow screen shows them."""
    columns = iter(titles)
    one_of_all = "<td colspan" in row
    return re.sub(r"<td\b", lambda _: "<td" if one_of_all else f'<td data-title="{next(columns)}"', row)

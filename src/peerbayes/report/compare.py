"""Runs side by side, and tables of their figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from peerbayes.report.curves import (
    ERROR_NAMES,
    REFERENCE_TITLES,
    chosen,
    expected_evaluations,
    level,
    references,
)
from peerbayes.report.style import (
    CLASSES,
    Spec,
    axis,
    class_colour,
    colour,
    faint,
    figure,
    label,
    layout,
    packed,
    shown,
    size,
)
from peerbayes.simulation.result import Run
from peerbayes.simulation.view import View

# --- one figure of several runs: their mean errors and bands

DASHES = {"rc": "dash", "ml": "dot", "local": "dashdot"}
TOLERANCE = 1e-6  # references closer than this are drawn as one line


def error(views: Sequence[View]) -> Spec:
    """Return the figure of the runs' mean errors by round, with bands of 5–95 % of the peers and common references."""
    data: list[Spec] = []
    for index, view in enumerate(views):
        data += _run(view, index)
    longest = max(view.total for view in views)
    for reference, value in _shared(views).items():
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{REFERENCE_TITLES[reference]} {figure(value)}",
                "x": packed(np.linspace(0, longest, 33)),
                "y": packed(np.full(33, value)),
                "line": {"color": colour("muted"), "width": 1.5, "dash": DASHES[reference]},
                "hovertemplate": f"{REFERENCE_TITLES[reference]}: {value:.4f}<extra></extra>",
                "meta": {"role": reference},
            }
        )
    error_names = {ERROR_NAMES[view.error] for view in views}
    final_errors = "; ".join(
        f"{shown(view.title)}: {figure(float(level(view, view.error, 'mean')[-1]))}"
        for view in views
        if len(view.rounds)
    )
    return {
        "data": [*data, chosen(False)],
        "layout": layout(
            f"Mean {' or '.join(sorted(error_names))} of the peers after the last round: {final_errors}.",
            400,
            showlegend=True,
            xaxis=axis("round", range=[0, longest * 1.005]),
            yaxis=axis(" or ".join(sorted(error_names)), rangemode="tozero"),
        ),
    }


def _run(view: View, index: int) -> list[Spec]:
    """Return the traces of one run: its band and its mean."""
    metric, name = view.error, label(view.title)
    mode = "markers" if expected_evaluations(view) == 1 else "lines"
    shared: Spec = {"type": "scatter", "mode": mode, "x": packed(view.rounds), "legendgroup": str(index)}
    edge = {
        **shared,
        "line": {"width": 0, "color": class_colour(index)},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    edge["marker"] = {"symbol": "line-ew-open", "size": 12, "color": class_colour(index)}
    filled = {"fill": "tonexty", "fillcolor": faint(CLASSES[index % len(CLASSES)], 0.14)}
    return [
        {**edge, "y": packed(level(view, metric, "5 %")), "meta": {"role": "low"}},
        {**edge, **filled, "y": packed(level(view, metric, "95 %")), "meta": {"role": "high"}},
        {
            **shared,
            "name": name,
            "y": packed(level(view, metric, "mean")),
            "line": {"color": class_colour(index), "width": 2.5},
            "marker": {"color": class_colour(index), "size": 9},
            "hovertemplate": "round %{x}: %{y:.4f}",
            "meta": {"role": "mean"},
        },
    ]


def _shared(views: Sequence[View]) -> dict[str, float]:
    """Return the reference errors that are the same for all runs."""
    run_references = [references(view) for view in views]
    return {
        reference: value
        for reference, value in run_references[0].items()
        if all(abs(other.get(reference, np.inf) - value) < TOLERANCE for other in run_references)
    }


# --- tables of a report: results and configuration of runs

LABELS = {"numbers": "Results", "settings": "Configuration"}
LONGEST = 160  # most characters of a setting


def _error(value: float) -> str:
    return f"{value:.4f}"


def _gap(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


# Rows of the summary: title, key of `Run.summary`, and formatter.
ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("Test error, mean of the peers", "test_error", _error),
    ("Test error, standard deviation over peers", "test_std", _error),
    ("Test error of RC on the pooled rows", "test_rc", _error),
    ("Test error of ML on the pooled rows", "test_ml", _error),
    ("Test error of each peer alone", "test_local", _error),
    ("Gap to RC", "test_gap_rc", _gap),
    ("Gap to ML", "test_gap_ml", _gap),
    ("Gap to each peer alone", "test_gap_local", _gap),
    ("Training error, mean of the peers", "train_error", _error),
    ("Training error of RC on the pooled rows", "train_rc", _error),
    ("Training error of ML on the pooled rows", "train_ml", _error),
    ("Disagreement, mean of the peers", "disagreement", lambda value: f"{value:.3g}"),
    ("Sent by each peer", "bytes_per_peer", size),
    ("Seconds", "seconds", lambda value: f"{value:.2f}"),
)


# Rows of the table of one run: the peers (""), and the references.
OUTCOMES = {
    "": "Peers, on average",
    "rc": "RC on the pooled rows",
    "ml": "ML on the pooled rows",
    "local": "Each peer alone, on average",
}


def outcome(run: Run) -> str:
    """Return the table of one run: the peers, and below them the references."""
    values = run.summary()
    rows = []
    for reference, title in OUTCOMES.items():
        keys = [f"{kind}_{reference or 'error'}" for kind in ("test", "train")]
        if not any(math.isfinite(values[key]) for key in keys):
            continue
        test, train = (_error(values[key]) if math.isfinite(values[key]) else "–" for key in keys)
        if not reference and math.isfinite(values["test_error"]):
            test += f" ± {values['test_std']:.4f}"
        gap = values.get(f"test_gap_{reference}", math.nan)
        gap = gap if math.isfinite(gap) else values.get(f"train_gap_{reference}", math.nan)
        cells = (test, train, _gap(gap) if math.isfinite(gap) else "")
        html_cells = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f'<tr{"" if reference else " class=best"}><th scope="row">{title}</th>{html_cells}</tr>')
    remarks = [
        f"Sent by each peer: {size(values['bytes_per_peer'])}",
        f"disagreement {values['disagreement']:.3g}",
    ]
    if run.seconds:
        remarks.append(f"computed in {sum(run.seconds.values()):.2f} seconds")
    return (
        _table("numbers", ("Test error", "Training error", "Peers' gap"), rows)
        + f'<p class="aside">{"; ".join(remarks)}. ± is the standard deviation over peers.</p>'
    )


def facts(run: Run) -> str:
    """Return the configuration, the data and the versions of one run."""
    values = {**_data_facts(run), **run.configuration, **run.made}
    entries = (
        f"<div><dt>{escape(shown(key))}</dt><dd>{escape(_text(value))}</dd></div>"
        for key, value in values.items()
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
        best = min(filter(math.isfinite, values)) if key == "test_error" and len(runs) > 1 else None
        html_cells = [
            f'<td class="best">{cell}</td>' if value == best else f"<td>{cell}</td>"
            for cell, value in zip(cells, values, strict=True)
        ]
        rows.append(f'<tr><th scope="row">{escape(title)}</th>{"".join(html_cells)}</tr>')
    return _table("numbers", titles if len(runs) > 1 else ("",), rows)


def settings(runs: Sequence[Run], titles: Sequence[str]) -> str:
    """Return the table of configuration, data and versions: a column per run."""
    run_settings = [{**_data_facts(run), **run.configuration, **run.made} for run in runs]
    keys = dict.fromkeys(key for values_of_run in run_settings for key in values_of_run)
    rows = []
    for key in keys:
        values = [_text(values_of_run.get(key)) for values_of_run in run_settings]
        if len(set(values)) == 1:
            cells = f'<td colspan="{len(runs)}">{escape(values[0])}</td>'
        else:
            cells = "".join(f'<td class="best">{escape(value)}</td>' for value in values)
        rows.append(f'<tr><th scope="row">{escape(shown(key))}</th>{cells}</tr>')
    return _table("settings", titles if len(runs) > 1 else ("",), rows)


def sentence(run: Run) -> str:
    """Return one sentence that describes the run."""
    settings, schema = run.configuration, run.schema
    return (
        f"{_counted(len(run.sizes), 'peer')} with {_counted(int(run.sizes.sum()), 'row')} in total learned one "
        f"{settings.get('family', 'naive-bayes')} classifier of {_counted(len(schema.classes), 'class', 'classes')} "
        f"and {_counted(len(schema.names), 'column')} in {_counted(int(settings['rounds']), 'round')}; "
        "no row left its peer."
    )


def _counted(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def _data_facts(run: Run) -> dict[str, Any]:
    """Return facts about the data of a run."""
    sizes, schema = run.sizes, run.schema
    spread = f", {sizes.min():,} to {sizes.max():,} per peer" if sizes.min() < sizes.max() else ""
    return {
        "rows": f"{sizes.sum():,}{spread or f', {sizes[0]:,} per peer'}",
        "columns": f"{len(schema.continuous)} continuous, {len(schema.discrete)} discrete",
        "classes": f"{len(schema.classes):,}",
        "links": f"{len(run.links):,}",
        "seconds spent": ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in run.seconds.items()) or "–",
    }


def _text(value: Any) -> str:
    return "–" if value is None else shown(value, LONGEST)


def _table(kind: str, titles: Sequence[str], rows: Sequence[str]) -> str:
    head = ""
    if any(titles):
        cells = "".join(f'<th scope="col">{escape(shown(title, 40))}</th>' for title in titles)
        head = f"<thead><tr><td></td>{cells}</tr></thead>"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{LABELS[kind]}">'
        f'<table class="{kind}">{head}<tbody>{"".join(rows)}</tbody></table></div>'
    )

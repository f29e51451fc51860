"""What a report says in words and numbers: how runs ended, and what was run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from peerbayes.report.labels import shown, size
from peerbayes.runs import Run

LABELS = {"numbers": "How it ended", "settings": "What was run"}
LONGEST = 160  # letters of a setting


def _error(value: float) -> str:
    return f"{value:.4f}"


def _gap(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


# Rows of the summary: what they say, the figure of `Run.summary`, and its form.
ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("Test error, mean of the peers", "test_error", _error),
    ("… its standard deviation over peers", "test_std", _error),
    ("… of RC on the pooled rows", "test_rc", _error),
    ("… of ML on the pooled rows", "test_ml", _error),
    ("… of each peer alone", "test_local", _error),
    ("Gap to RC", "test_gap_rc", _gap),
    ("Gap to ML", "test_gap_ml", _gap),
    ("Gap to peers alone", "test_gap_local", _gap),
    ("Training error, mean of the peers", "train_error", _error),
    ("… of RC on the pooled rows", "train_rc", _error),
    ("… of ML on the pooled rows", "train_ml", _error),
    ("Disagreement, mean of the peers", "disagreement", lambda value: f"{value:.3g}"),
    ("Sent by each peer", "bytes_per_peer", size),
    ("Seconds", "seconds", lambda value: f"{value:.2f}"),
)


def outcome(run: Run) -> str:
    """One run: the peers, and below them what they are compared with."""
    told = run.summary()
    lines = []
    for who, what in (("", "Peers, on average"), ("rc", "RC on the pooled rows"), ("ml", "ML on the pooled rows"),
                      ("local", "Each peer alone, on average")):  # fmt: skip
        keys = [f"{kind}_{who or 'error'}" for kind in ("test", "train")]
        if not any(math.isfinite(told[key]) for key in keys):
            continue
        test, train = (_error(told[key]) if math.isfinite(told[key]) else "–" for key in keys)
        if not who and math.isfinite(told["test_error"]):
            test += f" ± {told['test_std']:.4f}"
        gap = told.get(f"test_gap_{who}", math.nan)
        gap = gap if math.isfinite(gap) else told.get(f"train_gap_{who}", math.nan)
        cells = (test, train, _gap(gap) if math.isfinite(gap) else "")
        marked = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f'<tr{"" if who else " class=best"}><th scope="row">{what}</th>{marked}</tr>')
    beside = [
        f"Sent by each peer: {size(told['bytes_per_peer'])}",
        f"disagreement {told['disagreement']:.3g}",
    ]
    if run.seconds:
        beside.append(f"made in {sum(run.seconds.values()):.2f} seconds")
    return (
        _table("numbers", ("Test error", "Training error", "Peers' gap to it"), lines)
        + f'<p class="aside">{"; ".join(beside)}. ± is the standard deviation over peers.</p>'
    )


def facts(run: Run) -> str:
    """The configuration, the data and the versions of one run."""
    told = {**_about(run), **run.configuration, **run.made}
    lines = (
        f"<div><dt>{escape(shown(key))}</dt><dd>{escape(_said(value))}</dd></div>"
        for key, value in told.items()
    )
    return f'<dl class="facts">{"".join(lines)}</dl>'


def summary(runs: Sequence[Run], titles: Sequence[str]) -> str:
    """A column a run, a line a figure; figures that no run has are left out."""
    told = [{**run.summary(), "seconds": sum(run.seconds.values())} for run in runs]
    lines = []
    for what, key, form in ROWS:
        values = [one.get(key, math.nan) for one in told]
        if not any(map(math.isfinite, values)):
            continue
        cells = [form(value) if math.isfinite(value) else "–" for value in values]
        best = min(filter(math.isfinite, values)) if key == "test_error" and len(runs) > 1 else None
        marked = [
            f'<td class="best">{cell}</td>' if value == best else f"<td>{cell}</td>"
            for cell, value in zip(cells, values, strict=True)
        ]
        lines.append(f'<tr><th scope="row">{escape(what)}</th>{"".join(marked)}</tr>')
    return _table("numbers", titles if len(runs) > 1 else ("",), lines)


def settings(runs: Sequence[Run], titles: Sequence[str]) -> str:
    """The configuration, the data, and the versions, a column a run."""
    told = [{**_about(run), **run.configuration, **run.made} for run in runs]
    keys = dict.fromkeys(key for one in told for key in one)
    lines = []
    for key in keys:
        values = [_said(one.get(key)) for one in told]
        if len(set(values)) == 1:
            cells = f'<td colspan="{len(runs)}">{escape(values[0])}</td>'
        else:
            cells = "".join(f'<td class="best">{escape(value)}</td>' for value in values)
        lines.append(f'<tr><th scope="row">{escape(shown(key))}</th>{cells}</tr>')
    return _table("settings", titles if len(runs) > 1 else ("",), lines)


def sentence(run: Run) -> str:
    """What was run, in one sentence."""
    settings, schema = run.configuration, run.schema
    return (
        f"{_many(len(run.sizes), 'peer')} with {_many(int(run.sizes.sum()), 'row')} in all learned one "
        f"{settings.get('family', 'naive-bayes')} classifier of {_many(len(schema.classes), 'class', 'classes')} and "
        f"{_many(len(schema.names), 'column')} in {_many(int(settings['rounds']), 'round')}; no row left its peer."
    )


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def _about(run: Run) -> dict[str, Any]:
    """What the data were."""
    sizes, schema = run.sizes, run.schema
    spread = f", {sizes.min():,} to {sizes.max():,} a peer" if sizes.min() < sizes.max() else ""
    return {
        "rows": f"{sizes.sum():,}{spread or f', {sizes[0]:,} a peer'}",
        "columns": f"{len(schema.continuous)} continuous, {len(schema.discrete)} discrete",
        "classes": f"{len(schema.classes):,}",
        "links": f"{len(run.links):,}",
        "seconds spent": ", ".join(f"{what} {seconds:.2f}" for what, seconds in run.seconds.items()) or "–",
    }


def _said(value: Any) -> str:
    return "–" if value is None else shown(value, LONGEST)


def _table(kind: str, titles: Sequence[str], lines: Sequence[str]) -> str:
    head = ""
    if any(titles):
        cells = "".join(f'<th scope="col">{escape(shown(title, 40))}</th>' for title in titles)
        head = f"<thead><tr><td></td>{cells}</tr></thead>"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{LABELS[kind]}">'
        f'<table class="{kind}">{head}<tbody>{"".join(lines)}</tbody></table></div>'
    )

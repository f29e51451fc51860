"""A run in a few lines, as Python and a notebook show it."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from peerbayes.data.files import printable, size

Run = Any  # a `result.Run`, which shows itself by this file

WIDEST = 100  # characters of a value

STYLE = (
    "text-align: left; vertical-align: top; padding: 0.1em 1em 0.1em 0"  # colours are those of the notebook
)


def overview(run: Run) -> list[tuple[str, str]]:
    """Return what a run was and what came out, in pairs of a name and a text."""
    asked, chosen, summary = run.configuration, run.provenance.chosen, run.summary()
    counted = f"{len(run.sizes):,} on {_topology(asked)}, {run.sizes.sum():,} rows in all"
    if run.attackers.size:
        counted += f", {run.attackers.size} of them attackers"
    learned = ", ".join(str(asked[name]) for name in ("family", "strategy") if name in asked)
    learned += f", start {asked['start']}" if "start" in asked else ""
    own = ", ".join(name for name in ("family", "strategy", "start") if name in chosen)
    lines = [
        ("peers", counted),
        ("learned", f"{learned}{f' (chosen: {own})' if own else ''}; {summary['rounds']:,.0f} rounds"),
        *_errors(summary),
        ("sent", f"{size(summary['bytes_per_peer'])} by each peer"),
    ]
    if data := run.provenance.data:
        where = f"{run.provenance.source}: {data['rows']:,} rows, {data['columns']:,} columns, "
        lines.insert(0, ("data", f"{where}{data['classes']:,} classes"))
    return [(name, _short(text)) for name, text in lines]


def _errors(summary: dict[str, float]) -> list[tuple[str, str]]:
    """Return the errors of the peers and of the references, on test rows where there are any."""
    kind = "test" if math.isfinite(summary["test_error"]) else "train"
    error = f"{summary[f'{kind}_error']:.4f} ± {summary[f'{kind}_std']:.4f} over peers"
    pooled = [
        f"{title} {summary[f'{kind}_{name}']:.4f}"
        for name, title in (("rc", "RC"), ("ml", "ML"), ("local", "peers alone"))
        if math.isfinite(summary[f"{kind}_{name}"])
    ]
    name = "test error" if kind == "test" else "training error"
    missing = "" if kind == "test" else "; there are no test rows"
    return [(name, error + missing), ("references", ", ".join(pooled) or "not computed")]


def _topology(asked: dict[str, Any]) -> str:
    name = str(asked.get("topology", "a network"))
    return f"a {name}" if name in ("tree", "ring", "chain", "star", "grid", "torus") else f"topology {name}"


def _short(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= WIDEST else f"{plain[: WIDEST - 1]}…"


def as_text(run: Run) -> str:
    """Return a run as its `repr`."""
    lines = overview(run)
    width = 2 + max(len(name) for name, _ in lines)
    return "\n".join(["Run", *(f"  {name:<{width}}{text}" for name, text in lines)])


def as_html(run: Run) -> str:
    """Return a run as a small table for notebooks, in the colours that they have."""
    rows = "".join(
        f'<tr><th scope="row" style="{STYLE}">{escape(name)}</th><td style="{STYLE}">{escape(text)}</td></tr>'
        for name, text in overview(run)
    )
    return f"<table><caption>Run</caption><tbody>{rows}</tbody></table>"

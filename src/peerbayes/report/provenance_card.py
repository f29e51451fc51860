"""The card of a report that names what made a run: its data, settings, versions, machine, and how to make it again."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from peerbayes.data.files import printable
from peerbayes.simulation.result import Run

HEADING = "Provenance"
LONGEST = 200  # characters of a text
NOT_VERSIONS = ("began", "choice", "family choice", "selection")


def card(runs: Sequence[Run], titles: Sequence[str]) -> str:
    """Return the card: for each run a list of facts, and the TOML that would make it again."""
    blocks = []
    for run, title in zip(runs, titles, strict=True):
        heading = f"<h3>{escape(_short(title))}</h3>" if len(runs) > 1 else ""
        entries = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(_short(text))}</dd></div>" for name, text in facts(run)
        )
        recipe = f"<details><summary>run.toml</summary><pre>{escape(_printable(run.toml()))}</pre></details>"
        blocks.append(f'{heading}<dl class="facts">{entries}</dl>{recipe if run.provenance.data else ""}')
    return f'<h2>{HEADING}</h2>\n<div class="card provenance">{"".join(blocks)}</div>'


def facts(run: Run) -> list[tuple[str, str]]:
    """Return what made a run, in pairs of a name and a text."""
    provenance, made = run.provenance, run.made
    versions = ", ".join(f"{name} {text}" for name, text in made.items() if name not in NOT_VERSIONS)
    entries = []
    if data := provenance.data:
        size = f"{data['rows']:,} rows, {data['columns']:,} columns, {data['classes']:,} classes"
        entries = [("data", f"{provenance.source}: {size}"), ("digest of the rows", data["digest"])]
        if test := data.get("test"):
            entries.append(("digest of the rows to test on", f"{test['digest']}, {test['rows']:,} rows"))
        entries.append(("asked", _pairs(provenance.asked) or "nothing: all defaults"))
        entries.append(("chosen", _pairs(provenance.chosen) or "nothing was left open"))
    else:
        entries.append(("data", "not recorded: the run was saved by an earlier version"))
    entries += [
        (f"why {name}", made[name]) for name in ("family choice", "choice", "selection") if name in made
    ]
    entries.append(("versions", versions or "–"))
    if machine := provenance.machine:
        text = f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads"
        entries.append(("machine", f"{text}, BLAS kernels {machine['blas']}, {machine['system']}"))
    entries += [("made", made.get("began", "–")), ("digest of the run", run.digest)]
    if provenance.data:
        entries.append(("to make it again", "peerbayes rerun RUN_DIR, the folder that the run was saved in"))
    return [(TITLES.get(name, name), text) for name, text in entries]


TITLES = {
    "why family choice": "why this family",
    "why choice": "why this strategy",
    "why selection": "rounds kept",
}


def _pairs(settings: dict[str, object]) -> str:
    return ", ".join(f"{name} = {_value(value)}" for name, value in settings.items())


def _value(value: object) -> str:
    """Return a setting in a few words; those that only the file of the run has by their kind."""
    if isinstance(value, dict) and (kind := next(iter(value), "")).startswith("$"):
        return {
            "$links": "a graph",
            "$rows": "lists of rows",
            "$schema": "a Schema",
            "$test": "rows passed",
        }.get(kind, str(value[kind]))
    return str(value)


def _short(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 1]}…"


def _printable(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))

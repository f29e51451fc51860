"""The card of a version of a model: what it predicts, from which data, under which terms, and how good it is where.

A card says what is recorded of the version and nothing else. It is built once, as sections of paragraphs, lists and
tables, and written as Markdown or as one HTML page that needs nothing from elsewhere.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peerbayes.data import files
from peerbayes.data.declarations import declarations
from peerbayes.errors import ConfigurationError
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.models.figure_tables import (
    SITE_HEADS,
    auc_sentence,
    class_rows,
    column_texts,
    data_sentence,
    site_rows,
)
from peerbayes.peer.models.history import History, Version

MARKDOWN, HTML = "card.md", "card.html"
SHOWN = 200  # rows of a table; of a larger network, the others are in `version.json`


# --- what a card consists of


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table: its heads, its rows, and which columns are numbers."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Code:
    """Text as it was written."""

    text: str


Block = Paragraph | Items | Table | Code


@dataclass(frozen=True)
class Section:
    """A part of a card."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Card:
    """A card: its title, and its sections."""

    title: str
    sections: tuple[Section, ...]


def recorded(history: History, model: Path | None = None, **facts: Any) -> Version | None:
    """Record a model as a version with its card, and return the version; None: there is no model file."""
    version = history.record(model, **facts)
    if version is not None:
        write_cards(history, version)
    return version


def write_cards(history: History, version: Version) -> None:
    """Write both forms of a version's card into its folder."""
    made = card(version)
    folder = history.folder / str(version.number)
    files.write(folder / MARKDOWN, markdown(made).encode())
    files.write(folder / HTML, page(made).encode())


# --- what it says


def card(version: Version) -> Card:
    """Return the card of a version."""
    terms = _terms(version.terms)
    sections = (
        Section("Summary", tuple(_summary(version, terms))),
        Section("What it predicts", tuple(_predicts(version, terms))),
        Section("Data", tuple(_data(version.figures.get("data") or {}))),
        Section("Errors by site", tuple(_sites(version.figures))),
        Section("How the run ended", tuple(_verdict(version))),
        Section("Privacy", tuple(_privacy(version, terms))),
        Section("Who approved it", tuple(_approved(version))),
        Section("Use and limits", (Items(tuple(_limits(version))),)),
        Section("Terms of the run", (Code(version.terms.strip()),)),
    )
    return Card(f"Model card: version {version.number} of {version.network}", sections)


def _terms(content: str) -> dict[str, Any]:
    """Return the terms as plain values; a card is written also where a later program wrote them."""
    try:
        return files.table(content, "the terms")
    except ConfigurationError:
        return {}


def _setting(terms: Mapping[str, Any], name: str) -> str:
    """Return a setting of the terms; what they leave out has its default."""
    return str(terms.get(name, declarations(Terms)[name].default)) if terms else "not readable"


def _summary(version: Version, terms: Mapping[str, Any]) -> Iterator[Block]:
    number = "" if version.run_number is None else f"number {version.run_number}, "
    facts = [
        ("version", str(version.number)),
        ("recorded", _moment(version.at)),
        ("network", version.network),
        ("run", f"{number}{version.run}"),
        (
            "model",
            f"{_setting(terms, 'family')}, learned by strategy {_setting(terms, 'strategy')}",
        ),
        ("rounds", str(version.rounds)),
        ("model file", f"sha256 {version.model}"),
        ("rows of this site", f"sha256 {version.data}"),
        (
            "software",
            ", ".join(f"{name} {number}" for name, number in version.software.items()) or "not recorded",
        ),
    ]
    yield Table(("", ""), tuple(facts))


def _predicts(version: Version, terms: Mapping[str, Any]) -> Iterator[Block]:
    data = version.figures.get("data") or {}
    classes = [str(label) for label, _ in data.get("classes", ())] or [
        str(label) for label in terms.get("classes", ())
    ]
    among = f", one of {_list(classes)}" if classes else ""
    columns = [column["name"] for column in data.get("columns", ())] or list(terms.get("features", {}))
    known = (
        f"{len(columns)} columns: {_list(columns)}"
        if columns
        else "all columns of the members' tables but the label"
    )
    yield Paragraph(
        f"The class of a row, {terms.get('label', 'the label')}{among}, with a probability for each class, from "
        f"{known}."
    )


def _data(data: Mapping[str, Any]) -> Iterator[Block]:
    if not data:
        yield Paragraph("The sites did not agree on figures of their data in this run.")
        return
    yield Paragraph(data_sentence(data))
    yield Table(("class", "rows", "share"), tuple(class_rows(data)), (1, 2))
    columns = data["columns"]
    rows = tuple((column["name"], *column_texts(column)) for column in columns[:SHOWN])
    yield Table(("column", "missing", "values"), rows, (1,))
    if len(columns) > SHOWN:
        yield Paragraph(f"{len(columns) - SHOWN} more columns are in version.json.")
    if any(column.get("low") is not None for column in columns):
        yield Paragraph(
            "A range is that of the middle nine tenths of all values, to an eighth of a standard deviation: nobody's "
            "lowest or highest value was told."
        )


def _sites(figures: Mapping[str, Any]) -> Iterator[Block]:
    sites = figures.get("sites") or {}
    if not sites:
        yield Paragraph('The agreement has no evaluation of all sites (evaluation = "sites").')
        return
    without = [site["name"] for site in sites["sites"] if site["shares"] == "no rows"]
    which = f"Each site but {_list(without)}" if without else "Each site"
    if len(without) < len(sites["sites"]):
        yield Paragraph(
            f"{which} tested its own final model on rows that it had not learned from (hold_out), and vouched for its "
            "figures; nobody else has seen the rows."
        )
    else:
        yield Paragraph("No site had held-out rows (hold_out): nobody tested the model.")
    if figures.get("held_out") == 0:
        yield Paragraph(
            "This site had no held-out rows (hold_out in peer.toml): nothing is known of its errors here."
        )
    rows = site_rows(sites)
    yield Table(SITE_HEADS, tuple(rows[:SHOWN] if len(rows) <= SHOWN else [*rows[:SHOWN], rows[-1]]),
                tuple(range(1, len(SITE_HEADS))))  # fmt: skip
    if sentence := auc_sentence(sites):
        yield Paragraph(sentence)
    if sites["notes"]:
        yield Items(tuple(_sentence(note) for note in sites["notes"]))


def _verdict(version: Version) -> Iterator[Block]:
    if version.verdict is None:
        yield Paragraph("The run was not judged.")
        return
    yield Paragraph("The run ended well." if version.verdict.get("good") else "The run ended with problems.")
    yield Items(tuple(_sentence(sentence) for sentence in version.verdict.get("sentences", ())))


def _privacy(version: Version, terms: Mapping[str, Any]) -> Iterator[Block]:
    agreed = terms.get("privacy", {})
    if version.privacy is None:
        yield Paragraph(
            "The run had no differential privacy: no noise was added, and no bound is promised on what the model and "
            "the messages of the run tell about a single row."
        )
    else:
        spent = version.privacy
        yield Paragraph(
            "Whatever left this site in the run has noise. Of one row nobody learns more than epsilon "
            f"{spent['epsilon']:g} (delta {spent['delta']:g}) allows; the run spent {spent['spent']:.4g} of it."
        )
    if version.on_rows is not None:
        spent = version.on_rows
        yield Paragraph(
            "All runs over the rows of this site, in this network and in others of its owner, had spent epsilon "
            f"{spent['epsilon']:.4g} (delta {spent['delta']:g}, {spent['releases']} releases) when this model was "
            "recorded."
        )
    if agreed.get("secure_sum"):
        yield Paragraph("Messages were masked: a neighbour saw sums of three or more of them.")


def _approved(version: Version) -> Iterator[Block]:
    if version.approvals:
        rows = tuple((str(each["name"]), _moment(each["at"]), str(each["by"])) for each in version.approvals)
        yield Table(("member", "approved", "by"), rows)
        yield Paragraph(
            "Each approval is signed with the member's key and kept in runs/. By a standing consent or a schedule, no "
            "person read these terms: its owner had set limits before."
        )
    elif version.approved:
        yield Items(tuple(version.approved))
        yield Paragraph("They agreed on these terms when they joined the network.")
    else:
        yield Paragraph(
            "No approvals are recorded: the members agreed on these terms when they joined the network."
        )


def _limits(version: Version) -> Iterator[str]:
    """Yield what follows from the facts, and nothing else."""
    sites = version.figures.get("sites") or {}
    data = version.figures.get("data") or {}
    yield "It was learned from rows of this network's sites alone; nothing here says how good it is elsewhere."
    if data:
        yield "Rows outside of the ranges and categories above were rare in training, or absent."
    named = [
        site for site in sites.get("sites", ()) if site["shares"] == "named" and site.get("error") is not None
    ]
    if len(named) > 1:
        best, worst = min(named, key=_error), max(named, key=_error)
        if _error(best) < _error(worst):
            yield (
                f"Errors differ between sites: from {_error(best):.2%} at {best['name']} to {_error(worst):.2%} at "
                f"{worst['name']}."
            )
    few = [site["name"] for site in named if site["rows"] < 100]
    if few:
        yield f"Figures of fewer than 100 rows vary much by chance: {_list(few)}."
    silent = [
        site["name"] for site in sites.get("sites", ()) if site["shares"] in ("no rows", "none", "false")
    ]
    if silent:
        yield f"Of errors at {_list(silent)} nothing is known."
    if not sites:
        yield "Errors at other sites than this one are not known."
    else:
        yield "Figures are as each site told them; nobody can check them against its rows."
    if version.verdict is not None and not version.verdict.get("good"):
        yield "The run ended with problems, see above: look at them before the model is used."


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _error(site: Mapping[str, Any]) -> float:
    return float(site["error"])


def _list(names: Iterable[Any], most: int = 12) -> str:
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _sentence(text: str) -> str:
    """Return a clause as a sentence."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


# --- as Markdown

# What has a meaning anywhere; at the beginning of a text; and as an address, of which some programs make a link.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>!|~&@]|^[#+=-]|:(?=//)|(?<=www)\.)", re.IGNORECASE)
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")


def markdown(made: Card) -> str:
    """Return a card as Markdown (CommonMark, with tables as GitHub has them); values cannot change its form."""
    parts = [f"# {_plain(made.title)}"]
    for section in made.sections:
        parts.append(f"## {_plain(section.title)}")
        parts += map(_markdown_block, section.blocks)
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """Return text with everything escaped that Markdown gives a meaning, on one line."""
    return _NUMBERED.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", " ".join(_printable(text).split())))


def _printable(text: str) -> str:
    """Return text without characters that change how what follows is shown."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def _markdown_block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return _plain(text)
        case Items(texts):
            return "\n".join(f"- {_plain(text)}" for text in texts)
        case Table(heads, rows, numbers):
            marks = ["---:" if index in numbers else "---" for index in range(len(heads))]
            lines = [heads, marks, *rows]
            cells = [[cell if line is marks else _plain(cell) for cell in line] for line in lines]
            return "\n".join(f"| {' | '.join(line)} |" for line in cells)
        case Code(text):
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            return f"{fence}toml\n{_printable(text)}\n{fence}"


# --- as one HTML page

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --paper: #ffffff; --tint: #f6f8fa }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9da7b1; --line: #3d444d; --paper: #0d1117; --tint: #161b22 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif }
main { max-width: 56rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line) }
p, li { overflow-wrap: anywhere }
.wide { overflow-x: auto; margin: .75rem 0 }
table { border-collapse: collapse; font-size: .9rem; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line) }
th { color: var(--soft); font-weight: 600 }
td { overflow-wrap: anywhere; min-width: 4rem }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 6px; padding: .75rem; overflow-x: auto;
  font: .8rem/1.5 ui-monospace, monospace }
@media print {
  :root { --ink: #000; --soft: #333; --line: #999; --paper: #fff; --tint: #fff }
  main { max-width: none; padding: 0 }
  pre { white-space: pre-wrap; overflow-wrap: anywhere }
  .wide { overflow: visible }
  h2 { break-after: avoid } tr { break-inside: avoid }
}
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(made: Card) -> str:
    """Return a card as one HTML page, without anything from elsewhere; values are text and nothing else."""
    sections = "\n".join(
        f"<section>\n<h2>{_text(section.title)}</h2>\n{''.join(map(_html_block, section.blocks))}</section>"
        for section in made.sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(made.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{_text(made.title)}</h1>
{sections}
</main>
</body>
</html>
"""


def _text(text: str) -> str:
    return html.escape(_printable(text))


def _html_block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{_text(text)}</p>\n"
        case Items(texts):
            return "<ul>\n" + "".join(f"<li>{_text(text)}</li>\n" for text in texts) + "</ul>\n"
        case Table(heads, rows, numbers):
            return _html_table(heads, rows, numbers)
        case Code(text):
            return f"<pre>{_text(text)}</pre>\n"


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        marked = (
            f"<{tag}{' class=number' if index in numbers else ''}>{_text(cell)}</{tag}>"
            for index, cell in enumerate(cells)
        )
        return f"<tr>{''.join(marked)}</tr>\n"

    head = f"<thead>{line(heads, 'th')}</thead>\n" if any(heads) else ""
    body = "".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table>\n{head}<tbody>\n{body}</tbody></table></div>\n'

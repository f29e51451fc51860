"""Figures of all sites as text: what their tables look like, and how good the model is where, in rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# --- what the tables look like, as `DataFigures.to_json` has it


def data_sentence(data: Mapping[str, Any]) -> str:
    """Return what the figures of all tables are of, and who knows what."""
    about = (
        "of two sites, each knows the other's figures too"
        if data["sites"] == 2
        else "nobody was told the figures of a single site"
    )
    noise = data["noise"]
    noisy = f" Numbers of rows have noise with a standard deviation of {noise:.3g} rows." if noise else ""
    rows = f"{data['rows']:,.0f} rows to learn from at {data['sites']} sites"
    return f"{rows}, as all of them together have them: {about}.{noisy}"


def class_rows(data: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the label, the number of rows and the share of each class."""
    total = max(data["rows"], 1e-12)
    return [(str(label), f"{count:,.0f}", f"{count / total:.1%}") for label, count in data["classes"]]


def column_texts(column: Mapping[str, Any]) -> tuple[str, str]:
    """Return the share of missing values of a column, and what its values are."""
    return "" if column["missing"] is None else f"{column['missing']:.1%}", _values(column)


def _values(column: Mapping[str, Any]) -> str:
    if column.get("low") is not None:
        ends = f"{column['low']:.4g} to {column['high']:.4g}"
        mean = "" if column["logarithms"] else f", mean {column['mean']:.4g}, deviation {column['sd']:.3g}"
        return f"{ends}{mean}"
    if column.get("most_frequent"):
        seen = column["most_frequent"]
        present = max(column["present"], 1e-12)
        shown = ", ".join(f"{label} {count / present:.0%}" for label, count in seen[:5])
        more = column["categories"] - min(len(seen), 5)
        return f"{shown}{f' and {more} more' if more > 0 else ''}"
    return "as the terms describe them" if column["present"] else "none"


# --- how good the model is where, as `sites.table_of` has it

FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("error", "error", lambda value: f"{value:.2%}"),
    ("log_loss", "log loss", lambda value: f"{value:.4f}"),
    ("auc", "AUC", lambda value: f"{value:.4f}"),
    ("brier", "Brier score", lambda value: f"{value:.4f}"),
    ("calibration", "calibration error", lambda value: f"{value:.4f}"),
)

SHARES = {
    "anonymous": "anonymous",
    "none": "not shared",
    "no rows": "no held-out rows",
    "false": "not vouched for, left out",
}

SITE_HEADS = ("site", "rows", *(head for _, head, _ in FIGURES))


def site_rows(sites: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the table of all sites: a row for each, those without a name together, and all."""
    rows = [
        (site["name"], *_figures(site))
        if site["shares"] == "named"
        else (site["name"], SHARES.get(site["shares"], site["shares"]), *[""] * len(FIGURES))
        for site in sites["sites"]
    ]
    if sites["anonymous"] is not None:
        rows.append(
            (f"{sites['anonymous']['sites']} anonymous sites together", *_figures(sites["anonymous"]))
        )
    if sites["all"] is not None:
        rows.append(("all together", *_figures(sites["all"])))
    return rows


def _figures(figures: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{figures['rows']:,}",
        *("" if figures.get(name) is None else written(figures[name]) for name, _, written in FIGURES),
    )


def auc_sentence(sites: Mapping[str, Any]) -> str:
    """Return how exact the AUC of all sites is; empty: it is not known."""
    together = sites["all"] or {}
    if together.get("auc_low") is None:
        return ""
    return (
        f"The AUC of all sites together lies between {together['auc_low']:.6f} and {together['auc_high']:.6f}: it "
        "comes from counts of scores in bins, and of two rows in one bin it is not known which has the higher score. "
        "A site's own AUC is exact."
    )

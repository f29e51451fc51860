"""What `peerbayes peer figures` prints: tables of all sites, this one beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peerbayes.cli import print_table, print_text
from peerbayes.peer.models.figure_tables import (
    SITE_HEADS,
    auc_sentence,
    class_rows,
    column_texts,
    data_sentence,
    site_rows,
)


def print_figures(report: Mapping[str, Any]) -> None:
    """Print the figures of the data, what was found in them, and errors by site."""
    agreed, which = report["agreed"], "" if report["run"] == 1 else f", run {report['run']}"
    whose = f"{report['name']} in {report['network']}{which}"
    print_text(f"{whose}: the data of all sites")
    if report["figures"]:
        _print_data(report["figures"])
    elif agreed["figures"] == "none":
        print_text('  not in the agreement (figures = "none")')
    else:
        print_text("  not agreed on yet: the run has not come so far")
    print_text(f"\n{whose}: errors by site")
    if report["sites"]:
        _print_sites(report["sites"])
    elif agreed["evaluation"] == "none":
        print_text('  not in the agreement (evaluation = "none")')
    else:
        print_text("  not known yet: the last round is not done")


def _print_data(figures: Mapping[str, Any]) -> None:
    own, agreed = figures["own"], figures["agreed"]
    if agreed:
        print_text(data_sentence(agreed))
        classes = [
            (label, *everybody, *here)
            for (label, *everybody), (_, *here) in zip(class_rows(agreed), class_rows(own), strict=True)
        ]
        print_table(("class", "rows", "share", "here", "share"), classes)
        print_text()
    everybody = {column["name"]: column_texts(column) for column in agreed.get("columns", ())}
    columns = [
        (column["name"], *everybody.get(column["name"], ("", "")), *column_texts(column))
        for column in own["columns"]
    ]
    print_table(("column", "missing", "values", "missing here", "values here"), columns)
    if figures["problem"]:
        print_text(f"\nno figures of all sites: {figures['problem']}")
    if figures["findings"]:
        print_text("\nfound here, compared with all other sites:")
    for finding in figures["findings"]:
        print_text(f"  {finding['sentence']}{'' if finding['stops'] else ' (stops no run)'}")
    if not figures["problem"] and not figures["findings"]:
        print_text("\nnothing found here, compared with all other sites")
    if (count := figures["sites_with_findings"]) is not None:
        print_text(
            f"{count} of all sites found what stops a run" if count else "no site found what stops a run"
        )


def _print_sites(sites: Mapping[str, Any]) -> None:
    print_table(SITE_HEADS, site_rows(sites))
    for sentence in filter(None, (auc_sentence(sites), *sites["notes"])):
        print_text(sentence)

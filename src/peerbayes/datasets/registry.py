"""Entries of datasets, and finding them by any of their names."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from peerbayes.datasets.errors import UnknownDataset
from peerbayes.datasets.expected import Expected
from peerbayes.datasets.origins import Origin

UCI = "https://archive.ics.uci.edu"
KAGGLE = "https://www.kaggle.com/datasets"
CC_BY = "CC BY 4.0"


@dataclass(frozen=True)
class Entry:
    """The registry's entry of a dataset.

    name       as in the first column of the paper's table of datasets
    file       its name in PEERBAYES_DATA and in the cache; empty for what comes with scikit-learn
    source     the page that publishes it
    origin     a download, where there is one
    by_hand    how to get it where there is none
    ignored    columns of the publisher's file that are not features: row numbers, names, dates
    not_in_paper   columns that the paper leaves out
    """

    name: str
    aliases: tuple[str, ...]
    expected: Expected
    description: str
    source: str
    licence: str
    file: str = ""
    origin: Origin | None = None
    by_hand: str = ""
    ignored: tuple[str, ...] = ()
    not_in_paper: tuple[str, ...] = ()


def names(listed: str) -> tuple[str, ...]:
    """Split names that are written in one string, separated by commas."""
    return tuple(name.strip() for name in listed.split(","))


def plain(name: str) -> str:
    """Return a name without case and punctuation: "Letter_Recognition" is "letter recognition"."""
    return re.sub(r"[^a-z0-9]+", " ", name.casefold()).strip()


def find(name: str, entries: dict[str, Entry]) -> Entry:
    """Return the dataset of that name or alias; suggest close ones where there is none."""
    by_alias = {plain(alias): entry for entry in entries.values() for alias in (entry.name, *entry.aliases)}
    if (entry := by_alias.get(plain(name))) is not None:
        return entry
    close = difflib.get_close_matches(plain(name), by_alias, n=5, cutoff=0.6)
    offered = list(dict.fromkeys(by_alias[alias].name for alias in close))
    hint = f"did you mean {' or '.join(offered)}? " if offered else ""
    raise UnknownDataset(f"no dataset is called {name!r}; {hint}expected one of {', '.join(entries)}")

"""The digest of a table and its labels: runs and studies name their data by it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from peerbayes.data.table import Table, missing_of


def table_digest(X: Any, y: Any) -> str:
    """Return the sha256 of names, values and labels, in their order: the same from a DataFrame of any library.

    Numbers are digested as float64, so that 1, 1.0 and True are one value, as they are for a schema; other values as
    their text. A column of numbers and one of the same texts differ, and so do missing values and empty texts.
    """
    table, digest = Table.of(X), hashlib.sha256()
    labels = np.asarray(y)
    for name, values in (*((name, table.column(j)) for j, name in enumerate(table.names)), ("", labels)):
        digest.update(f"{len(name)} {name} {values.size} ".encode(errors="surrogatepass"))
        _add_values(digest, values)
    return digest.hexdigest()


def _add_values(digest: Any, values: np.ndarray) -> None:
    """Add a column [n] to a digest."""
    if values.dtype.kind in "fiub":
        digest.update(b"numbers ")
        numbers = values.astype(np.float64) + 0.0  # -0.0 and 0.0 are one number
        numbers[np.isnan(numbers)] = np.nan  # of many bit patterns, one
        digest.update(numbers.data)
        return
    digest.update(b"objects ")
    written, objects = _Written(), values.astype(object).tolist()
    try:
        texts = b"".join(map(written.__getitem__, objects))
    except TypeError:  # a value without a hash, which no schema takes
        texts = b"".join(map(_text, objects))
    digest.update(texts)


class _Written(dict[Any, bytes]):
    """Values as they are digested: columns of text repeat few values, and each is written once."""

    def __missing__(self, value: Any) -> bytes:
        self[value] = text = _text(value)
        return text


def _text(value: Any) -> bytes:
    """Return a value as text that tells its type: numbers as a float, text in quotes, "-" where it is missing."""
    if missing_of(np.fromiter([value], dtype=object, count=1))[0]:
        return b"-"
    number = isinstance(value, bool | int | float | np.number | np.bool)
    text = repr(float(value) + 0.0) if number else repr(str(value))
    return f"{len(text)} {text}".encode(errors="surrogatepass")

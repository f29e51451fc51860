"""Sources of rows, for simulations and peers alike: a CSV file, a Parquet file, or a query of a database.

The same rows read the same from all three; see `values` for what they may hold.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from peerbayes.data.sources.flat_files import SUFFIXES, read_parquet, read_text
from peerbayes.data.sources.sql import read_query
from peerbayes.data.sources.values import check_names, plain
from peerbayes.errors import SourceError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SourceError", "labelled", "read"]


def read(
    data: str, query: str | None = None, columns: Sequence[str] = (), texts: Collection[str] = ()
) -> pd.DataFrame:
    """Read all rows of a .csv or .tsv (also .gz), a .parquet, or a query of a database given by its SQLAlchemy URL.

    With `columns`, only these and in this order: the others may then hold anything. `texts` are columns known to
    hold text: those of a CSV file are then read as written, where otherwise their values could be taken for numbers or
    missing values.
    """
    if "://" in data:
        if query is None:
            raise SourceError(
                f"{data.partition('://')[0]}://… is a database; say which rows with a query: SELECT … FROM …"
            )
        frame, where = read_query(data, query)
    elif query is not None:
        raise SourceError(f"there is a query, but {data} is a file; leave the query out, or name a database")
    else:
        path, where = _checked(Path(data)), data
        frame = read_parquet(path, columns) if path.suffix.lower() == ".parquet" else read_text(path, texts)
    names = [str(name) for name in frame.columns]
    check_names(names, columns, where)
    if not len(frame):
        raise SourceError(f"{where} gives no rows; expected at least one")
    import pandas as pd

    wanted = list(columns) or names
    return pd.DataFrame({name: plain(frame[name], f"column {name!r} of {where}") for name in wanted})


def labelled(
    frame: pd.DataFrame, label: str, features: Collection[str] = ()
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the features named, in that order (all columns but the label if none is named), and the labels [n]."""
    if label in features:
        raise SourceError(f"{label!r} is the label and also a feature; leave it out of the features")
    names = list(features) or [name for name in frame.columns if name != label]
    check_names(list(frame.columns), [*names, label], "the table")
    if not names:
        raise SourceError(f"the table has no column but the label {label!r}; expected features to learn from")
    missing = np.flatnonzero(frame[label].isna())
    if missing.size:
        first = ", ".join(str(row + 1) for row in missing[:5])
        raise SourceError(
            f"{missing.size} of {len(frame)} rows have no label in column {label!r} (counted from 1: {first}"
            f"{', …' if missing.size > 5 else ''}); leave those rows out"
        )
    return frame[names], frame[label].to_numpy()


def _checked(path: Path) -> Path:
    """Return the path of a file that exists, is not empty and has a known suffix."""
    if not path.name.lower().endswith((*SUFFIXES, ".parquet")):
        raise SourceError(
            f"cannot read rows from {path}; expected a .csv or a .parquet (also .tsv, .csv.gz), or the URL of a "
            "database, like sqlite:///rows.db"
        )
    if path.is_dir():
        raise SourceError(f"cannot read rows from {path}, which is a folder; name a file in it")
    if not path.exists():
        raise SourceError(f"cannot read rows from {path}, which does not exist; check its name and folder")
    if not path.stat().st_size:
        raise SourceError(f"{path} is empty; expected a header and rows. Export it again")
    return path

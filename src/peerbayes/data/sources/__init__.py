"""Sources of rows, for simulations and peers alike: a CSV file, a Parquet file, a query of a database, or a source of
an outside package.

The same rows read the same from all of them; see `values` for what they may hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peerbayes.data.registry import Registry, callable_problem
from peerbayes.data.sources.blocks import Blocks
from peerbayes.data.sources.flat_files import checked, read_parquet, read_text
from peerbayes.data.sources.preparation import map_labels, prepare
from peerbayes.data.sources.sql import read_query
from peerbayes.data.sources.values import check_names, plain, without_label
from peerbayes.data.table import frame_of
from peerbayes.errors import PeerbayesError, SourceError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "SOURCES",
    "Blocks",
    "SourceError",
    "check_names",
    "labelled",
    "map_labels",
    "of_packages",
    "outside",
    "prepare",
    "read",
]

OR_A_DATABASE = ", or the URL of a database, like sqlite:///rows.db"

# Endings of files, and schemes of the databases that SQLAlchemy itself supports.
BUILT_IN = ("csv", "tsv", "gz", "parquet", "sqlite", "postgresql", "mysql", "mariadb", "oracle", "mssql")

# Sources of outside packages by name: functions of the data and the query (None: there is none) that return a table.
# The source NAME reads NAME://… and files that end in .NAME.
SOURCES: Registry[Callable[[str, str | None], Any]] = Registry(
    "source", "peerbayes.sources", {}, callable_problem, lambda name: name.partition("+")[0] in BUILT_IN
)


def read(
    data: str,
    query: str | None = None,
    columns: Sequence[str] = (),
    texts: Collection[str] = (),
    *,
    drop: Sequence[str] = (),
    dates: Mapping[str, str] | None = None,
    missing: Sequence[str | float] = (),
) -> pd.DataFrame:
    """Read all rows of a .csv or .tsv (also .gz), a .parquet, or a query of a database given by its SQLAlchemy URL;
    or of data that a source of an outside package reads, see `SOURCES`.

    With `columns`, only these and in this order: the others may then hold anything. `texts` are columns known to
    hold text: those of a CSV file are then read as written, where otherwise their values could be taken for numbers or
    missing values. What `drop`, `dates` and `missing` do, `prepare` says.
    """
    if (name := outside(data)) is not None:
        frame, where = _read_outside(name, data, query)
    elif "://" in data:
        if query is None:
            raise SourceError(
                f"{data.partition('://')[0]}://… is a database; say which rows with a query: SELECT … FROM …"
            )
        frame, where = read_query(data, query)
    elif query is not None:
        raise SourceError(f"there is a query, but {data} is a file; leave the query out, or name a database")
    else:
        path, where = checked(Path(data), f"{OR_A_DATABASE}{of_packages()}"), data
        frame = read_parquet(path, columns) if path.suffix.lower() == ".parquet" else read_text(path, texts)
    if drop or dates or missing:
        frame = prepare(frame, drop=drop, dates=dates, missing=missing)
    names = [str(name) for name in frame.columns]
    check_names(names, columns, where)
    if not len(frame):
        raise SourceError(f"{where} gives no rows; expected at least one")
    import pandas as pd

    wanted = list(columns) or names
    return pd.DataFrame({name: plain(frame[name], f"column {name!r} of {where}") for name in wanted})


def outside(data: str) -> str | None:
    """Return the name of the outside package's source that reads this data; None: it is built in, or unknown."""
    scheme, separator, _ = data.partition("://")
    name = scheme if separator else Path(data).suffix.removeprefix(".").lower()
    return name if name and name in SOURCES else None


def _read_outside(name: str, data: str, query: str | None) -> tuple[pd.DataFrame, str]:
    """Return the table of an outside package's source, and its name for errors, which may not hold a password."""
    import pandas as pd

    where = f"the source {name} of the package {SOURCES.package(name)}"
    source = SOURCES[name]
    try:
        table = source(data, query)
        frame = frame_of(table)
        return pd.DataFrame(table) if frame is None else frame.to_pandas(), where
    except PeerbayesError:
        raise
    except Exception as error:  # whatever an outside package may raise
        raise SourceError(f"{where} cannot read the rows: {type(error).__name__}: {error}") from error


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
        raise without_label(label, missing[:5].tolist(), missing.size, len(frame))
    return frame[names], frame[label].to_numpy()


def of_packages() -> str:
    """Return what sources of installed packages read, as the end of an error's expectation."""
    return "".join(f", or {name}://… or a .{name} file" for name in SOURCES.names())

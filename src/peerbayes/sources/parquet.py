"""Parquet files."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from peerbayes.sources.errors import SourceError, check_names, one_line

if TYPE_CHECKING:
    import pandas as pd


def read_parquet(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read the columns named, or all; the others are not loaded from the file."""
    need_pyarrow(path)
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            # A row index of pandas' is no column.
            names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
            check_names(names, columns, str(path))
            table = file.read(columns=list(columns) or names)
    except (arrow.ArrowException, OSError) as error:
        raise SourceError(f"{path} cannot be read as Parquet: {one_line(error)}; export it again") from error
    return table.to_pandas(ignore_metadata=True)[list(columns) or names]


def need_pyarrow(path: Path) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise SourceError(f"{path} is Parquet, which needs pyarrow: pip install 'peerbayes[data]'")

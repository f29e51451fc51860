"""The rows of a run: those in memory while it lasts, and those that were saved in its folder because somebody asked."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peerbayes.data import files
from peerbayes.data.digest import table_digest
from peerbayes.data.sources.flat_files import need_pyarrow
from peerbayes.data.sources.values import one_line
from peerbayes.data.table import Table
from peerbayes.errors import SourceError

if TYPE_CHECKING:
    import pandas as pd

ROWS_FILE = "rows.parquet"
TEST_FILE = "test-rows.parquet"

Labelled = tuple[Any, Any]


@dataclass(frozen=True, eq=False)
class RunRows:
    """The rows of a run, as they were passed, or the folder that has them."""

    X: Any = None
    y: Any = None
    test: Labelled | None = None
    folder: Path | None = None

    @classmethod
    def saved(cls, folder: Path) -> RunRows | None:
        """Return the rows that were saved in a folder; None: there are none."""
        return cls(folder=folder) if (folder / ROWS_FILE).is_file() else None

    def read(self) -> tuple[Any, Any, Labelled | None]:
        """Return the table, its labels, and the rows to test on."""
        if self.folder is None:
            return self.X, self.y, self.test
        test = self.folder / TEST_FILE
        return *_read(self.folder / ROWS_FILE), _read(test) if test.is_file() else None

    def save(self, folder: Path) -> None:
        """Write the rows to a folder as Parquet."""
        X, y, test = self.read()
        need_pyarrow(folder / ROWS_FILE)
        contents = {ROWS_FILE: _encoded(X, y)}
        if test is not None:
            contents[TEST_FILE] = _encoded(*test)
        forget_rows(folder)
        for name, content in contents.items():
            files.write(folder / name, content)


def forget_rows(folder: Path) -> None:
    """Remove the rows that an earlier run left in a folder."""
    for name in (ROWS_FILE, TEST_FILE):
        (folder / name).unlink(missing_ok=True)


def _encoded(X: Any, y: Any) -> bytes:
    """Return rows and labels, the last column, as Parquet that gives the same rows again."""
    import pandas as pd

    table = Table.of(X)
    frame = (
        pd.DataFrame(table.array) if table.frame is None else table.frame.to_pandas().reset_index(drop=True)
    )
    frame.columns = pd.Index(table.names)
    label = "label"
    while label in table.names:
        label += "_"
    frame[label] = pd.Series(np.asarray(y))
    content = io.BytesIO()
    try:
        frame.to_parquet(content, index=False)
    except Exception as error:  # pyarrow has many kinds
        raise SourceError(
            f"the rows cannot be saved as Parquet: {one_line(error)}; save the run without data=True"
        ) from error
    if table_digest(*_split(pd.read_parquet(content))) != table_digest(X, y):
        raise SourceError(
            "the rows would not be the same when they are read again: a column mixes numbers and text; save the run "
            "without data=True"
        )
    return content.getvalue()


def _read(path: Path) -> Labelled:
    import pandas as pd

    need_pyarrow(path)
    try:
        return _split(pd.read_parquet(path))
    except Exception as error:
        raise SourceError(f"{path} cannot be read as Parquet: {one_line(error)}") from error


def _split(frame: pd.DataFrame) -> Labelled:
    return frame.iloc[:, :-1], frame.iloc[:, -1].to_numpy()

"""A source: files in the ARFF format of Weka, `rows.arff` or `arff:///folder/rows.arff`."""

import pandas as pd
from scipy.io import arff


def read(data: str, query: str | None) -> pd.DataFrame:
    """Return the rows as a table; `query` is what the owner set beside the data, and None here."""
    if query is not None:
        raise ValueError(f"there is a query, {query!r:.40}; expected none: an ARFF file is read as it is")
    rows, _ = arff.loadarff(data.removeprefix("arff://"))
    table = pd.DataFrame(rows)
    return table.apply(lambda column: column.str.decode("utf-8") if column.dtype == object else column)

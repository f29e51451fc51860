"""One pass over the rows of a table: statistics, residual, log joint, posterior.

If the rows fit in one block, Φ is kept in memory. More rows are encoded, expanded and discarded block by block, so
that a pass costs two matrix products and little memory: by the `kernels` for large tables, by their NumPy twins where
loading the kernels would take longer. All give the same numbers up to rounding, and the choice depends on the call
alone, not on what the process did before.
"""

from peerbayes.model.passes.blocks import (
    FRAME_ROWS,
    Block,
    Encoded,
    Raw,
    Source,
    all_rows,
    check_rows,
    columns_of,
    first_missing,
    source_of,
)
from peerbayes.model.passes.features import Evaluation, log_joint, log_units, posterior
from peerbayes.model.passes.labelled import Data, Held, Plain, Streamed, labelled, repeated

__all__ = [
    "FRAME_ROWS", "Block", "Data", "Encoded", "Evaluation", "Held", "Plain", "Raw", "Source", "Streamed", "all_rows",
    "check_rows", "columns_of", "first_missing", "labelled", "log_joint", "log_units", "posterior", "repeated",
    "source_of",
]  # fmt: skip
